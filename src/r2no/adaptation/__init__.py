"""Adaptation end to end: frozen source, repair modules, spectral ensemble, readouts (M3-M9)."""

from r2no.adaptation.adapting import adapt
from r2no.adaptation.artifact import load
from r2no.adaptation.config import AdaptSettings, EnsembleSettings, RepairSettings
from r2no.adaptation.model import AdaptedModel
from r2no.adaptation.named_readouts import Observer, readouts, score_readouts
from r2no.adaptation.predict import write_predictions
from r2no.adaptation.stored import StoredModel, read_stored, store_beside
from r2no.adaptation.trajectories import Trajectories

__all__ = [
    "AdaptSettings",
    "AdaptedModel",
    "EnsembleSettings",
    "Observer",
    "RepairSettings",
    "StoredModel",
    "Trajectories",
    "adapt",
    "load",
    "read_stored",
    "readouts",
    "score_readouts",
    "store_beside",
    "write_predictions",
]
