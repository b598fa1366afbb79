"""The size of residuals by place, lead time and channel, and by the steepness of a forecast (M14).

By place, pooled where data are few: from coarse to fine, each level starts from the one before and
moves as far as its own means justify,

    s_j = (Σ|r| + k_j s_{j-1}) / (n + k_j),

with sums over a box around the point, counted in windows. The pulls k_j are those under which
residuals of held-out groups are most likely (Laplace), k_j = ∞ leaving a level out.

By steepness, against what it usually is there: structures of a flow are forecast a little off their
place, so where a forecast is steep its error is large. φ is the mean of |∇u| over a box around a
point, the slope being that of central differences per grid step. With φ̄, its mean over the windows
that calibrate,

    m = ((φ + ε) / (φ̄ + ε))^β

widens the band where a window is steeper than usual and narrows it where it is flatter. ε is a
share of the channel's mean, so that places where nothing happens have no say. β is the exponent
under which held-out residuals are most likely (Laplace); 0 leaves the bands the same for every
window.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import avg_pool3d

from r2no._repr import brief_repr
from r2no.ensemble.holdout import Fold

#: Half-widths in frames and grid points of the boxes, coarse to fine.
_BOXES = ((1, 16), (1, 8), (1, 4), (1, 2), (0, 1), (0, 0))
#: Pulls that are tried, in shares of the windows.
_PULLS = (0.1, 0.3, 1.0, 3.0, 10.0)
#: A scale below this share of its channel's is taken for this share.
_LEAST = 1e-6
#: Half-widths of the box that slopes are averaged over, in frames and grid points.
_BOX = (1, 2, 2)
#: ε, in shares of the mean of a channel.
_FLOOR = 0.05
#: Exponents that are tried.
_EXPONENTS = (0.25, 0.5, 0.75, 1.0)

Map = Float[Tensor, "time height width channel"]
Maps = Float[Tensor, "group time height width channel"]


def pooled_scale(total: Map, count: Map, pulls: Sequence[float]) -> Map:
    """The scale from sums of |r| and numbers of residuals; NaN in a channel without any."""
    scale = _coarsest(total, count)
    for (sizes, windows), pull in zip(_levels(total, count), pulls, strict=True):
        if math.isfinite(pull):
            scale = (sizes + pull * scale) / (windows + pull)
    return scale.clamp_min(_LEAST * _coarsest(total, count))


def choose_pulls(totals: Maps, counts: Maps, folds: Sequence[Fold]) -> tuple[float, ...]:
    """The pull of every level, in windows, one after the other, by what is held out."""
    fitted = [_of(fit, totals, counts) for fit, _ in folds]
    scored = [_of(score, totals, counts) for _, score in folds]
    scales = [_coarsest(*sums) for sums in fitted]
    windows = sum(float(number.mean()) for _, number in fitted) / len(fitted)
    best, pulls = _surprise(scales, scored), []
    for levels in zip(*(_levels(*sums) for sums in fitted), strict=True):
        found, chosen = math.inf, scales
        for share in _PULLS:
            pull = share * windows
            tried = [
                (sizes + pull * scale) / (number + pull)
                for (sizes, number), scale in zip(levels, scales, strict=True)
            ]
            surprise = _surprise(tried, scored)
            if surprise < best:
                best, found, chosen = surprise, pull, tried
        scales = chosen
        pulls.append(found)
    return tuple(pulls)


def _of(groups: Sequence[int], totals: Maps, counts: Maps) -> tuple[Map, Map]:
    """Sums over some groups."""
    return totals[list(groups)].sum(0), counts[list(groups)].sum(0)


def _coarsest(total: Map, count: Map) -> Map:
    """One number per channel."""
    return (total.sum((0, 1, 2)) / count.sum((0, 1, 2))).expand_as(total)


def _levels(total: Map, count: Map) -> Iterator[tuple[Map, Map]]:
    """Means over ever smaller surroundings: a frame, then boxes, down to the point itself."""
    yield total.mean((1, 2), keepdim=True), count.mean((1, 2), keepdim=True)
    for frames, points in _BOXES:
        yield _box(total, frames, points), _box(count, frames, points)


def _box(values: Map, frames: int, points: int) -> Map:
    """Means over boxes; zeros beyond the edge, which cancel between sums and counts."""
    wanted = (frames, points, points)
    reach = [min(w, (n - 1) // 2) for w, n in zip(wanted, values.shape[:3], strict=True)]
    found = values.movedim(-1, 0)[:, None]
    for axis, part in enumerate(reach):  # one axis after the other: a box is their product
        if part:
            along = [part if axis == other else 0 for other in range(3)]
            found = avg_pool3d(found, [2 * n + 1 for n in along], 1, along)
    return found[:, 0].movedim(0, -1)


def _surprise(scales: Sequence[Map], scored: Sequence[tuple[Map, Map]]) -> float:
    """-log likelihood of held-out residuals of these scales, if they were Laplacian."""
    total = 0.0
    for scale, (sizes, number) in zip(scales, scored, strict=True):
        safe = scale.clamp_min(torch.finfo(scale.dtype).tiny)
        total += float((number * safe.log() + sizes / safe)[number > 0].sum())
    return total


def steepness(
    forecast: Float[Tensor, "batch time height width channel"],
) -> Float[Tensor, "batch time height width channel"]:
    """Box means of |∇u|; the boxes hold less at an edge, the same for every forecast."""
    found = _slope(forecast, 2).hypot_(_slope(forecast, 3))  # whose squares may be beyond float32
    for axis, wanted in enumerate(_BOX, 1):
        found = _along(found, axis, min(wanted, (forecast.shape[axis] - 1) // 2))
    return found


def _along(values: Tensor, axis: int, reach: int) -> Tensor:
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
    best, found = _surprise_at_any_size(score, 0 * log), 0.0
    for exponent in _EXPONENTS:
        surprise = _surprise_at_any_size(score, exponent * log)
        if surprise < best:
            best, found = surprise, exponent
    return found


def _surprise_at_any_size(score: Tensor, log: Tensor) -> float:
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
