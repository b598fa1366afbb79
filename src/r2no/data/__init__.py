"""Windows of fields and where they come from: files, arrays, the built-in wake, RealPDEBench."""

from r2no.data.arrays import ArrayWindows
from r2no.data.audit import shared_frames
from r2no.data.measurements import Measurements
from r2no.data.normalise import Normaliser
from r2no.data.opening import open
from r2no.data.realpdebench import RealPDEBench
from r2no.data.splits import Splits
from r2no.data.wake import WakeData, make_wake
from r2no.data.window import Fields, Window, Windows, batches, collate

__all__ = [
    "ArrayWindows",
    "Fields",
    "Measurements",
    "Normaliser",
    "RealPDEBench",
    "Splits",
    "WakeData",
    "Window",
    "Windows",
    "batches",
    "collate",
    "make_wake",
    "open",
    "shared_frames",
]
