"""A fitted ensemble as tensors and JSON-able settings, and back."""

from typing import Any

import torch
from torch import Tensor

from r2no.ensemble.columns import Columns
from r2no.ensemble.gram import GramSums
from r2no.ensemble.model import FORMAT, SpectralEnsemble
from r2no.ensemble.nested import NestedFit
from r2no.errors import FileDamagedError
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
    """Inverse of :func:`pack`.

    Raises:
        FileDamagedError: if the parts do not fit each other.
    """
    try:
        ensemble = _unpack(tensors, settings)
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, FileDamagedError):
            raise
        raise _unsound(f"{type(error).__name__}: {error}") from error
    _check(ensemble)
    return ensemble


def _unsound(reason: str) -> FileDamagedError:
    return FileDamagedError(
        f"This is no sound ensemble: {reason}. Restore the file from a copy, or fit again."
    )


def _check(ensemble: SpectralEnsemble) -> None:
    """Raise unless weights, sums and decisions have the shapes that cells and columns imply."""
    columns, weights = ensemble.columns_, ensemble.weights_
    assert columns is not None
    assert weights is not None
    groups = {group for fold in ensemble.folds_ for part in fold for group in part}
    for name, sums in (("sums", ensemble.sums_), ("judged", ensemble.judged_)):
        if sums is None:
            continue
        size = columns.number + 1
        if tuple(sums.moments.shape[1:]) != (*weights.shape[:2], size, size):
            raise _unsound(f"`{name}` has shape {tuple(sums.moments.shape)}")
        if not groups <= set(range(len(sums.windows))) or not bool(sums.moments.isfinite().all()):
            raise _unsound(f"`{name}` is not finite, or a fold names a group it lacks")
    nested = ensemble.nested_
    if nested is not None:
        if nested.weights.shape != weights.shape or nested.gains.shape != nested.before.shape:
            raise _unsound("the nested fit has other shapes")
        if not all(bool(x.isfinite().all()) for x in (nested.gains, nested.before)):
            raise _unsound("held-out gains are not finite")


def _checked_weights(ensemble: SpectralEnsemble, weights: Tensor) -> Tensor:
    """Before they are spread over the plane, which takes memory."""
    columns, cells = ensemble.columns_, ensemble.cells
    assert columns is not None
    channels = cells.weight_channels(len(ensemble.measured)) * ensemble.lead_groups
    if tuple(weights.shape) != (cells.num_cells, channels, columns.number):
        raise _unsound(f"`weights` has shape {tuple(weights.shape)}")
    if weights.dtype != torch.float64 or not bool(weights.isfinite().all()):
        raise _unsound("`weights` must be finite numbers in float64")
    return weights


def _unpack(tensors: dict[str, Tensor], settings: dict[str, Any]) -> SpectralEnsemble:
    cell_tensors = {k[6:]: v for k, v in tensors.items() if k.startswith("cells.")}
    cells = FourierCells.from_state(cell_tensors, settings["cells"])
    published = {"centred": False, "weigh_by": "norm"}  # the only way of earlier versions
    ensemble = SpectralEnsemble(cells, **{**published, **settings["ensemble"]})
    members, depths, base = settings["columns"]
    ensemble.columns_ = Columns(members, tuple(depths), base, ensemble.centred)
    ensemble.ridge_ = settings["ridge_"]
    ensemble.ridge_scores_ = dict(settings["ridge_scores_"])
    ensemble.folds_ = tuple((tuple(a), tuple(b)) for a, b in settings["folds_"])
    weights = _checked_weights(ensemble, tensors["weights"])
    ensemble.sums_, ensemble.judged_ = (
        _unpacked(tensors, name, cells) for name in ("sums.", "judged.")
    )
    ensemble._set_weights(weights)
    if settings["nested_"] is not None:
        parts = (tensors[name] for name in ("nested", "gains", "before"))
        ensemble.nested_ = NestedFit.from_decisions(settings["nested_"], *parts)
    return ensemble


def _unpacked(tensors: dict[str, Tensor], prefix: str, cells: FourierCells) -> GramSums | None:
    packed = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    if packed:
        occupied = packed["occupied"]
        if occupied.shape != (cells.num_cells,) or occupied.dtype != torch.bool:
            raise _unsound(f"`{prefix}occupied` is {occupied.dtype} of {tuple(occupied.shape)}")
    return GramSums.unpacked(packed) if packed else None
