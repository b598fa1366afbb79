"""The retention map as numbers: cells, their weights, what they hold and what is done there."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from r2no.ensemble import FittedEnsemble, on_plane
from r2no.ensemble.columns import lead_slices
from r2no.report.effects import by_lead, effects
from r2no.report.packing import pack, pack_floats, pack_numbers, rounded
from r2no.report.weight_tables import group_rows, weight_tables
from r2no.spectral import FourierCells

#: A nested fit is shown on cells at least this fine (bands, sectors), if its finest allow.
_LEAST = (16, 8)


def cells_json(ensemble: FittedEnsemble, names: list[str], *, frames: int) -> dict[str, Any]:
    """Every occupied cell with its weights by column, its share of the error and the gain.

    A nested fit is shown on the cells of its last level (``level``: those between which weights
    differ), or on finer ones if that level is coarse, since the gain differs within them. The axes
    of ``gain``, ``change``, ``share``, ``leading``, ``parts`` and ``weights`` are lead time,
    channel, cell (then group, or column). Groups of lead time with weights of their own lie inside
    the ensemble's channel axis; all of them together come first, with the mean of their weights.
    ``leading`` is the number of the group that moves most, none where nothing is moved.

    Args:
        ensemble: Fitted; without sums only the weights are known.
        names: Of the measured channels.
        frames: Forecast frames.
    """
    shown = _on_shown_cells(ensemble)
    columns = shown.columns
    occupied = shown.cells.occupied.nonzero()[:, 0]
    leads = shown.weights.shape[1] // shown.cells.weight_channels(len(names))

    def of_channels(values: Tensor) -> Tensor:
        """Occupied cells only; weights that channels share are those of each."""
        parts = values[:, :, occupied]
        return parts.expand(-1, len(names), *parts.shape[2:])

    found = {name: of_channels(values) for name, values in effects(shown, leads).items()}
    parts = found.pop("parts")
    return {
        "leads": _lead_names(frames, leads),
        "channels": names,
        "groups": group_rows(columns),
        "tables": weight_tables(columns),
        "level": list(_level(ensemble)),
        "plane": pack_numbers(_plane(shown, occupied)),
        "cells": [_describe(shown.cells, int(cell)) for cell in occupied],
        "weights": pack_floats(of_channels(by_lead(shown.weights, leads, mean=True))),
        "parts": pack(parts),
        "leading": _leading(parts),
        **{name: rounded(values) for name, values in found.items()},
    }


def _leading(parts: Tensor) -> Any:
    """Number of the largest group; None where no part is known."""
    most = parts.nan_to_num(-1.0).max(-1)
    return rounded(torch.where(most.values > 0, most.indices.double(), torch.nan))


def _lead_names(frames: int, leads: int) -> list[str]:
    """Runs of nearly equal length, as the ensemble cuts them, after all of them together."""
    everything = ["all forecast frames"]
    if leads == 1:
        return everything
    runs = lead_slices(frames, leads)
    return everything + [
        f"frames {run.start + 1} to {run.stop}" if run.stop > run.start + 1 else f"frame {run.stop}"
        for run in runs
    ]


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
