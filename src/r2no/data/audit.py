"""What splits share: recordings, by their arrays or how they go on, and single frames (leaks)."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from r2no.data.array_checks import Array
from r2no.data.arrays import ArrayWindows
from r2no.data.lazy import LazyTrajectory
from r2no.data.window import Window, Windows, trajectories

#: Frames of a recording, and points along an axis, that are looked at to tell whether it goes on.
_LOOKED, _COARSE = 64, 32
#: The share of frames that may be nearer than one that follows, and its squared distance in steps.
_NEAR, _STEPS = 0.25, 1.25


def apart(first: Windows, second: Windows) -> bool:
    """Whether two splits are of other recordings, as far as their arrays tell.

    Stretches of one recording are known by the array or file that they are slices of, and copies of
    stretches by :func:`going_on`. Windows of another kind do not say what they are cut from, so
    they are not known to be apart.
    """
    pair = _other_arrays(first, second)
    return pair is not None and not _continued(*pair)


def going_on(first: Windows, second: Windows) -> bool:
    """Whether splits of other arrays seem to be of the same recordings, by their values.

    Then each recording of the second starts where that of the first ends.
    """
    pair = _other_arrays(first, second)
    return pair is not None and _continued(*pair)


def _other_arrays(first: Windows, second: Windows) -> tuple[ArrayWindows, ArrayWindows] | None:
    """Both, if it is known what they are cut from, and they share no array."""
    if not isinstance(first, ArrayWindows) or not isinstance(second, ArrayWindows):
        return None
    known = {_whole(array) for array in first.recordings}
    shared = not known.isdisjoint(_whole(array) for array in second.recordings)
    return None if shared else (first, second)


def _continued(first: ArrayWindows, second: ArrayWindows) -> bool:
    """Whether each recording of the second seems to go on where one of the first ends."""
    if len(first.recordings) != len(second.recordings):
        return False
    return all(_goes_on(first, second, number) for number in range(len(first.recordings)))


def _goes_on(first: ArrayWindows, second: ArrayWindows, number: int) -> bool:
    """Whether a recording of ``second`` seems to go on where that of ``first`` ends."""
    if first.fields.grid != second.fields.grid or first.fields.channels != second.fields.channels:
        return False
    end, start = _looked_at(first, number, -1), _looked_at(second, number, 0)
    return _follows(end, start) and _follows(start, end)


def _looked_at(
    windows: ArrayWindows, number: int, end: int
) -> Float[Tensor, "frame points channel"]:
    """The frame at one end, its neighbour, and others; measured channels on a coarse grid."""
    last = len(windows.recordings[number]) - 1
    places = torch.linspace(0, last, min(_LOOKED, last + 1)).long().tolist()
    places = [0, 1, *(place for place in places if place > 1)]
    if end < 0:
        places = [last - place for place in places]
    coarse = tuple(slice(None, None, max(size // _COARSE, 1)) for size in windows.fields.grid)
    frames = torch.stack([windows.frame(number, place)[coarse].double() for place in places])
    return frames.flatten(1, -2)[..., list(windows.fields.measured)]


def _follows(
    own: Float[Tensor, "_ points channel"], others: Float[Tensor, "_ points channel"]
) -> bool:
    """Whether the first of the others is to the first of one's own as neighbours are.

    Both it and the neighbour are nearer than most of the others, and it is no farther than
    neighbours are. Two recordings of like flows that meet by chance pass too; frames that are too
    far apart in time to be like their neighbours do not.
    """
    pairs = torch.cat([others - own[0], own[1:2] - own[0], others[1:2] - others[0]])
    squares = pairs.square().nanmean(1)
    distances = (squares / squares.nanmean(0)).nanmean(1)  # channels have units of their own
    candidate, rest, (neighbour, theirs) = distances[0], distances[1:-2], distances[-2:]
    nearer = (rest <= torch.maximum(candidate, neighbour)).double().mean()
    step = torch.maximum(neighbour, theirs)
    return bool((nearer <= _NEAR) & (candidate <= _STEPS * step))


def _whole(array: Array) -> tuple[int, int]:
    """Identity of the recording that an array is a stretch of: what holds it, and where in that."""
    if isinstance(array, LazyTrajectory):
        return id(array.parts[0].variable), 0
    base, parent = array, _parent(array)
    while isinstance(parent, (np.ndarray, Tensor)):
        base, parent = parent, _parent(parent)
    if base.ndim in (array.ndim - 1, array.ndim):  # one recording, perhaps without a channel axis
        return id(base), 0
    if base.ndim != array.ndim + 1:
        return id(array), 0
    return id(base), (_address(array) - _address(base)) // (_first_stride(base) or 1)


def _parent(array: np.ndarray | Tensor) -> object:
    return array._base if isinstance(array, Tensor) else array.base


def _address(array: np.ndarray | Tensor) -> int:
    return array.data_ptr() if isinstance(array, Tensor) else array.ctypes.data


def _first_stride(array: np.ndarray | Tensor) -> int:
    """Bytes between neighbours along the first axis."""
    if isinstance(array, Tensor):
        return array.stride(0) * array.element_size()
    return array.strides[0]


class _Frames(NamedTuple):
    """Hashes of the frames of a split: all that its windows touch, and those of its targets."""

    touched: set[bytes]
    targets: set[bytes]


def shared_frames(left: Windows, right: Windows) -> int:
    """Number of recorded frames of ``left`` that ``right`` holds as well; zero is clean.

    Frames are compared by value, so a file under two names is found. Reads both splits once and
    keeps a hash per frame.
    """
    return len(_frames(left).touched & _frames(right).touched)


def audit_splits(splits: Mapping[str, Windows]) -> list[dict[str, Any]]:
    """One row per split: windows, trajectories, distinct target frames, gaps, overlap.

    ``shared`` is, for each earlier split, its :func:`shared_frames` with this one; ``gaps`` the
    share of the measured channels' target values that are missing. Reads every window once.
    """
    rows: list[dict[str, Any]] = []
    seen: dict[str, _Frames] = {}
    for name, windows in splits.items():
        frames = _frames(windows)
        rows.append(
            {
                "split": name,
                "windows": len(windows),
                "trajectories": trajectories(windows),
                "frames": len(frames.targets),
                "gaps": _gaps(windows),
                "shared": {
                    other: len(frames.touched & theirs.touched) for other, theirs in seen.items()
                },
                "fingerprint": windows.fingerprint,
            }
        )
        seen[name] = frames
    return rows


def _gaps(windows: Windows) -> float:
    missing = values = 0
    measured = list(windows.fields.measured)
    for number in range(len(windows)):
        target, mask = windows[number][1:]
        values += target[..., measured].numel()
        missing += 0 if mask is None else int((~mask[..., measured]).sum())
    return missing / max(values, 1)


def _frames(windows: Windows) -> _Frames:
    """Every frame that a window touches; lost frames, which are all alike, are left out."""
    found = _Frames(set(), set())
    known: dict[tuple[int, int], bytes | None] = {}
    history = windows.fields.history_frames
    for number, (trajectory, start) in enumerate(windows.origins.tolist()):
        places = range(start, start + history + windows.fields.horizon_frames)
        new = [place for place in places if (trajectory, place) not in known]
        for place, frame in zip(new, _read(windows, number, new), strict=True):
            known[trajectory, place] = _digest(frame) if frame.isfinite().any() else None
        digests = [known[trajectory, place] for place in places]
        found.touched.update(digest for digest in digests if digest is not None)
        found.targets.update(digest for digest in digests[history:] if digest is not None)
    return found


def _read(windows: Windows, number: int, places: list[int]) -> Iterator[Tensor]:
    """Frames of window ``number``, by their place in its trajectory, as they were recorded."""
    trajectory, start = windows.origins[number].tolist()
    if isinstance(windows, ArrayWindows):
        yield from (windows.frame(trajectory, place) for place in places)
    elif places:
        window: Window = windows[number]
        history = window.history[..., : len(windows.fields.channels)]
        yield from (
            history[at]
            if (at := place - start) < len(history)
            else window.target[at - len(history)]
            for place in places
        )


def _digest(frame: Tensor) -> bytes:
    return hashlib.blake2b(frame.contiguous().numpy().tobytes(), digest_size=16).digest()
