"""RMSE, MAE, relative L2 and R² as sums over windows that can be merged.

As everywhere inside this package, a window is its error e = p - y and its target y in float64,
both zero where nothing was measured, with channels before frames: a channel is then one block of
memory. Grids of one, two and three dimensions are alike here.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Field = Float[Tensor, "channel time *space"]
FieldMask = Bool[Tensor, "channel time *space"]
Batch = Float[Tensor, "batch channel time *space"]
BatchMask = Bool[Tensor, "batch channel time *space"]

_CANCELLED = 1e-4  # Σ (y - ȳ)² / Σ y² below which their difference is not trusted


class PointwiseSums(NamedTuple):
    """What one pass keeps for the point-wise metrics; its size does not depend on the windows.

    ``spread`` is about the mean of the windows seen so far and is merged after Chan, so R² keeps
    its digits when the target is large next to its variation. ``visits`` holds how many windows
    measured each point: one number as long as there was no mask, else one per point.
    """

    windows: Float[Tensor, ""]  # windows with at least one measured point
    points: Float[Tensor, ""]  # measured points
    squared: Float[Tensor, ""]  # Σ e²
    absolute: Float[Tensor, ""]  # Σ |e|
    energy: Float[Tensor, ""]  # Σ y²
    relative: Float[Tensor, ""]  # Σ over windows of ‖e‖ / ‖y‖
    visits: Float[Tensor, "..."]
    mean: Float[Tensor, "channel time *space"]  # ȳ, over windows
    spread: Float[Tensor, ""]  # Σ (y - ȳ)²

    def merge(self, other: "PointwiseSums") -> "PointwiseSums":
        """The sums of both sets of windows.

        With δ the difference of the means, n = n₁ + n₂, ȳ = ȳ₁ + (n₂/n) δ and
        S = S₁ + S₂ + Σ (n₁ n₂/n) δ².
        """
        visits = self.visits + other.visits
        share = other.visits / visits.clamp(min=1)
        difference = other.mean - self.mean
        between = (share * self.visits * difference.square()).sum()
        added = PointwiseSums(*(a + b for a, b in zip(self, other, strict=True)))
        mean = self.mean + share * difference
        return added._replace(mean=mean, spread=added.spread + between)


class PointwisePass:
    """Adds up the windows of a batch, one at a time; ``scratch`` is memory it may overwrite."""

    def __init__(self, scratch: Field) -> None:
        self._scratch = scratch
        self._total = torch.zeros_like(scratch)  # Σ y over windows
        self._visits = scratch.new_zeros(())
        self._terms: list[Tensor] = []  # of each window: points, Σ e², Σ |e|, Σ y²

    def add(self, error: Field, target: Field, mask: FieldMask | None) -> None:
        """Add one window; ``mask`` is True where measured."""
        points = error.new_tensor(error.numel()) if mask is None else mask.sum().to(error)
        absolute = torch.abs(error, out=self._scratch).sum()
        self._terms.append(
            torch.stack([points, _square_norm(error), absolute, _square_norm(target)])
        )
        self._total += target
        self._visits = self._visits + (1 if mask is None else mask)

    def sums(self) -> PointwiseSums:
        """The sums of all windows added, with Σ (y - ȳ)² as Σ y² - Σ_points visits · ȳ².

        That difference loses digits where ȳ² is large; see :func:`exact_spread`.
        """
        points, squared, absolute, energy = torch.stack(self._terms, dim=1)
        seen = points > 0
        mean = self._total / self._visits.clamp(min=1)
        return PointwiseSums(
            windows=seen.sum().to(points),
            points=points.sum(),
            squared=squared.sum(),
            absolute=absolute.sum(),
            energy=energy.sum(),
            relative=torch.where(seen, (squared / energy).sqrt(), 0.0).sum(),
            visits=self._visits,
            mean=mean,
            spread=energy.sum() - (self._visits * mean.square()).sum(),
        )


def cancelled(sums: PointwiseSums) -> Bool[Tensor, ""]:
    """Whether ``spread`` has few digits, so that :func:`exact_spread` is needed."""
    return ~(sums.spread > _CANCELLED * sums.energy)


def exact_spread(sums: PointwiseSums, target: Batch, mask: BatchMask | None) -> PointwiseSums:
    """Replace ``spread`` by a second pass over the windows of a batch."""
    spread = torch.zeros_like(sums.spread)
    for number, window in enumerate(target):
        difference = window - sums.mean
        if mask is not None:
            difference.masked_fill_(~mask[number], 0.0)
        spread += _square_norm(difference)
    return sums._replace(spread=spread)


def _square_norm(values: Field) -> Float[Tensor, ""]:
    """‖·‖² by a dot product, which needs no temporary field."""
    return torch.dot(values.flatten(), values.flatten())


def compute_pointwise(sums: PointwiseSums) -> dict[str, Tensor]:
    """Finish the point-wise metrics.

    With sums over windows, frames, grid and measured channels, N points and n windows,

        rmse = √(Σ e² / N),  mae = Σ |e| / N,  rel_l2 = (1/n) Σ_windows ‖e‖ / ‖y‖,
        r2 = 1 - Σ e² / Σ (y - ȳ)²,

    ȳ being the mean over windows at each point. One window has no spread: r2 is -inf, or NaN
    when the error vanishes too. A target that is zero throughout a window makes rel_l2 infinite.
    """
    return {
        "rmse": (sums.squared / sums.points).sqrt(),
        "mae": sums.absolute / sums.points,
        "rel_l2": sums.relative / sums.windows,
        "r2": 1 - sums.squared / sums.spread,
    }
