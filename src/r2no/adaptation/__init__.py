"""Adaptation end to end: frozen source, repair modules, spectral ensemble, readouts (M3-M9)."""

from r2no.adaptation.adapting import adapt
from r2no.adaptation.artifact import load
from r2no.adaptation.config import AdaptSettings, EnsembleSettings, RepairSettings
from r2no.adaptation.groups import ColumnGroup
from r2no.adaptation.histories import Prediction
from r2no.adaptation.loops import RepairLoops
from r2no.adaptation.model import AdaptedModel
from r2no.adaptation.named_readouts import further_forecasts, readouts, score_readouts
from r2no.adaptation.predict import unfamiliar, write_predictions
from r2no.adaptation.stored import StoredModel, read_stored, store_beside

__all__ = [
    "AdaptSettings",
    "AdaptedModel",
    "ColumnGroup",
    "EnsembleSettings",
    "Prediction",
    "RepairLoops",
    "RepairSettings",
    "StoredModel",
    "adapt",
    "further_forecasts",
    "load",
    "read_stored",
    "readouts",
    "score_readouts",
    "store_beside",
    "unfamiliar",
    "write_predictions",
]
