"""Leakage audit: do two splits hold the same frame?"""

import hashlib
from collections.abc import Iterator

from torch import Tensor

from r2no.data.arrays import ArrayWindows
from r2no.data.window import Windows


def shared_frames(left: Windows, right: Windows) -> int:
    """Number of recorded frames of ``left`` that ``right`` holds as well; zero is clean.

    Frames are compared by value, so a file under two names is found. Reads both splits once and
    keeps a hash per frame.
    """
    return len(_digests(left) & _digests(right))


def _digests(windows: Windows) -> set[bytes]:
    return {
        hashlib.blake2b(frame.contiguous().numpy().tobytes(), digest_size=16).digest()
        for frame in _frames(windows)
        if frame.isfinite().any()  # lost frames are all alike
    }


def _frames(windows: Windows) -> Iterator[Tensor]:
    """Every frame that a window touches, once."""
    fields, seen = windows.fields, set[tuple[int, int]]()
    for number, (trajectory, start) in enumerate(windows.origins.tolist()):
        places = range(start, start + fields.history_frames + fields.horizon_frames)
        new = [place for place in places if (trajectory, place) not in seen]
        seen.update((trajectory, place) for place in new)
        if isinstance(windows, ArrayWindows):
            yield from (windows.frame(trajectory, place) for place in new)
        elif new:
            window = windows[number]
            history = window.history[..., : len(fields.channels)]
            yield from (
                history[at]
                if (at := place - start) < len(history)
                else window.target[at - len(history)]
                for place in new
            )
