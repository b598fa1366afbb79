"""Histories as people have them: read into a tensor with its gaps, and forecasts given back alike.

NumPy arrays of any number type, masked arrays, tensors, lists of these, with or without the batch
axis. What carries names (xarray) is read by :mod:`r2no.adaptation.labelled`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from r2no.data.array_checks import as_plain
from r2no.data.gaps import fill_gaps
from r2no.data.lazy import as_mask
from r2no.data.window import Fields
from r2no.errors import ConfigError, DataError, EmptySplitError, NonFiniteError, ShapeError


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
        found = given.detach().cpu()  # looked at here, computed with where the model is
    else:
        found = torch.from_numpy(given)
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
    if gaps not in ("fill", "refuse"):
        raise ConfigError(f"`gaps` must be 'fill' or 'refuse', but got {gaps!r}.")
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
