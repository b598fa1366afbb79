"""The retention map as numbers: cells, their weights, what they hold and what is done there."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from r2no.ensemble import Columns, FittedEnsemble, Retention, on_plane
from r2no.ensemble.columns import BASE, PARTNER, REPAIR, group_of, lead_slices, repair_label
from r2no.ensemble.diagnostics import Energies, moved_energy
from r2no.report.data import pack, pack_floats, pack_numbers, rounded
from r2no.report.wording import group_name, named
from r2no.spectral import FourierCells

#: A nested fit is shown on cells at least this fine (bands, sectors), if its finest allow.
_LEAST = (16, 8)
_SHIFTED = "shifted ¼ wave"


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


def effects(ensemble: FittedEnsemble, leads: int) -> dict[str, Tensor]:
    """Gain, change, share and parts by (lead time, channel, cell), as :func:`by_lead` arranges.

    ``gain``, ``change`` and ``share`` are those of :class:`r2no.ensemble.Retention`. ``parts``,
    with one more axis for the groups of columns, is each group's share of what the weights move:
    the energy of Σ_j w_j P_b c_j over its columns, against the sum over groups. All are NaN where
    nothing is known: in cells without error, and everywhere if the sums are not kept.

    Args:
        ensemble: Fitted.
        leads: Groups of lead time inside its channel axis.
    """
    groups = ensemble.columns.groups()
    if ensemble.sums is None:
        unknown = by_lead(torch.full(ensemble.weights.shape[:2], torch.nan), leads)
        parts = unknown[..., None].expand(*unknown.shape, len(groups))
        return {"gain": unknown, "change": unknown, "share": unknown, "parts": parts}
    sums, weights = ensemble.sums.total(), ensemble.weights
    energies = Energies.of(sums, weights, base=ensemble.columns.base)
    found = Retention.of(
        Energies(*(by_lead(values, leads) for values in energies)), energies.before.sum()
    )
    by_group = [moved_energy(sums.gram[0], weights, places) for places in groups.values()]
    moved = by_lead(torch.stack(by_group, -1), leads)
    return {
        "gain": found.gain,
        "change": found.change,
        "share": found.share,
        "parts": moved / moved.sum(-1, keepdim=True),  # 0 / 0 where nothing is moved
    }


def by_lead(values: Tensor, leads: int, *, mean: bool = False) -> Tensor:
    """(cell, channel and lead time, ...) as (lead time, channel, cell, ...).

    With several groups of lead time, all of them together come first: their sum, or their mean.
    """
    parts: Tensor = values.unflatten(1, (-1, leads)).movedim(0, 1).movedim(2, 0)
    if leads == 1:
        return parts
    whole = parts.mean(0, keepdim=True) if mean else parts.sum(0, keepdim=True)
    return torch.cat([whole, parts])


def group_rows(columns: Columns) -> list[dict[str, Any]]:
    """Every group: its words, and the places of its columns and of their quadrature partners.

    A group ``replaces`` the source by as much as its weights say; repairs are the source, moved a
    little, so that large weights on them take nothing of it away.
    """
    rows = []
    for name, places in columns.groups().items():
        title, note = group_name(name)
        shifted = [place for place in places if columns.labels[place].startswith(PARTNER)]
        own = [place for place in places if place not in shifted]
        row = {"name": name, "title": title, "note": note, "own": own, "shifted": shifted}
        rows.append({**row, "replaces": name != REPAIR})
    return rows


def weight_tables(columns: Columns) -> list[dict[str, Any]]:
    """A table of places for each group: members by depths for repairs, a row per column else.

    A place that is None is an empty field.
    """
    tables = []
    for name in columns.groups():
        rows = _repair_rows(columns) if name == REPAIR else _rows(columns, name)
        heads = [f"depth {d}" for d in columns.depths] if name == REPAIR else ["weight", _SHIFTED]
        if all(row["places"][-1] is None for row in rows):  # no partners
            heads = heads[:1]
            rows = [{**row, "places": row["places"][:1]} for row in rows]
        tables.append({"title": group_name(name)[0], "heads": heads, "rows": rows})
    return tables


def _repair_rows(columns: Columns) -> list[dict[str, Any]]:
    """A row per member, and one for its quadrature partners where it has some."""
    rows = []
    for member in range(columns.members):
        for before, words in (("", ""), (PARTNER, f", {_SHIFTED}")):
            labels = [before + repair_label(member, depth) for depth in columns.depths]
            places = [columns.place(label) for label in labels]
            if any(place is not None for place in places):
                rows.append({"name": f"member {member + 1}{words}", "places": places})
    return rows


def _rows(columns: Columns, group: str) -> list[dict[str, Any]]:
    """A row per forecast: its column, and its partner's."""
    labels = [
        label
        for label in columns.labels
        if group_of(label) == group and not label.startswith(PARTNER)
    ]
    return [
        {"name": _column(label), "places": [columns.place(label), columns.place(PARTNER + label)]}
        for label in labels
    ]


def _column(label: str) -> str:
    """A column in words."""
    group, _, which = label.partition(":")
    if group == "recall":
        return "last frame" if which == "1" else named(label).removeprefix("the ")
    return "the source, taken away" if group == BASE else which or label
