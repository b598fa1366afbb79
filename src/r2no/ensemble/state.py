"""A fitted ensemble as tensors and JSON-able settings, and back."""

from typing import Any

from torch import Tensor

from r2no.ensemble.columns import Columns
from r2no.ensemble.gram import GramSums
from r2no.ensemble.model import FORMAT, SpectralEnsemble
from r2no.ensemble.nested import NestedFit
from r2no.spectral import FourierCells


def pack(ensemble: SpectralEnsemble, *, sums: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """See :meth:`SpectralEnsemble.state`."""
    columns = ensemble.columns_
    assert columns is not None
    assert ensemble.weights_ is not None
    cell_tensors, cell_settings = ensemble.cells.state()
    tensors = {"weights": ensemble.weights_, **{f"cells.{k}": v for k, v in cell_tensors.items()}}
    for name, found in (("sums", ensemble.sums_), ("judged", ensemble.judged_)):
        if sums and found is not None:
            packed = found.packed(ensemble.cells.occupied)
            tensors |= {f"{name}.{k}": v for k, v in packed.items()}
    if ensemble.nested_ is not None:
        nested = ensemble.nested_
        tensors |= {
            "nested": nested.weights,
            "gains": nested.gains,
            "before": nested.before,
        }
    settings = {
        "format": FORMAT,
        "cells": cell_settings,
        "columns": [columns.members, list(columns.depths), columns.base],
        "ensemble": ensemble._settings(),
        "ridge_": ensemble.ridge_,
        "nested_": None if ensemble.nested_ is None else ensemble.nested_.decisions(),
        "ridge_scores_": [[k, v] for k, v in ensemble.ridge_scores_.items()],
        "folds_": [[list(fit), list(score)] for fit, score in ensemble.folds_],
    }
    return tensors, settings


def unpack(tensors: dict[str, Tensor], settings: dict[str, Any]) -> SpectralEnsemble:
    """Inverse of :func:`pack`."""
    cell_tensors = {k[6:]: v for k, v in tensors.items() if k.startswith("cells.")}
    cells = FourierCells.from_state(cell_tensors, settings["cells"])
    ensemble = SpectralEnsemble(cells, **settings["ensemble"])
    members, depths, base = settings["columns"]
    ensemble.columns_ = Columns(members, tuple(depths), base)
    ensemble.ridge_ = settings["ridge_"]
    ensemble.ridge_scores_ = dict(settings["ridge_scores_"])
    ensemble.folds_ = tuple((tuple(a), tuple(b)) for a, b in settings["folds_"])
    ensemble.sums_, ensemble.judged_ = (_unpacked(tensors, n) for n in ("sums.", "judged."))
    ensemble._set_weights(tensors["weights"])
    if settings["nested_"] is not None:
        parts = (tensors[name] for name in ("nested", "gains", "before"))
        ensemble.nested_ = NestedFit.from_decisions(settings["nested_"], *parts)
    return ensemble


def _unpacked(tensors: dict[str, Tensor], prefix: str) -> GramSums | None:
    packed = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return GramSums.unpacked(packed) if packed else None
