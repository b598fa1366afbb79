"""Adaptation end to end: frozen source, repair modules, spectral ensemble, readouts (M3-M9)."""

from r2no.adaptation.adapt import adapt, update
from r2no.adaptation.artifact import load
from r2no.adaptation.config import AdaptSettings, EnsembleSettings, RepairSettings
from r2no.adaptation.export import export
from r2no.adaptation.model import AdaptedModel
from r2no.adaptation.predict import write_predictions
from r2no.adaptation.readouts import readouts, score_readouts
from r2no.adaptation.stored import StoredModel, read_stored, store_beside
from r2no.adaptation.trajectories import Trajectories

__all__ = [
    "AdaptSettings",
    "AdaptedModel",
    "EnsembleSettings",
    "RepairSettings",
    "StoredModel",
    "Trajectories",
    "adapt",
    "export",
    "load",
    "read_stored",
    "readouts",
    "score_readouts",
    "store_beside",
    "update",
    "write_predictions",
]
