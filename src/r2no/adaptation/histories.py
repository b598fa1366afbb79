"""Histories as people have them: read, their gaps filled, their size questioned.

NumPy arrays of any number type, masked arrays, tensors, lists of these, with or without the batch
axis; forecasts are given back alike, with bounds as :class:`Prediction`. What carries names
(xarray) is read by :mod:`r2no.adaptation.labelled`.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from r2no import checks
from r2no._repr import brief_repr
from r2no._types import Field, Number
from r2no.data.array_checks import as_plain
from r2no.data.gaps import fill_gaps
from r2no.data.lazy import as_mask
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields
from r2no.ensemble.bands import checked_coverage
from r2no.errors import (
    ConfigError,
    DataError,
    EmptySplitError,
    NonFiniteError,
    RangeWarning,
    ShapeError,
)

COVERAGE = "coverage"
_FACTOR = 8.0  # sizes that differ by less may be another flow
_SPREADS = 6.0  # so far from the mean of the fit the mean of a history may lie
_CLOSE = 0.1  # decimal logarithm: how near a suspected factor must be
_COMMON = (3.6, 60.0, 3600.0, 1852 / 3600, 0.3048, 0.44704, 25.4, 6894.757, 133.322, 101325.0)
_ZERO_CELSIUS = 273.15


@dataclass(frozen=True, eq=False)
class History:
    """A history as the model takes it.

    Attributes:
        values: Of whatever number where one is missing.
        valid: Where a value was measured.
        restore: Turns a forecast (batch, time, *space, channel) into the kind that was given.
    """

    values: Float[Tensor, "batch history_time *space_history_channel"]
    valid: Bool[Tensor, "batch history_time *space_history_channel"]
    restore: Callable[[Tensor], Any]


def read_history(history: Any, mask: Any, fields: Fields, dtype: torch.dtype) -> History:
    """Read arrays, tensors and lists of them.

    Raises:
        DataError: for something that is none of these, or holds no real numbers.
        ShapeError: unless frames, grid and channels are those of ``fields``.
        EmptySplitError: for no windows.
    """
    if isinstance(history, (list, tuple)):
        return _read_list(history, mask, fields, dtype)
    if not isinstance(history, (Tensor, np.ndarray)) and not hasattr(history, "__array__"):
        raise DataError(
            "`history` must be a NumPy array, a tensor, an xarray object or a list of arrays, but "
            f"is a `{type(history).__name__}`. Of a window, give `window.history`."
        )
    given = history if isinstance(history, Tensor) else as_plain("history", history)
    expected = fields.history_shape
    single = given.ndim == len(expected)
    if tuple(given.shape[0 if single else 1 :]) != expected:
        raise ShapeError(
            f"`history` must be (batch, {', '.join(map(str, expected))}) as in training, with or "
            f"without the batch axis, but got shape {tuple(given.shape)}. Channels are "
            f"{fields.history_channels}."
        )
    if 0 in given.shape:
        raise EmptySplitError("`history` holds no windows. Give at least one.")
    values, finite = _as_tensor(given, dtype)
    valid = finite if mask is None else _as_valid(mask, tuple(given.shape), fields)
    if isinstance(history, np.ma.MaskedArray):
        valid = valid & torch.from_numpy(~np.ma.getmaskarray(history))
    if mask is not None and bool((valid & ~finite).any()):
        raise NonFiniteError(
            "`history` holds NaN or infinity where `mask` says that a value is valid. Set the "
            "mask to False there."
        )
    wide = str(given.dtype).endswith("float64")

    def restore(forecast: Tensor) -> Any:
        found = forecast[0] if single else forecast
        if isinstance(given, Tensor):
            return found.to(given.device, torch.float64 if wide else torch.float32)
        return found.cpu().numpy().astype(np.float64 if wide else np.float32)

    return History(*((values[None], valid[None]) if single else (values, valid)), restore)


def _read_list(history: Any, mask: Any, fields: Fields, dtype: torch.dtype) -> History:
    """Windows one by one, or arrays with several each; forecasts come back as such a list."""
    if not history:
        raise EmptySplitError("`history` is an empty list. Give at least one window.")
    if any(isinstance(one, (xr.DataArray, xr.Dataset)) for one in history):
        raise DataError(
            "`history` is a list with xarray objects, whose names and units would be lost. Predict "
            "one at a time, or join them with `xarray.concat` along a dimension `window`."
        )
    masks = [None] * len(history) if mask is None else list(mask)
    if len(masks) != len(history):
        raise ShapeError(
            f"`mask` must hold one array for each of {len(history)} of `history`, but has "
            f"{len(masks)}."
        )
    parts = [
        read_history(one, valid, fields, dtype) for one, valid in zip(history, masks, strict=True)
    ]
    sizes = [len(part.values) for part in parts]

    def restore(forecast: Tensor) -> list[Any]:
        pieces = forecast.split(sizes)
        return [part.restore(piece) for part, piece in zip(parts, pieces, strict=True)]

    values, valid = (torch.cat([getattr(p, name) for p in parts]) for name in ("values", "valid"))
    return History(values, valid, restore)


def _as_tensor(given: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The values in the model's precision, and where they are numbers."""
    if isinstance(given, Tensor):
        if given.is_complex():
            raise DataError("`history` holds complex numbers. Give real fields.")
        if given.layout != torch.strided or given.is_meta:
            raise DataError("`history` must be a dense tensor with values. Give `.to_dense()`.")
        found = given.detach().cpu()  # looked at here, computed with where the model is
    else:
        found = torch.from_numpy(given if given.flags.writeable else given.copy())
    finite = torch.isfinite(found)
    values = found.to(dtype)
    if bool((finite & ~torch.isfinite(values)).any()):
        raise NonFiniteError(
            f"`history` holds values beyond {dtype}. Give them in units in which they are smaller."
        )
    return values, finite


def _as_valid(mask: Any, shape: tuple[int, ...], fields: Fields) -> Tensor:
    """An explicit mask in the shape of the history; constants are always valid."""
    array = mask.detach().cpu().numpy() if isinstance(mask, Tensor) else np.asarray(mask)
    found = torch.from_numpy(as_mask(array))
    channels = len(fields.channels)
    known = (shape, shape[:-1], (*shape[:-1], 1), (*shape[:-1], channels))
    if tuple(found.shape) not in known:
        raise ShapeError(
            f"`mask` must have the shape of `history`, {shape}, or that without the channel axis, "
            f"but has {tuple(found.shape)}. It is True where a value is valid."
        )
    if found.ndim < len(shape):
        found = found[..., None]
    found = found.expand(*shape[:-1], found.shape[-1] if found.shape[-1] > 1 else shape[-1]).clone()
    extra = shape[-1] - found.shape[-1]
    found = torch.cat([found, found.new_ones(*shape[:-1], extra)], -1)
    found[..., channels:] = True
    return found


def without_gaps(history: History, fields: Fields, gaps: str) -> Tensor:
    """The values with gaps filled as those of windows are (:mod:`r2no.data.gaps`), or refused.

    Raises:
        NonFiniteError: if gaps are to be refused, a constant is missing, or a measured channel of
            a window has no valid value to fill from.
    """
    checks.choice("gaps", gaps, ("fill", "refuse"))
    values, valid, channels = history.values, history.valid, len(fields.channels)
    if bool(valid.all()):
        return values
    lost = ~valid
    window, channel = (int(place) for place in lost.flatten(1, -2).any(1).nonzero()[0])
    name = fields.history_channels[channel]
    if gaps == "refuse" or bool(lost[..., channels:].any()):
        remedy = (
            "Fill it, or pass gaps='fill'" if gaps == "refuse" else "Constants cannot be missing"
        )
        raise NonFiniteError(
            f"`history` has {int(lost.sum())} missing values (NaN, infinity or masked), the first "
            f"in channel {name!r} of window {window}. {remedy}."
        )
    empty = lost.flatten(1, -2).all(1)[:, list(fields.measured)]
    if bool(empty.any()):
        window, place = (int(number) for number in empty.nonzero()[0])
        raise NonFiniteError(
            f"Channel {fields.channels[fields.measured[place]]!r} of window {window} of `history` "
            "has no valid value, so there is nothing to fill its gaps from. Leave the window out."
        )
    fields_filled = [
        fill_gaps(one, known)
        for one, known in zip(values[..., :channels], valid[..., :channels], strict=True)
    ]
    return torch.cat([torch.stack(fields_filled), values[..., channels:]], -1)


def check_range(
    values: Field,
    valid: Bool[Tensor, "batch time *space_channel"],
    *,
    fields: Fields,
    statistics: Normaliser,
    probe: Tensor,
    stacklevel: int = 3,
) -> None:
    """Warn of channels whose values are of another size than those the model was adapted to.

    ``statistics`` are mean and spread of the fit; where they do not describe ``probe``, a history
    of the fit (they can be a user's own), its own mean and spread are taken.
    """
    for number, name in enumerate(fields.channels):
        known = values[..., number][valid[..., number]].double()
        if not len(known) or not bool(known.any()):
            continue  # a channel of zeros is one that was not measured
        mean, spread = _reference(statistics, probe, number)
        if _fits(known, mean, spread):
            continue
        size, usual = _size(known), math.hypot(mean, spread)
        if usual == 0:
            continue  # nothing was measured then
        warnings.warn(
            f"Channel {name!r} of `history` is about {_times(size / usual)} what the model was "
            f"adapted to (typical size {usual:.3g}{_unit(fields, number)}). "
            f"{_suspicion(known, mean, size / usual)}",
            RangeWarning,
            stacklevel=stacklevel,
        )


def _reference(statistics: Normaliser, probe: Tensor, number: int) -> tuple[float, float]:
    mean, spread = float(statistics.shift[number]), float(statistics.scale[number])
    seen = probe[..., number].double().flatten()
    if bool(seen.any()) and not _fits(seen, mean, spread):
        return float(seen.mean()), float(seen.std())
    return mean, spread


def _fits(values: Tensor, mean: float, spread: float) -> bool:
    ratio = _size(values) / max(math.hypot(mean, spread), 1e-300)
    near = abs(float(values.mean()) - mean) <= _SPREADS * spread
    return 1 / _FACTOR <= ratio <= _FACTOR and (near or spread == 0)


def _size(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def _times(ratio: float) -> str:
    rounded = float(f"{ratio if ratio >= 1 else 1 / ratio:.1g}")
    return f"{rounded:g} times {'larger than' if ratio >= 1 else 'smaller than'}"


def _unit(fields: Fields, number: int) -> str:
    return f" {fields.units[number]}" if fields.units and fields.units[number] else ""


def _suspicion(values: Tensor, mean: float, ratio: float) -> str:
    remedy = "Convert the data, or go on if they are meant to be so different."
    moved = float(values.mean()) - mean
    if abs(abs(moved) - _ZERO_CELSIUS) < 0.1 * _ZERO_CELSIUS:
        return f"They are off by about 273.15, as degrees Celsius are from kelvin. {remedy}"
    factor = suspected_factor(ratio)
    if factor is None:
        return remedy
    return f"A factor of {factor:g} between units would explain it. {remedy}"


def suspected_factor(ratio: float) -> float | None:
    """The power of ten, or common factor between units, that a ratio of sizes suggests."""
    large = math.log10(max(ratio, 1 / ratio))
    power = round(large)
    if power >= 1 and abs(large - power) <= 0.3:
        return float(10.0**power)
    candidates = [max(factor, 1 / factor) for factor in _COMMON]
    nearest = min(candidates, key=lambda factor: abs(math.log10(factor) - large))
    return nearest if abs(math.log10(nearest) - large) <= _CLOSE else None


@dataclass(frozen=True, eq=False)
class Prediction:
    """What :meth:`AdaptedModel.predict` returns if asked for a coverage.

    Attributes:
        forecast: As without a coverage.
        lower: Lower bounds, of the same kind; for several coverages along a first axis, of an
            xarray object along the dimension ``coverage``. NaN in channels without measurements.
        upper: Upper bounds.
        coverage: What was asked for, each a probability.
        familiar: p-value of each window; below 0.1, say, no window of the fit looks like it, and
            the bounds may not hold.
    """

    forecast: Any
    lower: Any
    upper: Any
    coverage: tuple[float, ...]
    familiar: np.ndarray

    __repr__ = brief_repr


def coverages(coverage: Number | Sequence[Number]) -> tuple[float, ...]:
    """One or several coverages, checked."""
    given = [coverage] if np.ndim(coverage) == 0 else checks.listed(COVERAGE, coverage)
    if not given:
        raise ConfigError("`coverage` must lie between 0 and 1, such as 0.9, but names no number.")
    return tuple(checked_coverage(one) for one in given)


def prediction(
    forecast: Tensor,
    half_widths: Tensor,
    familiar: Tensor,
    restore: Callable[[Tensor], Any],
    coverage: Any,
) -> Prediction:
    """Bounds around a forecast, all as the kind of thing that the history was."""
    asked, single = coverages(coverage), np.ndim(coverage) == 0
    lower, upper = (
        _together([restore(forecast + sign * half) for half in half_widths], asked, single)
        for sign in (-1, 1)
    )
    return Prediction(restore(forecast), lower, upper, asked, familiar.numpy())


def _together(parts: list[Any], asked: Sequence[float], single: bool) -> Any:
    """Bounds of several coverages as one; of a single one as it is."""
    first = parts[0]
    if isinstance(first, list):
        columns = zip(*parts, strict=True)
        return [_together(list(column), asked, single) for column in columns]
    if isinstance(first, (xr.DataArray, xr.Dataset)):
        named = [part.assign_coords({COVERAGE: p}) for part, p in zip(parts, asked, strict=True)]
        return named[0] if single else xr.concat(named, COVERAGE, coords="minimal")
    if single:
        return first
    return torch.stack(parts) if isinstance(first, Tensor) else np.stack(parts)
