"""Adapt simulation-pretrained neural operators to real measurements."""

__version__ = "0.1.0"

import importlib
import sys
from typing import TYPE_CHECKING, Any


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

if TYPE_CHECKING:
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

#: Public names and their homes, which are loaded when they are asked for: they bring PyTorch.
_HOMES = {
    "AdaptSettings": "adaptation",
    "AdaptedModel": "adaptation",
    "FourierCells": "spectral",
    "RepairUNet": "repair_loop",
    "SpectralEnsemble": "ensemble",
    "adapt": "adaptation",
    "load": "adaptation",
    "repair": "repair_loop",
}
_PACKAGES = {
    *("adaptation", "backbones", "data", "devices", "ensemble", "errors", "metrics", "operators"),
    *("ranks", "realpdebench", "repair_loop", "report", "runs", "scoring", "settings", "spectral"),
    *("storage", "training", "wake"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(importlib.import_module(f"r2no.{_HOMES[name]}"), name)
    elif name in _PACKAGES:
        found = importlib.import_module(f"r2no.{name}")
    else:
        raise AttributeError(f"module 'r2no' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
