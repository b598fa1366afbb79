"""How steep a forecast is at each point, against what it usually is there (M14).

Structures of a flow are forecast a little off their place, so where a forecast is steep its error
is large. φ is the mean of |∇u| over a box around a point, the slope being that of central
differences per grid step. With φ̄, its mean over the windows that calibrate,

    m = ((φ + ε) / (φ̄ + ε))^β

widens the band where a window is steeper than usual and narrows it where it is flatter. ε is a
share of the channel's mean, so that places where nothing happens have no say. β is the exponent
under which held-out residuals are most likely (Laplace); 0 leaves the bands the same for every
window.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from r2no._repr import brief_repr
from r2no.ensemble.scale import Map, Maps

#: Half-widths of the box, in frames and grid points.
_BOX = (1, 2, 2)
#: ε, in shares of the mean of a channel.
_FLOOR = 0.05
#: Exponents that are tried.
_EXPONENTS = (0.25, 0.5, 0.75, 1.0)


def steepness(
    forecast: Float[Tensor, "batch time height width channel"],
) -> Float[Tensor, "batch time height width channel"]:
    """Box means of |∇u|; the boxes hold less at an edge, the same for every forecast."""
    found = _slope(forecast, 2).hypot_(_slope(forecast, 3))  # whose squares may be beyond float32
    for axis, wanted in enumerate(_BOX, 1):
        found = _box(found, axis, min(wanted, (forecast.shape[axis] - 1) // 2))
    return found


def _box(values: Tensor, axis: int, reach: int) -> Tensor:
    """Means over neighbours along an axis, with zeros beyond the edge."""
    size, total = values.shape[axis], values.clone()
    for step in range(1, reach + 1):  # sums of shifted fields: faster than pooling on a CPU
        total.narrow(axis, step, size - step).add_(values.narrow(axis, 0, size - step))
        total.narrow(axis, 0, size - step).add_(values.narrow(axis, step, size - step))
    return total.div_(2 * reach + 1)


def _slope(field: Tensor, axis: int) -> Tensor:
    """Central differences per grid step, from the next point alone at an edge."""
    size = field.shape[axis]
    if size < 2:
        return torch.zeros_like(field)
    first = field.narrow(axis, 1, 1) - field.narrow(axis, 0, 1)
    last = field.narrow(axis, size - 1, 1) - field.narrow(axis, size - 2, 1)
    inner = (field.narrow(axis, 2, size - 2) - field.narrow(axis, 0, size - 2)) / 2
    return torch.cat([first, inner, last], axis)


def relative(found: Tensor, usual: Map, places: Tensor | None = None) -> Tensor:
    """(φ + ε)/(φ̄ + ε) of forecasts, or of values at some places of the map as one row.

    In a channel that never was steep nothing is usual; it is 1 there, by an ε beyond all values.
    """
    share = _FLOOR * usual.mean((0, 1, 2))
    floor = torch.where(share > 0, share, torch.finfo(usual.dtype).max / 4).expand_as(usual)
    if places is not None:
        usual, floor = usual.flatten()[places], floor.flatten()[places]
    tiny = torch.finfo(usual.dtype).tiny
    return (found + floor).clamp_min_(tiny).div_((usual + floor).clamp_min_(tiny))


def choose_exponent(scores: Sequence[Tensor], ratios: Sequence[Tensor]) -> float:
    """β, or 0 where none makes residuals likelier, from |r|/s and :func:`relative`.

    The size of Laplace's law is left free, since m need not be 1 on average.
    """
    score, log = torch.cat(list(scores)).double(), torch.cat(list(ratios)).double().log()
    known = score.isfinite()  # what has no scale tells nothing of m
    score, log = score[known], log[known]
    best, found = _surprise(score, 0 * log), 0.0
    for exponent in _EXPONENTS:
        surprise = _surprise(score, exponent * log)
        if surprise < best:
            best, found = surprise, exponent
    return found


def _surprise(score: Tensor, log: Tensor) -> float:
    """-log likelihood per residual, but for a constant."""
    if not len(score):
        return 0.0
    size = float((score / log.exp()).mean())
    return math.log(max(size, 1e-300)) + float(log.mean())


@dataclass(frozen=True, eq=False)
class Steepness:
    """φ of the windows that calibrate, as much as is kept of it.

    Attributes:
        totals: Σφ by place for each group of windows.
        windows: Their numbers, whether targets have gaps or not.
        sample: φ where the sizes of residuals are kept, in their order.
    """

    totals: Maps
    windows: Int[Tensor, " group"]
    sample: Float[Tensor, " sample"]

    __repr__ = brief_repr

    def usual(self, groups: Sequence[int]) -> Map:
        """φ̄ of some groups."""
        chosen = list(groups)
        usual: Map = self.totals[chosen].sum(0) / self.windows[chosen].sum().clamp_min(1)
        return usual

    def merge(self, other: "Steepness") -> "Steepness":
        """Of the groups of both."""
        return Steepness(
            torch.cat([self.totals, other.totals]),
            torch.cat([self.windows, other.windows]),
            torch.cat([self.sample, other.sample]),
        )
