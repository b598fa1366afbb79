"""The sums of a batch, window by window, so that what is worked on stays in the cache.

Large windows of float32 are worked on as they are, in sums of short lines and with their mean over
time taken apart, which gives the scores to about 1e-7; where that would leave fewer digits (weak
shells beside strong ones, numbers near the ends of the range) a batch is passed again in float64.
All else is float64 throughout: windows that are, masks, small windows, accelerators.
"""

from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from r2no.metrics.checks import check_finite
from r2no.metrics.flow import KineticPass, KineticSums
from r2no.metrics.pointwise import (
    ErrorPass,
    PointwiseSums,
    TargetPass,
    TargetSums,
    absolute_sum,
    cancelled,
    exact_spread,
    pointwise_sums,
    time_mean,
)
from r2no.metrics.spectral import ShellEnergies, SpectralPass, SpectralSums
from r2no.metrics.target import Target

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_LARGE = 2**16  # values of a window from which on float32 pays
_RANGE = 1e-12, 1e12  # of means, so that squares stay far from the ends of float32


class Sums(NamedTuple):
    """Every sum of a set of windows; ``flow`` and ``spectral`` on 2-D grids only."""

    pointwise: PointwiseSums
    flow: KineticSums | None
    spectral: SpectralSums | None

    def merge(self, other: "Sums") -> "Sums":
        """The sums of both sets of windows."""
        return Sums(
            self.pointwise.merge(other.pointwise),
            self.flow and other.flow and self.flow.merge(other.flow),
            self.spectral and other.spectral and self.spectral.merge(other.spectral),
        )


def batch_sums(prediction: Tensor, target: Target) -> Sums:
    """The sums of a batch.

    Raises:
        NonFiniteError: if a measured value is NaN or infinite.
    """
    values = target.chosen(prediction)
    if _float32_serves(values, target):
        with suppress(_FewDigits):
            return _BatchPass(values, target, torch.float32).sums()
    return _BatchPass(values, target, torch.float64).sums()


class _FewDigits(Exception):
    """Float32 is not exact enough for this batch."""


def _float32_serves(prediction: Tensor, target: Target) -> bool:
    """Whether products of float32 are exact enough here, and pay."""
    return (
        not target.wide
        and target.mask is None
        and target.place.type == "cpu"
        and prediction.dtype in _NARROW
        and target.values.dtype in _NARROW
        and prediction[0].numel() >= _LARGE
        and not torch.is_autocast_enabled("cpu")
        and torch.get_float32_matmul_precision() == "highest"
    )


class _BatchPass:
    """One pass over a batch in one precision; the target's part only if it is not known yet."""

    def __init__(self, prediction: Tensor, target: Target, kind: torch.dtype) -> None:
        self._target, self._kind, self._prediction = target, kind, prediction
        self._measured = target.chosen(target.values)
        self._mask = None if target.mask is None else target.chosen(target.mask)
        self._work = torch.empty((3, *prediction.shape[1:]), dtype=kind, device=target.place)
        like, plane = self._work[0], prediction.ndim == 5
        self._errors = ErrorPass()
        self._kinetic = KineticPass() if plane else None
        self._shells = SpectralPass(like) if plane else None
        self._known = target.prepared(kind)
        self._fresh = self._known.sums is None
        if self._fresh:
            self._known.steady = []
            self._targets = TargetPass(like)
            self._target_shells = SpectralPass(like, octant_only=True) if plane else None
        for number in range(len(prediction)):
            self._add(number)

    def _add(self, number: int) -> None:
        """Take one window into all sums, its target's only if they are not known."""
        error, reference, scratch = self._work
        mask = None if self._mask is None else self._mask[number]
        values = self._measured[number].to(self._kind)
        torch.sub(self._prediction[number].to(self._kind), values, out=error)
        if mask is not None:
            error.masked_fill_(~mask, 0.0)
            values = values.masked_fill(~mask, 0.0)
        if self._fresh:
            self._known.steady.append(_steady(values, mask))
        torch.sub(values, self._known.steady[number], out=reference)
        if self._fresh:
            self._targets.add(reference, self._known.steady[number], mask)
            if self._target_shells is not None:
                self._target_shells.add(reference, self._known.steady[number])
        absolute, steady = absolute_sum(error, scratch), _steady(error, mask)
        error -= steady
        self._errors.add(error, steady, absolute)
        if self._shells is not None and self._kinetic is not None:
            self._shells.add(error, steady)
            self._kinetic.add(error, reference, mask)  # overwrites the reference

    def sums(self) -> Sums:
        """The sums of all windows.

        Raises:
            NonFiniteError: if a measured value is NaN or infinite.
            _FewDigits: if float32 leaves too few.
        """
        target, target_shells = self._target_sums()
        squared, changing, absolute = self._errors.sums()
        found = pointwise_sums(target, squared, absolute)
        shells = None if self._shells is None else self._shells.sums(changing)
        doubts = [~(found.squared + found.energy).isfinite(), cancelled(target), *_extreme(found)]
        doubts += [each.doubtful for each in (target_shells, shells) if each is not None]
        infinite, alike, *doubtful = torch.stack(doubts).tolist()  # waits for a GPU once
        if self._kind == torch.float32 and (infinite or any(doubtful)):
            self._target.wide = infinite or any(doubtful[1:3])
            raise _FewDigits
        if infinite:
            check_finite(self._prediction, self._measured, self._mask)
        if self._fresh:
            target = exact_spread(target, self._measured, self._mask) if alike else target
            self._known.sums, self._known.shells = target, target_shells
        return Sums(
            found._replace(spread=target.spread),
            None if self._kinetic is None else self._kinetic.sums(),
            shells and target_shells and _spectral(shells, target_shells),
        )

    def _target_sums(self) -> tuple[TargetSums, ShellEnergies | None]:
        if self._known.sums is not None:
            return self._known.sums, self._known.shells
        sums, shells = self._targets.sums(), self._target_shells
        return sums, None if shells is None else shells.sums(sums.changing)


def _steady(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over time, rounded; where points are missing the whole window counts as changing."""
    if mask is not None:
        return values.new_zeros(values.shape[1:])
    return time_mean(values)


def _extreme(sums: PointwiseSums) -> list[Tensor]:
    """Whether errors, and whether targets, are so small or large that squares leave float32."""
    least, most = _RANGE
    error, size = sums.absolute / sums.points, (sums.energy / sums.points).sqrt()
    return [(error != 0) & ~((error > least) & (error < most)), ~((size > least) & (size < most))]


def _spectral(error: ShellEnergies, target: ShellEnergies) -> SpectralSums:
    return SpectralSums(error.octant, error.full, target.octant, error.frequency)
