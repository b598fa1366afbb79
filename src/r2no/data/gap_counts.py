"""How much is missing, from as many frames as can be read in a moment."""

from dataclasses import replace
from math import prod
from typing import Any

from r2no.data.lazy import Part
from r2no.data.measurements import Measurements
from r2no.data.recordings import Recording

_BUDGET = 2**26  # bytes that are read at most
_FRAMES = 256  # that are read at most where not all are
_BLOCKS = 16  # of each recording


def count_missing(data: Measurements) -> tuple[dict[str, float] | None, int]:
    """Share of missing values by channel, and the number of frames that it was counted in.

    All frames if that is cheap, else blocks of them at equal distances, of recordings at equal
    distances; None if a single frame is too much to read.
    """
    if data.nbytes <= _BUDGET:
        return _shares(data), sum(data.frames)
    cost = max(_frame_cost(recording) for recording in data.recordings)
    affordable = min(_BUDGET // max(cost, 1), _FRAMES)
    if not affordable:
        return None, 0
    chosen = data.recordings[:: -(-len(data) // affordable)]
    each = affordable // len(chosen)
    parts = tuple(part for recording in chosen for part in _blocks(recording, each))
    sample = replace(data, recordings=parts)
    return _shares(sample), sum(sample.frames)


def _shares(data: Measurements) -> dict[str, float]:
    return dict(zip(data.channels, data.missing, strict=True))


def _blocks(recording: Recording, frames: int) -> list[Recording]:
    """Blocks of neighbours, which every format reads fast."""
    total = len(recording.values)
    if frames >= total:
        return [recording]
    blocks = min(frames, _BLOCKS)
    length = frames // blocks
    starts = [place * (total - length) // max(blocks - 1, 1) for place in range(blocks)]
    return [recording.part(slice(start, start + length)) for start in starts]


def _frame_cost(recording: Recording) -> int:
    """Bytes that reading one frame unpacks: chunks are read as a whole."""
    time = recording.values.dims[0]
    return sum(_part_cost(part, time) for part in recording.values.parts)


def _part_cost(part: Part, time: str) -> int:
    variable: Any = part.variable
    frame = variable.dtype.itemsize * prod(n for dim, n in variable.sizes.items() if dim != time)
    chunk = variable.encoding.get("chunksizes") or variable.encoding.get("chunks") or (1,)
    known = len(chunk) == variable.ndim
    frames = chunk[variable.dims.index(time)] if known else max(chunk)
    return int(max(frame * frames, variable.dtype.itemsize * prod(chunk)))
