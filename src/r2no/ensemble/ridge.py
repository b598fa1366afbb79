"""Closed-form ridge solutions for many cells and many penalties at once (M7).

With G = V diag(s) Vᵀ, decomposed once per cell, every penalty λ costs two small products:

    w(λ) = V diag(1 / (s + λ tr(G)/J)) Vᵀ r.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from r2no._types import Number
from r2no.ensemble.gram import GramSums
from r2no.ensemble.holdout import Fold
from r2no.errors import ConfigError, EmptySplitError, NonFiniteError

#: The published grid of penalties (M7).
RIDGE_GRID = (1e-8, 1e-6, 1e-4, 1e-2, 1e-1, 1.0)


def ridge_path(
    moments: Float[Tensor, "*cells column_and_target column_and_target"], ridges: Sequence[Number]
) -> Float[Tensor, "ridge *cells_column"]:  # noqa: F821
    """Weights for every penalty, from one decomposition per cell.

    Rules instead of luck: a cell that is empty, or whose columns all vanish but for rounding, gets
    zero weights, i.e. keeps the source (:func:`_living`); eigenvalues that rounding made negative
    count as zero; and at λ = 0 directions below J·eps·s_max get no weight (the least-norm
    solution). λ = ∞ gives zero.
    """
    if any(ridge < 0 or ridge != ridge for ridge in ridges) or not ridges:
        raise ConfigError(f"`ridges` must be non-negative numbers, but got {tuple(ridges)}.")
    if not torch.isfinite(moments).all():
        raise NonFiniteError(
            "The Gram sums hold NaN or infinity: fields overflowed float64 when squared. "
            "Rescale the fields to sensible units."
        )
    size = moments.shape[-1] - 1
    lead = moments.shape[:-2]
    gram, rhs = (
        moments[..., :-1, :-1].reshape(-1, size, size),
        moments[..., :-1, -1].reshape(-1, size),
    )
    weights = gram.new_zeros(len(ridges), len(gram), size)
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    live = _living(moments[..., :-1, :-1], moments[..., -1, -1]).reshape(-1).nonzero().squeeze(1)
    if len(live):
        scale = trace[live]
        values, vectors = torch.linalg.eigh(gram[live] / scale[:, None, None])  # unit trace
        values = values.clamp_min(0)
        projected = torch.einsum("bji,bj->bi", vectors, rhs[live] / scale[:, None])
        cutoff = size * torch.finfo(gram.dtype).eps * values[:, -1:]
        for number, ridge in enumerate(ridges):
            shifted = values + ridge / size
            inverse = torch.where(shifted > cutoff, 1 / shifted, 0.0)
            weights[number, live] = torch.einsum("bij,bj->bi", vectors, inverse * projected)
    return weights.reshape(len(ridges), *lead, size)


def _living(
    gram: Float[Tensor, "*cells column column"],
    energy: Float[Tensor, "*cells"] | None = None,
) -> Bool[Tensor, "*cells"]:
    """Cells whose columns are more than the rounding of fields in float32.

    Rounding spreads evenly over the wavenumbers, in proportion to the field: a column that is all
    rounding has about ε² of the mean energy per cell, counted by the largest column or, if that is
    larger, the residual of the target. Weights for it would be large and mean nothing.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1)
    largest = squares.amax(-1)
    if energy is not None:
        largest = torch.maximum(largest, energy)
    return squares.mean(-1) > _rounding(largest)


def _rounding(largest: Float[Tensor, "*cells"]) -> Float[Tensor, "*cells"]:
    """Energy that rounding of fields in float32 brings into a cell, from the largest there is."""
    relative = (2 * torch.finfo(torch.float32).eps) ** 2
    return relative * largest.mean(0, keepdim=True).expand_as(largest)


def ridge_scores(
    sums: GramSums, judged: GramSums, folds: Sequence[Fold], ridges: Sequence[float]
) -> dict[float, float]:
    """Held-out error of each penalty: fitted on ``sums``, scored on ``judged``, over the folds."""
    if not folds:
        raise EmptySplitError(
            "`ridge='auto'` needs windows to hold out, but there are too few to part them "
            "into two blocks with a gap. Give more windows, or a number for `ridge`."
        )
    scores = torch.zeros(len(ridges), dtype=torch.float64)
    for fit_groups, score_groups in folds:
        path = ridge_path(sums.total(fit_groups).moments[0], ridges)
        scores += quadratic_error(judged.total(score_groups).moments, path).flatten(1).sum(1)
    return dict(zip(ridges, scores.tolist(), strict=True))


def scaled_ridge(
    gram: Float[Tensor, "*cells column column"],
    rhs: Float[Tensor, "*cells column side"],
    ridges: Sequence[Number],
) -> Float[Tensor, "*cells column ridge side"]:
    """(G + λ diag(G))⁻¹ r for every positive penalty, by a Cholesky factor each.

    The penalty is in proportion to each column's own energy, so the solution does not depend on
    the columns' units or sizes. A column that is nothing but rounding in a cell gets no weight
    there. Several right-hand sides share the factor; λ = ∞ gives zero.
    """
    if any(not ridge > 0 for ridge in ridges) or not ridges:
        raise ConfigError(f"`ridges` must be positive numbers, but got {tuple(ridges)}.")
    weights = rhs.new_zeros(*rhs.shape[:-1], len(ridges), rhs.shape[-1])
    energy = gram.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(energy > _rounding(energy.amax(-1))[..., None], energy.rsqrt(), 0.0)
    unit = gram * scale[..., :, None]
    unit *= scale[..., None, :]
    diagonal, own = unit.diagonal(dim1=-2, dim2=-1), unit.diagonal(dim1=-2, dim2=-1).clone()
    sides = rhs * scale[..., None]
    for number, ridge in enumerate(ridges):
        if ridge == float("inf"):
            continue  # zero weights
        torch.add(own, ridge, out=diagonal)
        solution = torch.cholesky_solve(sides, torch.linalg.cholesky(unit))
        torch.mul(solution, scale[..., None], out=weights[..., number, :])
    return weights


def quadratic_error(
    moments: Float[Tensor, "*#cells column_and_target column_and_target"],
    weights: Float[Tensor, "*#cells column"],
) -> Float[Tensor, "*all_cells"]:
    """‖P_b(y - h_0) - Σ_j w_j P_b c_j‖² = ‖P_b(y - h_0)‖² - 2 w·r + wᵀGw of each cell.

    Cells broadcast, so one weight vector can be scored on many cells or groups.
    """
    extended = torch.cat([-weights, torch.ones_like(weights[..., :1])], dim=-1)
    return torch.einsum("...i,...ij,...j->...", extended, moments, extended)
