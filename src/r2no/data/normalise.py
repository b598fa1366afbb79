"""Streaming per-channel statistics, transform and inverse.

A normaliser maps channel c of a field to (x_c - shift_c) / scale_c and back. Statistics come from
one pass with constant memory and are exact (global variance), unlike an average of batch variances.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from r2no._repr import brief_repr
from r2no.errors import EmptySplitError, NonFiniteError, ShapeError

_FAR = 256  # spreads between a mean and zero from which on rounding of the mean counts


@dataclass(frozen=True, eq=False)
class Normaliser:
    """Per-channel shift and scale on the last axis.

    A field with fewer channels than the statistics uses the leading ones. A scale of zero (a
    channel that never varies) is replaced by one.
    """

    shift: Float[Tensor, " channel"]
    scale: Float[Tensor, " channel"]

    __repr__ = brief_repr

    def __post_init__(self) -> None:
        if not (torch.isfinite(self.shift).all() and torch.isfinite(self.scale).all()):
            raise NonFiniteError(
                "`shift` and `scale` must be finite, but a channel has a non-finite statistic. "
                "Mask or drop channels that hold no numbers."
            )
        scale = torch.where(self.scale == 0, torch.ones_like(self.scale), self.scale)
        object.__setattr__(self, "scale", scale)

    @classmethod
    def identity(cls, channels: int) -> "Normaliser":
        """Leave every channel as it is."""
        return cls(torch.zeros(channels), torch.ones(channels))

    @classmethod
    def gaussian(cls, fields: "Iterable[Tensor | tuple[Tensor, Tensor | None]]") -> "Normaliser":
        """Zero mean and unit variance per channel, from one pass over ``fields``.

        A pair (values, mask) counts the values where the mask is True; a channel without any
        stays as it is.
        """
        total: _Moments | None = None
        for item in fields:
            values, mask = item if isinstance(item, tuple) else (item, None)
            found = _moments(values, mask)
            total = found if total is None else _pooled(total, found)
        if total is None:
            raise EmptySplitError("`fields` yielded nothing. Give at least one window.")
        return cls(total.mean.float(), (total.spread / total.number.clamp(min=1)).sqrt().float())

    @classmethod
    def range(cls, fields: Iterable[Tensor]) -> "Normaliser":
        """Divide each channel by its largest absolute value."""
        largest = None
        for values in fields:
            peak = values.reshape(-1, values.shape[-1]).abs().amax(0)
            largest = peak if largest is None else torch.maximum(largest, peak)
        if largest is None:
            raise EmptySplitError("`fields` yielded nothing. Give at least one window.")
        return cls(torch.zeros_like(largest), largest)

    def __call__(self, values: Tensor) -> Tensor:
        """Physical to normalised units."""
        shift, scale = self._leading(values)
        return (values - shift) / scale

    def inverse(self, values: Tensor) -> Tensor:
        """Normalised to physical units."""
        shift, scale = self._leading(values)
        return values * scale + shift

    @cached_property
    def far(self) -> bool:
        """Whether fields lie so far from zero that float32 would round small changes away."""
        return bool((self.shift.abs() > _FAR * self.scale).any())

    def inverse_for_differences(self, values: Tensor) -> Tensor:
        """As :meth:`inverse`, in float64 where the difference from another field needs it."""
        return self.inverse(values.double() if self.far else values)

    def _leading(self, values: Tensor) -> tuple[Tensor, Tensor]:
        channels = values.shape[-1]
        if channels > self.shift.numel():
            raise ShapeError(
                f"`values` must have at most {self.shift.numel()} channels on the last axis, but "
                f"got shape {tuple(values.shape)}. Fit the normaliser on data with all channels."
            )
        shift, scale = self.shift[:channels], self.scale[:channels]
        return shift.to(values.device), scale.to(values.device)


class _Moments(NamedTuple):
    """Of each channel: how many values, their mean, their squared deviations from it."""

    number: Tensor
    mean: Tensor
    spread: Tensor


def _moments(values: Tensor, mask: Tensor | None) -> _Moments:
    flat = values.reshape(-1, values.shape[-1]).double()
    if mask is None:
        mean = flat.mean(0)
        return _Moments(torch.full_like(mean, len(flat)), mean, ((flat - mean) ** 2).sum(0))
    valid = mask.reshape(flat.shape)
    count = valid.sum(0).double()
    mean = torch.where(valid, flat, 0.0).sum(0) / count.clamp(min=1)
    return _Moments(count, mean, torch.where(valid, (flat - mean) ** 2, 0.0).sum(0))


def _pooled(left: _Moments, right: _Moments) -> _Moments:
    total, offset = left.number + right.number, right.mean - left.mean
    most = total.clamp(min=1)
    mean = left.mean + offset * (right.number / most)
    apart = offset**2 * (left.number * right.number / most)
    return _Moments(total, mean, left.spread + right.spread + apart)
