"""Adapt simulation-pretrained neural operators to real measurements."""
# ruff: noqa: E402 - what is imported must not come from the working folder

__version__ = "0.1.0"

import importlib
from types import ModuleType

from r2no._safe_path import leave_out_working_folder

leave_out_working_folder()

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
