"""Flow diagnostics: kinetic energy of the fluctuations, wake probes, and the update ratio."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from r2no.errors import EmptySplitError, GridMismatchError, NonFiniteError, ShapeError
from r2no.metrics.pointwise import time_mean

_STATIONS, _PROBES_PER_SIDE = 4, 4


class KineticSums(NamedTuple):
    """Σ |k_p - k_y| and the number of grid points it is over."""

    kinetic: Float[Tensor, ""]
    points: Float[Tensor, ""]

    def merge(self, other: "KineticSums") -> "KineticSums":
        """The sums of both sets of windows."""
        return KineticSums(*(a + b for a, b in zip(self, other, strict=True)))


class KineticPass:
    """Adds up the windows of a batch, some at a time.

    With k = (var_t u + var_t v) / 2, population variances over the frames of a window,

        k_p - k_y = ½ Σ_{u,v} cov_t(p + y, p - y),

    which is exactly zero when p = y. Under a mask each variance is over the measured frames of its
    point, and a point counts when both components were measured there at least once. u and v are
    the first two channels; with fewer the sum is zero.
    """

    def __init__(self) -> None:
        self._differences: list[Tensor] = []  # k_p - k_y at each point
        self._seen: list[Tensor] = []  # points that count, with a mask

    def add(
        self,
        error: Float[Tensor, "window channel time height width"],
        target: Float[Tensor, "window channel time height width"],
        mask: Float[Tensor, "window channel time height width"] | None,
    ) -> None:
        """Add windows, overwriting ``target``; without a mask only what changes over time.

        ``mask`` is 1 where measured, else 0.
        """
        if error.shape[1] < 2:
            self._differences.append(error.new_zeros(error[:, 0, 0].shape))
            return
        error, both = error[:, :2], target[:, :2].add_(error[:, :2], alpha=0.5)  # (p + y) / 2
        if mask is None:
            covariances = time_mean(both.mul_(error))
            self._differences.append(covariances[:, 0] + covariances[:, 1])
            return
        sums = both.sum(2).mul_(error.sum(2))
        products = both.mul_(error).sum(2)
        frames = mask[:, :2].sum(2)
        seen = (frames > 0).all(1)
        frames.clamp_(min=1)
        covariances = ((products - sums / frames) / frames).sum(1)
        self._differences.append(torch.where(seen, covariances, 0.0))
        self._seen.append(seen.sum())

    def sums(self) -> KineticSums:
        """The sums of all windows added."""
        differences = torch.cat(self._differences)
        kinetic = differences.abs_().sum(dtype=torch.float64)
        points = torch.stack(self._seen).sum() if self._seen else differences.numel()
        return KineticSums(kinetic, kinetic.new_zeros(()) + points)


def compute_kinetic(sums: KineticSums) -> dict[str, Tensor]:
    """ke_error, the mean of |k_p - k_y| over windows and grid."""
    return {"ke_error": sums.kinetic / sums.points}


def probe_error(
    prediction: Float[Tensor, "batch time height width channel"],
    target: Float[Tensor, "_ _ _ _ target_channel"],
    *,
    diameter: int | float,
    center: tuple[int | float, int | float],
    stride: int = 1,
    compat: Literal["benchmark"] | None = None,
) -> Float[Tensor, " station"]:
    """Mean velocity profile error (MVPE): nine probes across the wake at four stations.

    At each station the mean, over windows, probes and the channels of ``prediction``, of
    |mean_t p - mean_t y|. Average the four for the benchmark's single number. The stations lie
    1, 2, 3 and 4 diameters behind the body, or 1, 1.5, 2 and 2.5 where 4 would leave the grid.

    Args:
        prediction: predicted field.
        target: measured field, with at least the channels of ``prediction``.
        diameter: size d of the body, in native pixels.
        center: (x, y) of the body, in native pixels.
        stride: native pixels per grid point.
        compat: ``"benchmark"`` tests the range with 2 instead of 4 diameters, as published. For
            the fsi and foil systems that leaves the grid.

    Raises:
        GridMismatchError: if a probe lies outside the grid.
        NonFiniteError: if a value is not finite.
        ShapeError: if ``prediction`` and ``target`` do not belong together.
    """
    channels = prediction.shape[-1]
    if prediction.shape[:-1] != target.shape[:-1] or target.shape[-1] < channels:
        raise ShapeError(
            f"`target` must have the axes and at least the channels of `prediction`, "
            f"{tuple(prediction.shape)}, but got shape {tuple(target.shape)}."
        )
    height, width = prediction.shape[2:4]
    rows, columns = (
        _probe_rows(height, center[1], stride),
        _probe_columns(width, diameter, center[0], stride, reach=2 if compat == "benchmark" else 4),
    )
    if min(rows + columns) < 0 or max(rows) >= height or max(columns) >= width:
        raise GridMismatchError(
            f"probes at rows {rows} and columns {columns} must lie in the grid "
            f"({height}, {width}). Check `diameter`, `center` and `stride`"
            + (', or leave out `compat="benchmark"`.' if compat else ".")
        )
    difference = prediction.double().mean(1) - target[..., :channels].double().mean(1)
    if not difference.isfinite().all():
        raise NonFiniteError(
            "`prediction` and `target` must be finite, but a time mean is not. "
            "Fill or drop the windows with gaps."
        )
    return difference[:, rows][:, :, columns].abs().mean((0, 1, 3))


def _probe_rows(height: int, center: int | float, stride: int) -> list[int]:
    step = min(2, height // 10)
    offsets = range(-_PROBES_PER_SIDE, _PROBES_PER_SIDE + 1)
    return [int(center // stride) + step * offset for offset in offsets]


def _probe_columns(
    width: int, diameter: int | float, center: int | float, stride: int, *, reach: int
) -> list[int]:
    if (reach * diameter + center) // stride < width:
        diameters = [1.0 + station for station in range(_STATIONS)]
    else:
        diameters = [1.0 + station / 2 for station in range(_STATIONS)]
    return [int((distance * diameter + center) // stride) for distance in diameters]


def update_ratio(
    finetuned: Sequence[float],
    real: Sequence[float],
    *,
    finetuned_every: int = 1,
    real_every: int = 1,
) -> float:
    """Updates finetuning needs to match training on real data alone, N₁/N₂.

    N₂ is where ``real`` is lowest, N₁ where ``finetuned`` first is no higher than that. The ratio
    is 1.0 when it never is, as the published tables appear to report it.

    Args:
        finetuned: validation RMSE of finetuning, one entry per validation.
        real: the same of training on real data.
        finetuned_every: updates between two entries of ``finetuned``.
        real_every: updates between two entries of ``real``.

    Raises:
        EmptySplitError: if a history is empty.
    """
    if not finetuned or not real:
        raise EmptySplitError(
            f"`finetuned` and `real` must hold validation errors, but have {len(finetuned)} and "
            f"{len(real)} entries. Validate at least once."
        )
    best = min(range(len(real)), key=real.__getitem__)
    for position, value in enumerate(finetuned):
        if value <= real[best]:
            return (position + 1) * finetuned_every / ((best + 1) * real_every)
    return 1.0
