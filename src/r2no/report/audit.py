"""What the splits hold, and whether they share measured frames."""

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from r2no.data.window import Windows


def audit_splits(splits: Mapping[str, Windows]) -> list[dict[str, Any]]:
    """One row per split: windows, trajectories, distinct target frames, gaps, overlap.

    ``shared`` is, for each earlier split, the number of this one's target frames that occur in it
    to the last bit. Constant frames (all zero, say) are not compared. Reads every window once.
    """
    rows: list[dict[str, Any]] = []
    seen: dict[str, set[bytes]] = {}
    for name, windows in splits.items():
        frames: set[bytes] = set()
        missing = values = 0
        measured = list(windows.fields.measured)
        for number in range(len(windows)):
            window = windows[number]
            target = window.target[..., measured]
            values += target.numel()
            if window.mask is not None:
                missing += int((~window.mask[..., measured]).sum())
            frames.update(_digest(frame) for frame in target if frame.min() < frame.max())
        rows.append(
            {
                "split": name,
                "windows": len(windows),
                "trajectories": len(windows.origins[:, 0].unique()),
                "frames": len(frames),
                "gaps": missing / max(values, 1),
                "shared": {other: len(frames & theirs) for other, theirs in seen.items()},
                "fingerprint": windows.fingerprint,
            }
        )
        seen[name] = frames
    return rows


def _digest(frame: Tensor) -> bytes:
    return hashlib.sha256(frame.contiguous().numpy().tobytes()).digest()[:16]
