"""Scores of bands: how often they hold, how wide they are, and both in one number.

For a band [l, u] of coverage p = 1 - a around a value y

- coverage: the share of values with l <= y <= u;
- width: the mean of u - l;
- interval score: the mean of u - l + 2/a (l - y)₊ + 2/a (y - u)₊, lowest for the true quantiles;
- CRPS of the distribution that the bands imply: ∫ a/2 IS_a da, by the trapezoidal rule over the
  coverages at hand, with the mean absolute error of the middle at p = 0.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from r2no.errors import ConfigError, EmptySplitError, ShapeError

Bounds = Float[Tensor, "coverage batch time *space_channel"]

#: How far the edge reaches into the grid, as a share of each axis.
_EDGE = 1 / 8
_REGIONS = ("edge", "interior")


class BandScores:
    """Scores of bands over any number of windows in one pass and constant memory.

    Args:
        coverages: What the bands promise, increasing.
    """

    def __init__(self, coverages: Sequence[float]) -> None:
        self.coverages = tuple(float(one) for one in coverages)
        ordered = list(self.coverages) == sorted(set(self.coverages))
        if not self.coverages or not ordered or not 0 < self.coverages[0] <= self.coverages[-1] < 1:
            raise ConfigError(
                "`coverages` must be different numbers between 0 and 1 in increasing order, but "
                f"got {coverages}."
            )
        self._sums: Tensor | None = None  # inside, width, misses, middle, count by coverage, ...

    def __repr__(self) -> str:
        return f"BandScores({self.coverages})"

    @torch.no_grad()
    def update(
        self,
        lower: Bounds,
        upper: Bounds,
        target: Float[Tensor, "batch time *space_channel"],
        mask: Bool[Tensor, "batch time *space_channel"] | None = None,
    ) -> "BandScores":
        """Add a batch; values where ``mask`` is False do not count."""
        if lower.shape != upper.shape or tuple(lower.shape) != (len(self.coverages), *target.shape):
            raise ShapeError(
                f"Bounds must be (coverage, *target) = {(len(self.coverages), *target.shape)}, but "
                f"are {tuple(lower.shape)} and {tuple(upper.shape)}."
            )
        known = torch.ones_like(target, dtype=torch.bool) if mask is None else mask
        value = target.double().masked_fill(~known, 0.0)
        parts = [
            _parts(low.double(), high.double(), value)
            for low, high in zip(lower, upper, strict=True)
        ]
        sums = [torch.stack([_by_region(part, known) for part in each]) for each in parts]
        found = torch.stack(sums)  # coverage, kind, region, time, channel
        self._sums = found if self._sums is None else self._sums + found
        return self

    def merge(self, other: "BandScores") -> "BandScores":
        """Add the windows of ``other``, which is left as it is."""
        if self.coverages != other.coverages:
            raise ShapeError(f"`other` scores coverages {other.coverages}, not {self.coverages}.")
        if other._sums is not None:
            self._sums = other._sums.clone() if self._sums is None else self._sums + other._sums
        return self

    def compute(self) -> dict[str, Any]:
        """By coverage a row; the CRPS; and the share inside by region, lead time and channel."""
        if self._sums is None or not bool(self._sums[:, -1].any()):
            raise EmptySplitError("No value was scored. Give windows with measured values.")
        inside, width, misses, middle, count = self._sums.flatten(2).sum(2).T
        miss = 1 - torch.tensor(self.coverages, dtype=torch.float64)
        score = width / count + 2 / miss * misses / count
        columns = zip(self.coverages, inside / count, width / count, score, strict=True)
        names = ("nominal", "coverage", "width", "interval_score")
        curve = torch.cat([middle[:1] / count[:1], miss / 2 * score, miss.new_zeros(1)])
        places = torch.cat([miss.new_zeros(1), 1 - miss, miss.new_ones(1)])
        return {
            "rows": [dict(zip(names, map(float, row), strict=True)) for row in columns],
            "crps": float(torch.trapezoid(curve, places)),
            "by_region": dict(zip(_REGIONS, self._inside((2, 3)), strict=True)),
            "by_lead": self._inside((1, 3)),
            "by_channel": self._inside((1, 2)),
        }

    def _inside(self, over: tuple[int, ...]) -> list[list[float]]:
        """The share inside, by what is left of (region, time, channel), then by coverage."""
        assert self._sums is not None
        shares = self._sums[:, 0].sum(over) / self._sums[:, -1].sum(over)
        found: list[list[float]] = shares.T.tolist()
        return found


def _parts(lower: Tensor, upper: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Whether inside, width, how far beyond a bound, how far from the middle, and one, by point."""
    beyond = (lower - value).clamp_min(0) + (value - upper).clamp_min(0)
    middle = (value - (lower + upper) / 2).abs()
    return (beyond == 0).double(), upper - lower, beyond, middle, torch.ones_like(value)


def _by_region(part: Tensor, known: Tensor) -> Float[Tensor, "region time channel"]:
    """Sums over the windows and the points of edge and interior."""
    part = part.masked_fill(~known, 0.0).sum(0)  # time, *space, channel
    space = tuple(range(1, part.ndim - 1))
    total, inner = part.sum(space), part
    for axis in space:
        size = part.shape[axis]
        edge = max(int(size * _EDGE), 1)
        inner = inner.narrow(axis, edge, max(size - 2 * edge, 0))
    interior = inner.sum(space)
    return torch.stack([total - interior, interior])
