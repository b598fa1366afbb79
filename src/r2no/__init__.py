"""Adapt simulation-pretrained neural operators to real measurements."""
# ruff: noqa: E402 - what is imported must not come from the working folder

__version__ = "0.1.0"

import importlib
import sys
from types import ModuleType


def _leave_out_working_folder() -> None:
    """Undo what ``python -m r2no`` added to the path of imports; nothing otherwise.

    Python puts the folder where a user happens to be first, before the standard library, and
    packages that are looked for but not installed would be imported from there: whoever wrote the
    data in it could run code. The command ``r2no`` has no such entry, and ``python -m`` shall be
    the same.
    """
    arguments, starting = sys.orig_argv, "-m"  # what Python calls a program before it is found
    if sys.argv[:1] != [starting] or sys.flags.safe_path or starting not in arguments:
        return
    module = arguments[arguments.index(starting) + 1]
    if module.split(".")[0] == "r2no":
        del sys.path[0]


_leave_out_working_folder()

from r2no import backbones, data, errors, metrics, operators, spectral
from r2no.adaptation import AdaptedModel, AdaptSettings, adapt, load
from r2no.ensemble import SpectralEnsemble
from r2no.repair_loop import RepairUNet, repair
from r2no.spectral import FourierCells

__all__ = [
    "AdaptSettings",
    "AdaptedModel",
    "FourierCells",
    "RepairUNet",
    "SpectralEnsemble",
    "adapt",
    "backbones",
    "data",
    "errors",
    "load",
    "metrics",
    "operators",
    "repair",
    "spectral",
]

_LATER = ("realpdebench", "report", "wake")  # loaded when asked for


def __getattr__(name: str) -> ModuleType:
    if name in _LATER:
        return importlib.import_module(f"r2no.{name}")
    raise AttributeError(f"module 'r2no' has no attribute {name!r}")
