"""The size of residuals by place, lead time and channel, pooled where data are few (M14).

From coarse to fine, each level starts from the one before and moves as far as its own means
justify,

    s_j = (Σ|r| + k_j s_{j-1}) / (n + k_j),

with sums over a box around the point, counted in windows. The pulls k_j are those under which
residuals of held-out groups are most likely (Laplace), k_j = ∞ leaving a level out.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import avg_pool3d

from r2no.ensemble.holdout import Fold

#: Half-widths in frames and grid points of the boxes, coarse to fine.
_BOXES = ((1, 16), (1, 8), (1, 4), (1, 2), (0, 1), (0, 0))
#: Pulls that are tried, in shares of the windows.
_PULLS = (0.1, 0.3, 1.0, 3.0, 10.0)
#: A scale below this share of its channel's is taken for this share.
_LEAST = 1e-6

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
