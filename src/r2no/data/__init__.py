"""Windows of fields and where they come from: files, arrays, forecasts on disk."""

import importlib
from typing import Any

from r2no.data.arrays import ArrayWindows
from r2no.data.audit import audit_splits, shared_frames
from r2no.data.measurements import Measurements
from r2no.data.normalise import Normaliser
from r2no.data.opening import open
from r2no.data.splits import Splits
from r2no.data.window import Fields, Window, Windows, batches, collate

__all__ = [
    "ArrayWindows",
    "Fields",
    "Measurements",
    "Normaliser",
    "Splits",
    "Window",
    "Windows",
    "audit_splits",
    "batches",
    "collate",
    "open",
    "shared_frames",
]

#: What has moved to a package of its own, and is still found here by those who know it.
_MOVED = {"RealPDEBench": "realpdebench", "WakeData": "wake", "make_wake": "wake"}


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        return getattr(importlib.import_module(f"r2no.{_MOVED[name]}"), name)
    raise AttributeError(f"module 'r2no.data' has no attribute {name!r}")
