"""RMSE, MAE, relative L2 and R² as sums over windows that can be merged.

Every function takes the error e = p - y and the target y in float64, both zero where nothing was
measured, with channels before frames (as everywhere inside this package: a channel is then one
block of memory). Grids of one, two and three dimensions are alike here.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Field = Float[Tensor, "batch channel time *space"]
FieldMask = Bool[Tensor, "batch channel time *space"]


class PointwiseSums(NamedTuple):
    """What one pass keeps for the point-wise metrics; its size does not depend on the windows.

    ``mean`` and ``spread`` follow Welford and Chan, so R² keeps its digits when the target is
    large next to its variation. ``visits`` holds how many windows measured each point: one number
    as long as there was no mask, else one per point.
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

    def merge(self, other: "PointwiseSums", *, scratch: Tensor | None = None) -> "PointwiseSums":
        """The sums of both sets of windows.

        With ``scratch``, shaped like ``mean``, the result takes over the memory of ``self``.
        """
        visits, mean, spread = _merge_spread(self[-3:], other[-3:], scratch)
        return PointwiseSums(
            windows=self.windows + other.windows,
            points=self.points + other.points,
            squared=self.squared + other.squared,
            absolute=self.absolute + other.absolute,
            energy=self.energy + other.energy,
            relative=self.relative + other.relative,
            visits=visits,
            mean=mean,
            spread=spread,
        )


def _merge_spread(
    first: tuple[Tensor, Tensor, Tensor],
    second: tuple[Tensor, Tensor, Tensor],
    scratch: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge (visits, mean, spread), with δ the difference of the means.

    n = n₁ + n₂,  ȳ = ȳ₁ + (n₂/n) δ,  S = S₁ + S₂ + Σ (n₁ n₂/n) δ².
    """
    (visits, mean, spread), (other_visits, other_mean, other_spread) = first, second
    total = visits + other_visits
    share = other_visits / total.clamp(min=1)
    difference = torch.sub(other_mean, mean, out=scratch)
    if total.ndim == 0:  # no mask: the weight leaves the sum, and the sum is a dot product
        between = share * visits * torch.dot(difference.flatten(), difference.flatten())
        mean = torch.add(
            mean, difference, alpha=share.item(), out=None if scratch is None else mean
        )
    else:
        between = (share * visits * difference.square()).sum()
        mean = mean + share * difference
    return total, mean, spread + other_spread + between


def _square_norms(values: Field) -> Float[Tensor, " batch"]:
    """‖·‖² of each window, by dot products, which need no temporary field."""
    return torch.stack([torch.dot(row, row) for row in values.flatten(1)])


def pointwise_sums(
    error: Field,
    target: Field,
    mask: FieldMask | None = None,
    *,
    scratch: Field | None = None,
) -> PointwiseSums:
    """The sums of one batch; their ``mean`` may share memory with ``target``.

    Args:
        error: p - y in float64, zero where ``mask`` is False.
        target: y in float64, zero where ``mask`` is False.
        mask: True where measured; ``None`` means everywhere.
        scratch: memory to overwrite, so that a long stream does not ask for new pages.
    """
    squared, energy = _square_norms(error), _square_norms(target)
    if mask is None:
        measured = torch.full_like(squared, error[0].numel())
        visits = measured.new_full((), len(error))
        mean, spread = target[0], visits.new_zeros(())  # all there is to one window
        if len(error) > 1:
            mean = target.mean(0)
            spread = _square_norms(torch.sub(target, mean, out=scratch)).sum()
    else:
        measured = mask.flatten(1).sum(1).to(squared)
        visits = mask.sum(0).to(squared)
        mean = target.sum(0) / visits.clamp(min=1)
        spread = torch.where(mask, target - mean, 0.0).square().sum()
    seen = measured > 0
    return PointwiseSums(
        windows=seen.sum().to(squared),
        points=measured.sum(),
        squared=squared.sum(),
        absolute=torch.abs(error, out=scratch).sum(),
        energy=energy.sum(),
        relative=(squared / energy).sqrt()[seen].sum(),
        visits=visits,
        mean=mean,
        spread=spread,
    )


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
