"""RMSE, MAE, relative L2 and R² as sums over windows that can be merged.

As everywhere inside this package, a window is its error e = p - y and its target y, both zero where
nothing was measured, in float32 or float64; sums are float64. Both are taken as a part that is
steady over time and the rest, which changes: that keeps the digits of small changes beside a large
mean. Grids of one, two and three dimensions are alike here.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Field = Float[Tensor, "time *space channel"]
FieldMask = Bool[Tensor, "time *space channel"]
Steady = Float[Tensor, "*space channel"]
Batch = Float[Tensor, "batch time *space channel"]
BatchMask = Bool[Tensor, "batch time *space channel"]

_CANCELLED = 1e-7  # Σ (y - ȳ)² / Σ y² below which the rounding of means over time counts
_ALIKE = 0.03  # Σ (y - ȳ)² / Σ y² of what changes over time below which it is not trusted


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


class TargetSums(NamedTuple):
    """What the sums of any forecast need of the target; ``points`` and ``energy`` per window."""

    points: Float[Tensor, " window"]
    energy: Float[Tensor, " window"]
    visits: Float[Tensor, "..."]
    mean: Float[Tensor, "channel time *space"]
    spread: Float[Tensor, ""]
    changing: Float[Tensor, ""]  # Σ of the squares of that part


class TargetPass:
    """Adds up the targets of a batch, one window at a time."""

    def __init__(self, like: Field) -> None:
        self._changing = torch.zeros_like(like)  # Σ of that part over windows
        self._steady: list[Tensor] = []  # of each window
        self._center = like.new_zeros(like.shape[1:], dtype=torch.float64)  # Σ of these
        self._visits = like.new_zeros(())
        self._terms: list[Tensor] = []  # of each window: points, Σ of both parts' squares

    def add(self, changing: Field, steady: Steady, mask: FieldMask | None) -> None:
        """Add one window, the sum of both; ``mask`` is True where measured."""
        norms = square_norm(changing), square_norm(steady) * len(changing)
        points = norms[0].new_tensor(changing.numel()) if mask is None else mask.sum().double()
        self._terms.append(torch.stack([points, *norms]))
        self._changing += changing
        self._steady.append(steady)
        self._center += steady
        self._visits = self._visits + (1 if mask is None else mask)

    def sums(self) -> TargetSums:
        """The sums of all windows added.

        Σ (y - ȳ)² is taken apart too: Σ y² - Σ_points visits · ȳ² for the changing part, which may
        lose digits (see :func:`exact_spread`), and directly for the steady one, the larger.
        """
        points, changing, steady = torch.stack(self._terms, dim=1)
        mean = self._changing / self._visits.clamp(min=1)
        within = changing.sum() - square_norm(mean * self._visits.sqrt())
        center = self._center / len(points)
        rounded = center.to(mean)  # Σ (m - m̄)² = Σ (m - r)² - n (m̄ - r)² for any r
        apart = [square_norm(steady - rounded) for steady in self._steady]
        between = len(mean) * (sum(apart) - len(apart) * square_norm(center - rounded))
        return TargetSums(
            points=points,
            energy=changing + steady,
            visits=_channels_first(self._visits.double()),
            mean=_channels_first(mean + center),
            spread=within + between,
            changing=changing.sum(),
        )


class ErrorPass:
    """Adds up the errors of a batch, one window at a time."""

    def __init__(self) -> None:
        self._terms: list[Tensor] = []  # of each window: Σ of both parts' squares, Σ |e|

    def add(self, changing: Field, steady: Steady, absolute: Float[Tensor, ""]) -> None:
        """Add one window, the sum of both parts; ``absolute`` is Σ |e|."""
        norms = square_norm(changing), square_norm(steady) * len(changing)
        self._terms.append(torch.stack([*norms, absolute]))

    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Σ e² of each window, that of the changing part over all, and Σ |e| of each window."""
        changing, steady, absolute = torch.stack(self._terms, dim=1)
        return changing + steady, changing.sum(), absolute


def cancelled(sums: TargetSums) -> Bool[Tensor, ""]:
    """Whether ``spread`` has few digits, so that :func:`exact_spread` is needed."""
    enough = torch.maximum(_ALIKE * sums.changing, _CANCELLED * sums.energy.sum())
    return ~(sums.spread > enough)


def exact_spread(sums: TargetSums, target: Batch, mask: BatchMask | None) -> TargetSums:
    """Replace ``spread`` by a second pass over the windows of a batch."""
    mean = sums.mean.movedim(0, -1)
    spread = torch.zeros_like(sums.spread)
    for number, window in enumerate(target if len(target) > 1 else ()):  # one has none
        difference = window - mean
        if mask is not None:
            difference.masked_fill_(~mask[number], 0.0)
        spread += square_norm(difference)
    return sums._replace(spread=spread)


def pointwise_sums(
    target: TargetSums, squared: Float[Tensor, " window"], absolute: Float[Tensor, " window"]
) -> PointwiseSums:
    """The sums of a batch, from Σ e² and Σ |e| of each window."""
    seen = target.points > 0
    return PointwiseSums(
        windows=seen.sum().to(squared),
        points=target.points.sum(),
        squared=squared.sum(),
        absolute=absolute.sum(),
        energy=target.energy.sum(),
        relative=torch.where(seen, (squared / target.energy).sqrt(), 0.0).sum(),
        visits=target.visits,
        mean=target.mean,
        spread=target.spread,
    )


def square_norm(values: Float[Tensor, "*axes line channel"]) -> Float[Tensor, ""]:
    """‖·‖² by norms of lines, which need no temporary field and are short enough for float32."""
    norms: Tensor = torch.linalg.vector_norm(values.flatten(-2), dim=-1)
    return norms.double().square_().sum()


def time_mean(values: Field) -> Steady:
    """The mean over time, by a product, which is faster than a sum over the first axis."""
    weights = values.new_full((1, len(values)), 1 / len(values))
    return torch.mm(weights, values.flatten(1)).view(values.shape[1:])


def absolute_sum(values: Field, scratch: Field) -> Float[Tensor, ""]:
    """Σ |·|; ``scratch`` is memory to overwrite."""
    return torch.abs(values, out=scratch).flatten(1).sum(1).sum(dtype=torch.float64)


def _channels_first(values: Tensor) -> Tensor:
    return values.movedim(-1, 0) if values.ndim else values


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
