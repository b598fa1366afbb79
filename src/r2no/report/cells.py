"""The retention map as numbers: cells, their weights, what they hold and what is done there."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from r2no.ensemble import FittedEnsemble, on_plane, retention
from r2no.report.packing import pack_floats, pack_numbers, rounded
from r2no.spectral import FourierCells

#: A nested fit is shown on cells at least this fine (bands, sectors), if its finest allow.
_LEAST = (16, 8)


def cells_json(ensemble: FittedEnsemble, names: list[str], *, frames: int) -> dict[str, Any]:
    """Every occupied cell with its weights by column, its share of the error and the gain.

    A nested fit is shown on the cells of its last level (``level``: those between which weights
    differ), or on finer ones if that level is coarse, since the gain differs within them. The axes
    of ``gain``, ``change``, ``share`` and ``weights`` are lead time, channel, cell (and column).
    Groups of lead time with weights of their own lie inside the ensemble's channel axis.

    Args:
        ensemble: Fitted; without sums only the weights are known.
        names: Of the measured channels.
        frames: Forecast frames.
    """
    shown = _on_shown_cells(ensemble)
    columns, weights = shown.columns, shown.weights
    occupied = shown.cells.occupied.nonzero()[:, 0]
    groups = weights.shape[1] // shown.cells.weight_channels(len(names))

    def arranged(values: Tensor) -> Tensor:
        """(cell, channel and group, ...) as (group, channel, cell, ...)."""
        parts = values[occupied].unflatten(1, (-1, groups))
        parts = parts.expand(-1, len(names), *parts.shape[2:])
        result: Tensor = parts.movedim(0, 2).movedim(0, 1)
        return result

    return {
        "leads": _lead_names(frames, groups),
        "channels": names,
        "members": columns.members,
        "depths": list(columns.depths),
        "base": columns.base,
        "level": list(_level(ensemble)),
        "plane": pack_numbers(_plane(shown, occupied)),
        "cells": [_describe(shown.cells, int(cell)) for cell in occupied],
        "weights": pack_floats(arranged(weights)),
        **{name: rounded(arranged(values)) for name, values in _effects(shown).items()},
    }


def _lead_names(frames: int, groups: int) -> list[str]:
    """Runs of nearly equal length, as the ensemble cuts them."""
    if groups == 1:
        return ["all forecast frames"]
    ends = [round(number * frames / groups) for number in range(groups + 1)]
    return [f"frames {start + 1} to {stop}" for start, stop in pairwise(ends)]


def _effects(shown: FittedEnsemble) -> dict[str, Tensor]:
    """Gain, change and share by (cell, channel); NaN where the sums are not kept."""
    if shown.sums is None:
        unknown = torch.full(shown.weights.shape[:2], torch.nan)
        return {"gain": unknown, "change": unknown, "share": unknown}
    found = retention(shown)
    return {"gain": found.gain, "change": found.change, "share": found.share}


def _level(ensemble: FittedEnsemble) -> tuple[int, int]:
    """Bands and sectors between which the weights differ."""
    if ensemble.nested is None:
        return max(ensemble.cells.radial, 1), max(ensemble.cells.angular, 1)
    sizes = [(1, 1), *(level[:2] for chain in ensemble.nested.chains for level in chain.levels)]
    return max(size[0] for size in sizes), max(size[1] for size in sizes)


def _on_shown_cells(ensemble: FittedEnsemble) -> FittedEnsemble:
    """The same weights on coarser cells, where a nested fit has them equal within these."""
    fine = ensemble.cells
    if ensemble.nested is None:
        return ensemble
    radial, angular = (
        max(used, _halved(finest, least))
        for used, finest, least in zip(
            _level(ensemble), (fine.radial, fine.angular), _LEAST, strict=True
        )
    )
    coarse = fine.coarser(radial, angular)
    parent = fine.parents(coarse)
    weights = ensemble.weights.new_zeros(coarse.num_cells, *ensemble.weights.shape[1:])
    occupied = fine.occupied
    weights[parent[occupied]] = ensemble.weights[occupied]
    sums = ensemble.sums
    if sums is not None:
        sums = sums.total().coarsen(parent, coarse.num_cells)
    return replace(ensemble, cells=coarse, weights=weights, sums=sums, scoring_sums=None)


def _halved(number: int, least: int) -> int:
    """``number`` halved as often as it stays even and at least ``least``."""
    while number % 2 == 0 and number // 2 >= least:
        number //= 2
    return number


def _plane(shown: FittedEnsemble, occupied: Tensor) -> Tensor:
    """Number of the cell at each wavenumber, top row first; one row by radius unless 2-D."""
    place = torch.zeros(shown.cells.num_cells, dtype=torch.float64)
    place[occupied] = torch.arange(len(occupied), dtype=torch.float64)
    if len(shown.cells.grid) != 2:
        return torch.arange(len(occupied))[None]
    return on_plane(place, shown).flip(0).long()


def _describe(cells: FourierCells, cell: int) -> dict[str, Any]:
    """Range of radius (in Nyquist frequencies) and orientation (degrees), and the size."""
    radial, angular = max(cells.radial, 1), max(cells.angular, 1)
    band, sector = divmod(cell, angular)
    reach = math.sqrt(len(cells.grid))
    step = (reach if cells.extent == "corner" else 1.0) / radial
    last = reach if band == radial - 1 else (band + 1) * step
    turn = 180.0 / angular
    return {
        "radius": [round(band * step, 4), round(last, 4)],
        "angle": [round(sector * turn, 2), round((sector + 1) * turn, 2)],
        "size": int(cells.sizes[cell]),
    }
