"""RMSE, MAE, relative L2 and R² as sums over windows that can be merged.

As everywhere inside this package, windows are their errors e = p - y and their targets y, both zero
where nothing was measured, in float32 or float64; sums are float64. Both are taken as a part that
is steady over time and the rest, which changes: that keeps the digits of small changes beside a
large mean. Grids of one, two and three dimensions are alike here.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Windows = Float[Tensor, "window channel time *space"]
WindowMask = Bool[Tensor, "window channel time *space"]
Steady = Float[Tensor, "window channel *space"]

_CANCELLED = 1e-7  # Σ (y - ȳ)² / Σ y² below which the rounding of means over time counts
_ALIKE = 0.03  # Σ (y - ȳ)² / Σ y² of what changes over time below which it is not trusted


class PointwiseSums(NamedTuple):
    """What one pass keeps for the point-wise metrics beside the :class:`Spread` of the targets."""

    windows: Float[Tensor, ""]  # windows with at least one measured point
    points: Float[Tensor, ""]  # measured points
    squared: Float[Tensor, ""]  # Σ e²
    absolute: Float[Tensor, ""]  # Σ |e|
    energy: Float[Tensor, ""]  # Σ y²
    relative: Float[Tensor, ""]  # Σ over windows of ‖e‖ / ‖y‖

    def merge(self, other: "PointwiseSums") -> "PointwiseSums":
        """The sums of both sets of windows."""
        return PointwiseSums(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, eq=False)
class Spread:
    """Σ (y - ȳ)² about the mean ȳ of the windows seen so far; its size does not depend on them.

    It is merged after Chan, so R² keeps its digits when the target is large next to its variation.
    ``visits`` holds how many windows measured each point: one number as long as there was no mask,
    else one per point. Forecasts of the same windows share it, and share what is merged.
    """

    visits: Float[Tensor, "..."]
    mean: Float[Tensor, "channel time *space"]  # ȳ, over windows
    total: Float[Tensor, ""]  # Σ (y - ȳ)²
    _joined: list[tuple["Spread", "Spread"]] = field(default_factory=list, init=False, repr=False)

    def merge(self, other: "Spread") -> "Spread":
        """That of both sets of windows, made once for any number of forecasts.

        With δ the difference of the means, n = n₁ + n₂, ȳ = ȳ₁ + (n₂/n) δ and
        S = S₁ + S₂ + Σ (n₁ n₂/n) δ².
        """
        for before, both in other._joined:
            if before is self:
                return both
        visits = self.visits + other.visits
        share = other.visits / visits.clamp(min=1)
        difference = other.mean - self.mean
        between = _weighted_square_norm(difference, share * self.visits)
        mean = torch.addcmul(self.mean, share, difference)
        both = Spread(visits, mean, self.total + other.total + between)
        other._joined[:] = [(self, both)]
        return both


class TargetSums(NamedTuple):
    """What the sums of any forecast need of the target; ``points`` and ``energy`` per window."""

    points: Float[Tensor, " window"]
    energy: Float[Tensor, " window"]
    changing: Float[Tensor, ""]  # Σ of the squares of that part
    spread: Spread


class TargetPass:
    """Adds up the targets of a batch, some windows at a time."""

    def __init__(self, like: Float[Tensor, "channel time *space"]) -> None:
        self._changing = torch.zeros_like(like)  # Σ of that part over windows
        self._norms: list[Tensor] = []  # of the lines of what changes
        self._seen: list[Tensor] = []  # how many windows measured each point, with a mask
        self._points: list[Tensor] = []  # measured of each window, with a mask

    def add(self, changing: Windows, mask: Windows | None) -> None:
        """Add what changes of windows; ``mask`` is 1 where measured, else 0."""
        self._norms.append(line_norms(changing))
        self._changing += _over_windows(changing)
        if mask is not None:
            self._seen[:] = [sum(self._seen, _over_windows(mask).double())]
            self._points.append(mask.flatten(1).sum(1).double())

    def sums(self, steady: Steady) -> TargetSums:
        """The sums of all windows added, of which ``steady`` is the rest.

        Σ (y - ȳ)² is taken apart too: Σ y² - Σ_points visits · ȳ² for the changing part, which may
        lose digits (see :func:`exact_spread`), and directly for the steady one, the larger.
        """
        changing, frames = squares(self._norms), self._changing.shape[1]
        visits = changing.new_full((), len(changing))
        points = torch.full_like(changing, self._changing.numel())
        if self._seen:
            visits, points = self._seen[0], torch.cat(self._points)
        mean = (self._changing / visits.clamp(min=1)).to(self._changing)
        within = changing.sum() - _weighted_square_norm(mean, visits)
        center = steady.mean(0, dtype=torch.float64)
        rounded = center.to(mean)  # Σ (m - m̄)² = Σ (m - r)² - n (m̄ - r)² for any r
        between = frames * (
            square_norm(steady - rounded) - len(steady) * square_norm(center - rounded)
        )
        return TargetSums(
            points=points,
            energy=changing + frames * squares([line_norms(steady)]),
            changing=changing.sum(),
            spread=Spread(visits, mean + center[:, None], within + between),
        )


def _over_windows(values: Windows) -> Float[Tensor, "channel time *space"]:
    return values[0] if len(values) == 1 else values.sum(0)


class ErrorPass:
    """Adds up the errors of a batch, some windows at a time."""

    def __init__(self) -> None:
        self._changing: list[Tensor] = []  # norms of lines
        self._steady: list[Tensor] = []
        self._absolute: list[Tensor] = []  # Σ |e| of frames
        self._frames = 0

    def add(
        self, changing: Windows, steady: Steady, absolute: Float[Tensor, "window frame"]
    ) -> None:
        """Add windows, the sums of both parts; ``absolute`` is Σ |e| of each frame."""
        self._frames = changing.shape[2]
        self._changing.append(line_norms(changing))
        self._steady.append(line_norms(steady))
        self._absolute.append(absolute)

    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Σ e² of each window, that of the changing part over all, and Σ |e| of each window."""
        changing, steady = squares(self._changing), squares(self._steady)
        absolute = torch.cat(self._absolute).sum(1, dtype=torch.float64)
        return changing + self._frames * steady, changing.sum(), absolute


def cancelled(sums: TargetSums) -> Bool[Tensor, ""]:
    """Whether the spread has few digits, so that :func:`exact_spread` is needed."""
    enough = torch.maximum(_ALIKE * sums.changing, _CANCELLED * sums.energy.sum())
    return ~(sums.spread.total > enough)


def exact_spread(sums: TargetSums, target: Windows, mask: WindowMask | None) -> TargetSums:
    """Replace the spread by a second pass over the windows of a batch."""
    total = torch.zeros_like(sums.spread.total)
    for number, window in enumerate(target if len(target) > 1 else ()):  # one has none
        difference = window - sums.spread.mean
        if mask is not None:
            difference.masked_fill_(~mask[number], 0.0)
        total += square_norm(difference)
    return sums._replace(spread=Spread(sums.spread.visits, sums.spread.mean, total))


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
    )


def line_norms(values: Float[Tensor, "window *axes line"]) -> Float[Tensor, "window axes"]:
    """Norms of lines, which need no temporary field and are short enough for float32."""
    norms: Tensor = torch.linalg.vector_norm(values, dim=-1)
    return norms.view(len(values), -1)


def squares(norms: list[Float[Tensor, "_ line"]]) -> Float[Tensor, " window"]:
    """Σ of the squares of the lines of each window."""
    return torch.cat(norms).double().square_().sum(1)


def square_norm(values: Float[Tensor, "*axes line"]) -> Float[Tensor, ""]:
    """‖·‖²."""
    return squares([line_norms(values[None])]).sum()


def _weighted_square_norm(values: Tensor, weights: Tensor) -> Float[Tensor, ""]:
    """Σ w |·|², the weights being one number or one per value."""
    if not weights.ndim:
        return weights * square_norm(values)
    return square_norm(values * weights.sqrt())


def time_mean(values: Windows, *, out: Tensor | None = None) -> Steady:
    """The mean over time, by a product, which is faster than a sum."""
    windows, channels, frames, *space = values.shape
    weights = _mean_weights(frames, values.dtype, values.device)
    fields = values.reshape(windows * channels, frames, -1)
    place = None if out is None else out.view(len(fields), 1, -1)
    means = torch.bmm(weights.expand(len(fields), -1, -1), fields, out=place)
    return means.view(windows, channels, *space)


@lru_cache(maxsize=32)
def _mean_weights(frames: int, kind: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((1, 1, frames), 1 / frames, dtype=kind, device=device)


def absolute_sums(values: Windows, scratch: Windows) -> Float[Tensor, "window frame"]:
    """Σ |·| of each frame; ``scratch`` is memory to overwrite."""
    return torch.abs(values, out=scratch).flatten(3).sum(3).flatten(1)


def compute_pointwise(sums: PointwiseSums, spread: Spread) -> dict[str, Tensor]:
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
        "r2": 1 - sums.squared / spread.total,
    }
