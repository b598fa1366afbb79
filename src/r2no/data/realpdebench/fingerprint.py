"""What identifies data on disk without reading all of it: size, time of change, sampled bytes."""

import hashlib
from pathlib import Path

from r2no.data.realpdebench.trajectories import Stamp

_PIECE = 4096
_PIECES = 8


def sample_hash(path: Path, size: int) -> str:
    """SHA-256 over the first, the last and evenly spaced pieces of a file."""
    digest = hashlib.sha256()
    last = max(0, size - _PIECE)
    with path.open("rb") as stream:
        for place in sorted({last * piece // (_PIECES - 1) for piece in range(_PIECES)}):
            stream.seek(place)
            digest.update(stream.read(_PIECE))
    return digest.hexdigest()


def file_identity(stamp: Stamp, *, with_time: bool) -> tuple[str, int, int, str]:
    """Name, size, time of change (0 without) and sampled content of a file."""
    stamp.check()
    content = sample_hash(stamp.path, stamp.size)
    return stamp.path.name, stamp.size, stamp.modified if with_time else 0, content
