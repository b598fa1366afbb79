"""What is done in each cell, and which group of columns does it, from the sums of the fit alone."""

import torch
from torch import Tensor

from r2no.ensemble import FittedEnsemble
from r2no.ensemble.ridge import quadratic_error


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
    gram, before = sums.gram[0], sums.energy[0]
    base = gram[..., -1, -1] if ensemble.columns.base else torch.full_like(before, torch.nan)
    moved = torch.stack([_energy(weights, gram, places) for places in groups.values()], -1)
    energies = (before, quadratic_error(sums.moments[0], weights), _energy(weights, gram), base)
    error, after, repair, source = (by_lead(values, leads) for values in energies)
    moved = by_lead(moved, leads)
    nothing = error <= 0
    return {
        "gain": torch.where(nothing, torch.nan, 1 - after / error.clamp_min(1e-300)),
        "change": torch.where(nothing | ~(source > 0), torch.nan, (repair / source).sqrt()),
        "share": torch.where(nothing, torch.nan, error / before.sum().clamp_min(1e-300)),
        "parts": moved / moved.sum(-1, keepdim=True),  # 0 / 0 where nothing is moved
    }


def _energy(weights: Tensor, gram: Tensor, places: list[int] | None = None) -> Tensor:
    """‖Σ_j w_j P_b c_j‖² by cell and channel, over all columns or some."""
    if places is not None:
        weights, gram = weights[..., places], gram[..., places, :][..., places]
    energy: Tensor = torch.einsum("bci,bcij,bcj->bc", weights, gram, weights).clamp_min(0)
    return energy


def by_lead(values: Tensor, leads: int, *, mean: bool = False) -> Tensor:
    """(cell, channel and lead time, ...) as (lead time, channel, cell, ...).

    With several groups of lead time, all of them together come first: their sum, or their mean.
    """
    parts: Tensor = values.unflatten(1, (-1, leads)).movedim(0, 1).movedim(2, 0)
    if leads == 1:
        return parts
    whole = parts.mean(0, keepdim=True) if mean else parts.sum(0, keepdim=True)
    return torch.cat([whole, parts])
