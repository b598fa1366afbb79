"""What identifies the benchmark's files: name, size and content, the latter sampled if large.

The files are published as they are and hold up to hundreds of gigabytes, so of a large one only
evenly spaced pieces are read. Dates do not count: copies are the same data.
"""

import hashlib
from pathlib import Path

from r2no.realpdebench.files.trajectories import Stamp

_PIECE = 2**14
_PIECES = 64


def sample_hash(path: Path, size: int) -> str:
    """SHA-256 over a file of up to 1 MiB, or over evenly spaced pieces, ends included."""
    with path.open("rb") as stream:
        if size <= _PIECE * _PIECES:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256()
        for piece in range(_PIECES):
            stream.seek((size - _PIECE) * piece // (_PIECES - 1))
            digest.update(stream.read(_PIECE))
    return digest.hexdigest()


def file_identity(stamp: Stamp) -> tuple[str, int, str]:
    """Name, size and content of a file."""
    stamp.check()
    return stamp.path.name, stamp.size, sample_hash(stamp.path, stamp.size)
