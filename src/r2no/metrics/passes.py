"""The sums of a batch, a few windows at a time, so that what is worked on stays in the cache.

Large windows of float32 are worked on as they are, in sums of short lines and with their mean over
time taken apart, which gives the scores to about 1e-7; where that would leave fewer digits (weak
shells beside strong ones, numbers near the ends of the range) a batch is passed again in float64.
All else is float64 throughout: windows that are, masks, small windows, accelerators.
"""

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from r2no.metrics.checks import check_finite
from r2no.metrics.flow import KineticPass, KineticSums
from r2no.metrics.pointwise import (
    ErrorPass,
    PointwiseSums,
    Spread,
    TargetPass,
    TargetSums,
    absolute_sums,
    cancelled,
    exact_spread,
    pointwise_sums,
    time_mean,
)
from r2no.metrics.spectral import ShellEnergies, SpectralPass, SpectralSums
from r2no.metrics.target import Target

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_LARGE = 2**16  # values of a window from which on float32 pays
_TOGETHER = 2**18  # values that are worked on at once, of as many windows
_RANGE = 1e-12, 1e12  # of means, so that squares stay far from the ends of float32


class Sums(NamedTuple):
    """Every sum of a set of windows; ``flow`` and ``spectral`` on 2-D grids only."""

    pointwise: PointwiseSums
    spread: Spread
    flow: KineticSums | None
    spectral: SpectralSums | None

    def merge(self, other: "Sums") -> "Sums":
        """The sums of both sets of windows."""
        return Sums(
            self.pointwise.merge(other.pointwise),
            self.spread.merge(other.spread),
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
        self._target, self._kind = target, kind
        self._prediction = prediction.movedim(-1, 1)  # as all windows from here on
        self._measured = target.chosen(target.values).movedim(-1, 1)
        self._mask = None if target.mask is None else target.chosen(target.mask).movedim(-1, 1)
        windows, *window = self._prediction.shape
        together = min(windows, max(1, _TOGETHER // math.prod(window)))
        self._known = target.prepared(kind)
        self._work = self._known.memory((3, together, *window), target.place)
        like, plane = self._work[0, 0], prediction.ndim == 5
        self._errors = ErrorPass()
        self._kinetic = KineticPass() if plane else None
        self._shells = SpectralPass(like) if plane else None
        self._fresh = self._known.sums is None
        if self._fresh:
            self._known.steady = like.new_zeros(windows, window[0], *window[2:])
            self._targets = TargetPass(like)
            self._target_shells = SpectralPass(like, octant_only=True) if plane else None
        for start in range(0, windows, together):
            self._add(slice(start, start + together))

    def _add(self, part: slice) -> None:
        """Take some windows into all sums, their targets only if they are not known.

        What changes over time is worked on apart from what is steady; where points are missing,
        all of a window counts as changing.
        """
        steady, mask = self._known.steady[part], None
        error, reference, scratch = self._work[:, : len(steady)]
        reference.copy_(self._measured[part])
        error.copy_(self._prediction[part])
        error -= reference
        if self._mask is None:
            if self._fresh:
                time_mean(reference, out=steady)
            reference -= steady[:, :, None]
        else:
            missing = self._mask[part].logical_not().contiguous()
            error.masked_fill_(missing, 0.0)
            reference.masked_fill_(missing, 0.0)
            mask = missing.logical_not_().to(self._kind)
        if self._fresh:
            self._targets.add(reference, mask)
            if self._target_shells is not None:
                self._target_shells.add(reference, steady)
        absolute = absolute_sums(error, scratch)
        mean = torch.zeros_like(steady) if mask is not None else time_mean(error)
        if mask is None:
            error -= mean[:, :, None]
        self._errors.add(error, mean, absolute)
        if self._shells is not None and self._kinetic is not None:
            self._shells.add(error, mean)
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
            found,
            target.spread,
            None if self._kinetic is None else self._kinetic.sums(),
            shells and target_shells and _spectral(shells, target_shells),
        )

    def _target_sums(self) -> tuple[TargetSums, ShellEnergies | None]:
        if self._known.sums is not None:
            return self._known.sums, self._known.shells
        sums, shells = self._targets.sums(self._known.steady), self._target_shells
        return sums, None if shells is None else shells.sums(sums.changing)


def _extreme(sums: PointwiseSums) -> list[Tensor]:
    """Whether errors, and whether targets, are so small or large that squares leave float32."""
    least, most = _RANGE
    error, size = sums.absolute / sums.points, (sums.energy / sums.points).sqrt()
    return [(error != 0) & ~((error > least) & (error < most)), ~((size > least) & (size < most))]


def _spectral(error: ShellEnergies, target: ShellEnergies) -> SpectralSums:
    return SpectralSums(error.octant, error.full, target.octant, error.frequency)
