"""Streaming per-channel statistics, transform and inverse.

A normaliser maps channel c of a field to (x_c - shift_c) / scale_c and back. Statistics come from
one pass with constant memory and are exact (global variance), unlike an average of batch variances.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from jaxtyping import Float
from torch import Tensor

from r2no import ranks
from r2no._repr import brief_repr
from r2no.data.window import Windows, batches
from r2no.errors import EmptySplitError, NonFiniteError, ShapeError

_TOGETHER = 64  # windows of which statistics are taken at once
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
    def trusted(cls, shift: Tensor, scale: Tensor) -> "Normaliser":
        """Of tensors that were checked before, without looking at them (which waits for a GPU)."""
        found = object.__new__(cls)
        object.__setattr__(found, "shift", shift)
        object.__setattr__(found, "scale", scale)
        return found

    def to(self, device: torch.device) -> "Normaliser":
        """The same on another device."""
        if self.shift.device == device:
            return self
        found = self.trusted(self.shift.to(device), self.scale.to(device))
        found.__dict__["far"] = self.far  # known here, asked for there it would make a GPU wait
        return found

    @classmethod
    def identity(cls, channels: int) -> "Normaliser":
        """Leave every channel as it is."""
        return cls(torch.zeros(channels), torch.ones(channels))

    @classmethod
    def gaussian(
        cls, fields: "Iterable[Tensor | tuple[Tensor, Tensor | None]]", *, shared: bool = False
    ) -> "Normaliser":
        """Zero mean and unit variance per channel, from one pass over ``fields``.

        A pair (values, mask) counts the values where the mask is True; a channel without any
        stays as it is. With ``shared``, of several processes each brings fields of its own.
        """
        return _pooled(fields, shared=shared).gaussian()

    @classmethod
    def range(cls, fields: Iterable[Tensor]) -> "Normaliser":
        """Divide each channel by its largest absolute value."""
        return _pooled(fields).range()

    def __call__(self, values: Tensor) -> Tensor:
        """Physical to normalised units."""
        shift, scale = self._leading(values)
        return (values - shift) / scale

    def in_place(self, values: Tensor) -> Tensor:
        """The same numbers written over ``values``, where its precision holds them."""
        shift, scale = self._leading(values)
        if torch.result_type(values, shift) != values.dtype:
            return self(values)
        return values.sub_(shift).div_(scale)

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


@dataclass(frozen=True, eq=False)
class Moments:
    """Of each channel, in float64: number of values, mean, squared deviations, largest size."""

    count: Float[Tensor, " channel"]
    mean: Float[Tensor, " channel"]
    spread: Float[Tensor, " channel"]
    peak: Float[Tensor, " channel"]

    __repr__ = brief_repr

    @classmethod
    def of(cls, values: Float[Tensor, "*axes channel"], mask: Tensor | None = None) -> "Moments":
        """Moments of the values, or of those where the mask is True."""
        flat = values.reshape(-1, values.shape[-1]).double()
        if mask is None:
            variance, mean = torch.var_mean(flat, dim=0, correction=0)
            count = torch.full_like(mean, len(flat))
            return cls(count, mean, variance * len(flat), flat.abs().amax(0))
        valid = mask.reshape(flat.shape)
        count = valid.sum(0).double()
        known = torch.where(valid, flat, 0.0)
        mean = known.sum(0) / count.clamp(min=1)
        spread = torch.where(valid, (flat - mean) ** 2, 0.0).sum(0)
        return cls(count, mean, spread, known.abs().amax(0))

    def merge(self, other: "Moments", *, between: bool = True) -> "Moments":
        """Moments of both together; ``between=False`` drops what the two means differ."""
        count, offset = self.count + other.count, other.mean - self.mean
        most = count.clamp(min=1)
        mean = self.mean + offset * (other.count / most)
        spread = self.spread + other.spread
        if between:
            spread = spread + offset**2 * (self.count * other.count / most)
        return Moments(count, mean, spread, torch.maximum(self.peak, other.peak))

    def gaussian(self) -> Normaliser:
        """Zero mean and unit variance; a channel without a value stays as it is."""
        variance = self.spread / self.count.clamp(min=1)
        return Normaliser(self.mean.float(), variance.sqrt().float())

    def range(self) -> Normaliser:
        """Nothing larger than one."""
        return Normaliser(torch.zeros_like(self.peak).float(), self.peak.float())


def _pooled(
    fields: "Iterable[Tensor | tuple[Tensor, Tensor | None]]", *, shared: bool = False
) -> Moments:
    pairs = (item if isinstance(item, tuple) else (item, None) for item in fields)
    parts = (Moments.of(values, mask) for values, mask in pairs)
    total: Moments | None = None
    for part in parts:
        total = part if total is None else total.merge(part)
    found = [one for one in (ranks.everyones(total) if shared else [total]) if one is not None]
    if not found:
        raise EmptySplitError("`fields` yielded nothing. Give at least one window.")
    return reduce(Moments.merge, found)


def fit_normalisers(windows: Windows) -> tuple[Normaliser, Normaliser]:
    """Zero-mean, unit-variance normalisers of history and target, from one pass each.

    Missing values of the target do not count; those of the history count as they were filled.
    """
    histories = (window.history for _, window in batches(windows, _TOGETHER, shared=True))
    history = Normaliser.gaussian(histories, shared=True)
    pairs = ((window.target, window.mask) for _, window in batches(windows, _TOGETHER, shared=True))
    return history, Normaliser.gaussian(pairs, shared=True)
