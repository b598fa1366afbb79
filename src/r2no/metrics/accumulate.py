"""All metrics in one pass: a mergeable state over batches, and metric batches on top of it."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from r2no.errors import ConfigError, EmptySplitError, R2NOError, ShapeError
from r2no.metrics.checks import Measured, channel_indices, check_shapes, check_window
from r2no.metrics.flow import KineticSums, compute_kinetic
from r2no.metrics.passes import Sums, batch_sums
from r2no.metrics.pointwise import PointwiseSums, Spread, compute_pointwise
from r2no.metrics.spectral import SpectralSums, compute_spectral
from r2no.metrics.target import Target

_FORMAT = 2


class Accumulator:
    """Scores of any number of windows in one pass and constant memory.

    Sums are float64. Splitting the windows into batches, their order, and merging accumulators
    change the scores by round-off only. Axes are (batch, time, *space, channel). On 2-D grids
    ``compute`` gives

    - rmse, mae, rel_l2, r2: see :mod:`r2no.metrics.pointwise`;
    - ke_error: see :mod:`r2no.metrics.flow`, 0.0 with fewer than two measured channels;
    - frmse and its bands (the benchmark's octant), rel_frmse bands, freq_error, frmse_full and its
      bands (whole spectrum): see :mod:`r2no.metrics.spectral`.

    On 1-D and 3-D grids it gives the first four only.

    A mask excludes points: values where it is False, even NaN, change no bit of any score. The
    point-wise scores and the variances of ke_error are then over measured points only; for the
    spectral ones error and target are set to zero there. A window without a measured point is not
    counted.

    Args:
        measured: the scored channels, as a number of leading channels or as indices. Kinetic
            energy is of the first two.
    """

    def __init__(self, measured: Measured) -> None:
        channel_indices(measured)
        self.measured = measured
        self._shape: tuple[int, ...] | None = None  # (time, *space, channel)
        self._sums: Sums | None = None

    def __repr__(self) -> str:
        seen = "nothing yet" if self._shape is None else f"windows of {self._shape}"
        return f"Accumulator(measured={self.measured}, {seen})"

    @torch.no_grad()
    def update(
        self, prediction: Tensor, target: Tensor | Target, mask: Tensor | None = None
    ) -> "Accumulator":
        """Add a batch; on an error nothing of it is added.

        Several forecasts of the same windows are scored faster with one :class:`Target`, which
        brings its mask.

        Raises:
            EmptySplitError: if the batch holds no window.
            GridMismatchError: if grids differ from each other or from earlier batches.
            NonFiniteError: if a measured value is NaN or infinite.
            ShapeError: if frames, channels or windows do not match.
        """
        target = Target.of(target, mask, self.measured)
        check_shapes(prediction, target.values, target.mask, self._shape)
        self._add(batch_sums(prediction, target), target.window)
        return self

    def _add(self, sums: Sums, shape: tuple[int, ...]) -> None:
        self._sums = sums if self._sums is None else self._sums.merge(sums)
        self._shape = shape

    def merge(self, other: "Accumulator") -> "Accumulator":
        """Add the windows of ``other``, which is left as it is."""
        if channel_indices(self.measured) != channel_indices(other.measured):
            raise ShapeError(
                f"`other` must score the same channels, {self.measured}, but scores "
                f"{other.measured}. Build both with the same `measured`."
            )
        if other._sums is not None and other._shape is not None:
            if self._shape is not None:
                check_window(other._shape, self._shape, "other")
            self._add(other._sums, other._shape)
        return self

    def compute(self) -> dict[str, float]:
        """The scores of all windows so far.

        Raises:
            EmptySplitError: if no measured point was seen.
        """
        if self._sums is None or self._shape is None or self._sums.pointwise.points == 0:
            raise EmptySplitError(
                "no measured point was added, so there is nothing to score. "
                "Call `update` with at least one window that is not wholly masked."
            )
        pointwise, spread, flow, spectral = self._sums
        scores = compute_pointwise(pointwise, spread)
        if flow is not None and spectral is not None:
            time, height, width, _ = self._shape
            scores |= compute_kinetic(flow)
            scores |= compute_spectral(spectral, pointwise.windows, (time, height, width))
        return {name: float(value) for name, value in scores.items()}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able metadata, as :func:`r2no.storage.save_tensors` takes them."""
        tensors = {
            f"{group}.{name}": value.clone(memory_format=torch.contiguous_format)
            for group, sums in (self._sums._asdict() if self._sums else {}).items()
            if sums is not None
            for name, value in _named(sums).items()
        }
        measured = self.measured if isinstance(self.measured, int) else list(self.measured)
        shape = None if self._shape is None else list(self._shape)
        return tensors, {"format": _FORMAT, "measured": measured, "shape": shape}

    @classmethod
    def from_state(
        cls, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
    ) -> "Accumulator":
        """The accumulator whose :meth:`state` this is."""
        if metadata.get("format") != _FORMAT:
            raise ConfigError(
                f"`metadata` must have format {_FORMAT}, but has {metadata.get('format')!r}. "
                "Score again with this version."
            )
        measured = metadata["measured"]
        accumulator = cls(measured if isinstance(measured, int) else tuple(measured))
        if metadata["shape"] is not None:
            accumulator._shape = tuple(metadata["shape"])
            accumulator._sums = Sums(
                PointwiseSums(**_group(tensors, "pointwise")),
                Spread(**_group(tensors, "spread")),
                KineticSums(**flow) if (flow := _group(tensors, "flow")) else None,
                SpectralSums(**spectral) if (spectral := _group(tensors, "spectral")) else None,
            )
        return accumulator


class MetricBatches:
    """The benchmark's averaging: scores per piece of ``metric_batch`` consecutive windows.

    The pieces are averaged without weights, a shorter last one included, so scores depend on
    ``metric_batch`` and on the order of the windows, but not on how they arrive in batches. A
    piece of one window makes r2 -inf. Scores can be merged where pieces are whole.
    """

    def __init__(self, measured: Measured, metric_batch: int) -> None:
        if metric_batch < 1:
            raise ConfigError(
                f"`metric_batch` must be at least 1, but got {metric_batch}. "
                "Leave it out to score the whole set at once."
            )
        self.measured, self.metric_batch = measured, metric_batch
        self._shape: tuple[int, ...] | None = None  # (time, *space, channel)
        self._piece, self._filled = Accumulator(measured), 0
        self._totals: dict[str, float] = {}
        self._pieces = 0

    def __repr__(self) -> str:
        done = f"{self._pieces} pieces of {self.metric_batch} windows"
        return f"MetricBatches(measured={self.measured}, {done} and {self._filled} windows)"

    def update(
        self, prediction: Tensor, target: Tensor | Target, mask: Tensor | None = None
    ) -> None:
        """Add a batch, closing pieces as they fill up; as :meth:`Accumulator.update`."""
        target = Target.of(target, mask, self.measured)
        check_shapes(prediction, target.values, target.mask, self._shape)
        before = copy.copy(self.__dict__) | {"_piece": copy.copy(self._piece)}
        try:
            self._add(prediction, target)
        except R2NOError:
            self.__dict__.update(before)
            raise
        self._shape = target.window

    def _add(self, prediction: Tensor, target: Target) -> None:
        start = 0
        while start < len(target):
            part = slice(start, min(len(target), start + self.metric_batch - self._filled))
            self._piece.update(prediction[part], target.part(part))
            self._filled += part.stop - part.start
            start = part.stop
            if self._filled == self.metric_batch:
                self._totals, self._pieces = self._with_piece()
                self._piece, self._filled = Accumulator(self.measured), 0

    def merge(self, other: "MetricBatches") -> "MetricBatches":
        """Add the pieces of ``other``; at most one of the two may have an unfinished piece.

        Raises:
            ShapeError: if both have, since their windows belong to one piece or to two.
        """
        if self._filled and other._filled:
            raise ShapeError(
                f"Only whole pieces of {self.metric_batch} windows can be merged, but both sides "
                f"have a part of one. Use batches of {self.metric_batch} windows."
            )
        if other._filled:
            self._piece, self._filled = other._piece, other._filled
        for name, value in other._totals.items():
            self._totals[name] = self._totals.get(name, 0.0) + value
        self._pieces += other._pieces
        self._shape = self._shape or other._shape
        return self

    def _with_piece(self) -> tuple[dict[str, float], int]:
        scores = self._piece.compute()
        totals = {name: self._totals.get(name, 0.0) + value for name, value in scores.items()}
        return totals, self._pieces + 1

    def compute(self) -> dict[str, float]:
        """The unweighted mean over pieces, the unfinished one included.

        Raises:
            EmptySplitError: if a piece, or the whole, holds no measured point.
        """
        finished = self._pieces > 0 and self._filled == 0
        totals, pieces = (self._totals, self._pieces) if finished else self._with_piece()
        return {name: total / pieces for name, total in totals.items()}


def evaluate(
    prediction: Tensor,
    target: Tensor,
    *,
    measured: Measured,
    mask: Tensor | None = None,
    metric_batch: int | None = None,
) -> dict[str, float]:
    """Score a set of windows, in physical units.

    Args:
        prediction: p, of axes (batch, time, *space, channel).
        target: y, of the same shape.
        measured: the scored channels, as a number of leading channels or as indices.
        mask: True where measured, of the same shape; ``None`` means everywhere.
        metric_batch: windows per piece of the benchmark's averaging (:class:`MetricBatches`);
            ``None`` scores the whole set at once.

    Returns:
        The scores of :meth:`Accumulator.compute`.

    Raises:
        EmptySplitError, GridMismatchError, NonFiniteError, ShapeError: as in
            :meth:`Accumulator.update`.

    Example:
        >>> import torch
        >>> y = torch.ones(2, 4, 8, 8, 2)
        >>> evaluate(y + 0.5, y, measured=2)["rmse"]
        0.5
    """
    if metric_batch is None:
        return Accumulator(measured).update(prediction, target, mask).compute()
    pieces = MetricBatches(measured, metric_batch)
    pieces.update(prediction, target, mask)
    return pieces.compute()


def _named(sums: PointwiseSums | Spread | KineticSums | SpectralSums) -> dict[str, Tensor]:
    names = ("visits", "mean", "total") if isinstance(sums, Spread) else sums._fields
    return {name: getattr(sums, name) for name in names}


def _group(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    prefix = f"{group}."
    return {
        name.removeprefix(prefix): value.clone()
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
