"""Leakage audit: do splits hold the same frame?"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from r2no.data.arrays import ArrayWindows
from r2no.data.window import Window, Windows, trajectories


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
