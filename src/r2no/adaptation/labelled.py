"""Histories with names and coordinates (xarray), and forecasts that keep and extend them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from r2no.adaptation.histories import History, read_history
from r2no.checks import did_you_mean
from r2no.data.array_checks import as_plain
from r2no.data.coordinates import Axis, Conversion, check_axes, conversion, read_axis
from r2no.data.names import SPACE, find_roles
from r2no.data.window import Fields
from r2no.errors import DataError, GridMismatchError, ShapeError, UnknownNameError

_WHERE = "`history`"
_ONE = "history"  # name of an array that has none
#: Coordinate along time: how far a frame of the forecast lies after the last known one.
LEAD = "lead"


def read_labelled(
    history: xr.DataArray | xr.Dataset, mask: Any, fields: Fields, dtype: torch.dtype
) -> History:
    """Read an xarray object by the names of its dimensions and variables.

    Units are converted to the model's and back. The forecast has the dimensions of ``history``, its
    coordinates but for time, which goes on in the same steps, and ``lead`` beside it.

    Raises:
        UnknownNameError: if a channel or constant is missing.
        DataError: if dimensions, units or the time step do not suit the model.
        GridMismatchError: for another spacing, or an axis the other way round.
    """
    if mask is not None:
        history = history.where(mask)
    if isinstance(history, xr.Dataset):
        parts = {name: _variable(history, name) for name in fields.channels}
    else:
        parts = {str(history.name or _ONE): history}
    data = (
        history if isinstance(history, xr.Dataset) else history.to_dataset(name=next(iter(parts)))
    )
    roles = _roles(data, next(iter(parts)), fields)
    axis = _time(data, roles["time"], fields)
    space = [read_axis(data, roles[r], increasing=False, where=_WHERE) for r in SPACE if r in roles]
    check_axes(fields, axis, space, _WHERE)
    changes = _conversions(parts, fields)
    values = np.concatenate([_in_order(part, roles) for part in parts.values()], -1)
    values = _named_channels(values, history, roles, fields)
    values = values * [c.factor for c in changes] + [c.offset for c in changes]
    constants = _constants(data, fields)
    values = np.concatenate(
        [values, np.broadcast_to(constants, (*values.shape[:-1], len(constants)))], -1
    )
    read = read_history(values, None, fields, dtype)

    def restore(forecast: Tensor) -> xr.DataArray | xr.Dataset:
        found = forecast.cpu().double().numpy()
        found = (found - [c.offset for c in changes]) / [c.factor for c in changes]
        return _labelled(found.astype(_kind(parts)), history, parts, roles, axis, fields)

    return History(read.values, read.valid, restore)


def _variable(history: xr.Dataset, name: str) -> xr.DataArray:
    if name not in history.data_vars:
        raise UnknownNameError(
            f"`history` lacks channel {name!r} of the model. "
            + did_you_mean(name, map(str, history.data_vars))
        )
    return history[name]


def _roles(data: xr.Dataset, name: str, fields: Fields) -> dict[str, str]:
    """Role to dimension; one dimension of no known kind counts windows."""
    dims = [str(dim) for dim in data[name].dims]
    with suppress(DataError):
        return find_roles(data, name, {}, _WHERE)
    for dim in dims:
        with suppress(DataError):
            return find_roles(data, name, {"trajectory": dim}, _WHERE)
    space = SPACE[-len(fields.grid) :]
    for order in (("time", *space), ("time", *space, "channel")):
        for whole in (order, ("trajectory", *order)):
            if (
                len(whole) == len(dims)
                and data[name].shape[whole.index("time")] == fields.history_frames
            ):
                return dict(zip(whole, dims, strict=True))
    return find_roles(data, name, {}, _WHERE)  # says what is wrong


def _time(data: xr.Dataset, name: str, fields: Fields) -> Axis:
    axis = read_axis(data, name, increasing=True, where=_WHERE)
    if axis.size < 2 or axis.variable is None:
        return replace(axis, step=fields.time_step)
    check_time_step(axis.step, fields)
    return axis


def check_spacing(steps: Sequence[float], fields: Fields) -> None:
    """Raise if the spacing of an axis is known for both and differs; 1 stands for not known."""
    for step, known in zip(steps, fields.spacing, strict=False):
        if 1.0 not in (step, known) and not np.isclose(step, known, rtol=1e-2):
            raise GridMismatchError(
                f"The spacing of the data is {tuple(steps)}, but the model was adapted to "
                f"{fields.spacing}. Interpolate the data to that grid, or give coordinates in the "
                "same unit."
            )


def check_time_step(step: float, fields: Fields) -> None:
    """Raise if both time steps are known and differ."""
    if 1.0 not in (fields.time_step, step) and not np.isclose(step, fields.time_step, rtol=1e-2):
        raise DataError(
            f"The time step of the data is {step:.6g}, but the model was adapted to "
            f"{fields.time_step:.6g}. Resample the data in time."
        )


def _conversions(parts: Mapping[str, xr.DataArray], fields: Fields) -> list[Conversion]:
    """By channel; a variable that holds all of them has one unit for all."""
    given = [str(part.attrs.get("units", "")) for part in parts.values()]
    given = given if len(given) == len(fields.channels) else given * len(fields.channels)
    wanted = fields.units or ("",) * len(fields.channels)
    return [
        conversion(mine, theirs, what=f"Channel {name!r}")
        for name, mine, theirs in zip(fields.channels, given, wanted, strict=True)
    ]


def _in_order(part: xr.DataArray, roles: Mapping[str, str]) -> np.ndarray:
    """(batch, time, space..., channel), whatever the order was."""
    if set(part.dims) != set(roles.values()):
        raise DataError(
            f"Variables of `history` must share their dimensions, {tuple(roles.values())}, but "
            f"{part.name!r} has {part.dims}."
        )
    order = [roles[role] for role in ("trajectory", "time", *SPACE, "channel") if role in roles]
    values = as_plain("history", part.transpose(*order).to_numpy())
    values = values.astype(np.result_type(values.dtype, np.float32), copy=False)
    values = values if "trajectory" in roles else values[None]
    return values if "channel" in roles else values[..., None]


def _named_channels(
    values: np.ndarray, history: xr.DataArray | xr.Dataset, roles: Mapping[str, str], fields: Fields
) -> np.ndarray:
    """In the model's order, by the labels of a channel dimension where it has text for them."""
    labels = _labels(history, roles)
    for name in fields.channels if labels else ():
        if name not in labels:
            raise UnknownNameError(
                f"`history` lacks channel {name!r} of the model. " + did_you_mean(name, labels)
            )
    if labels:
        values = values[..., [labels.index(name) for name in fields.channels]]
    if values.shape[-1] != len(fields.channels):
        raise ShapeError(
            f"`history` must have the channels {fields.channels}, but has {values.shape[-1]}. Give "
            "a data set with these variables, or an array with a channel dimension."
        )
    return values


def _labels(history: xr.DataArray | xr.Dataset, roles: Mapping[str, str]) -> list[str]:
    """The names along a channel dimension, if it has text for them."""
    along = roles.get("channel")
    if along is None or along not in history.coords or history[along].dtype.kind not in "UOST":
        return []
    return [str(label) for label in history[along].values]


def _constants(data: xr.Dataset, fields: Fields) -> list[float]:
    """The model's constants, from scalar variables, coordinates or attributes."""
    found = []
    for name in fields.conditioning:
        value = data.attrs.get(name)
        if name in data.variables and data[name].ndim == 0:
            value = data[name].item()
        if value is None:
            raise UnknownNameError(
                f"`history` lacks the model's constant {name!r}: give it as a scalar variable, "
                "coordinate or attribute."
            )
        found.append(float(value))
    return found


def _kind(parts: Mapping[str, xr.DataArray]) -> np.dtype[Any]:
    kind = np.result_type(*(part.dtype for part in parts.values()))
    return kind if kind in (np.dtype("float32"), np.dtype("float64")) else np.dtype("float32")


def _labelled(
    forecast: np.ndarray,
    history: xr.DataArray | xr.Dataset,
    parts: Mapping[str, xr.DataArray],
    roles: Mapping[str, str],
    axis: Axis,
    fields: Fields,
) -> xr.DataArray | xr.Dataset:
    """The forecast with the dimensions, coordinates and attributes of what it was made from."""
    time, horizon = roles["time"], forecast.shape[1]
    order = [roles[role] for role in ("trajectory", "time", *SPACE) if role in roles]
    forecast = forecast if "trajectory" in roles else forecast[0]
    coords = {
        name: found.variable for name, found in history.coords.items() if time not in found.dims
    }
    if axis.variable is not None:
        ahead = axis.values(np.arange(axis.size, axis.size + horizon))
        coords[time] = xr.Variable((time,), ahead, axis.variable.attrs)
    units = axis.units if axis.variable is not None and axis.size > 1 else ""
    coords[LEAD] = xr.Variable(
        (time,),
        np.arange(1, horizon + 1) * axis.step,
        {"standard_name": "forecast_period", **({"units": units} if units else {})},
    )
    along, labels = roles.get("channel"), _labels(history, roles)
    if labels:
        places = [fields.channels.index(label) for label in labels if label in fields.channels]
        forecast = forecast[..., places]
        coords[along] = xr.Variable((along,), [fields.channels[place] for place in places])
    found = {}
    for number, (name, part) in enumerate(parts.items()):
        if along is None:
            variable = xr.Variable(order, forecast[..., number], part.attrs)
        else:
            variable = xr.Variable((*order, along), forecast, part.attrs)
        found[name] = variable.transpose(*part.dims)
    data = xr.Dataset(found, coords, history.attrs if isinstance(history, xr.Dataset) else None)
    if isinstance(history, xr.Dataset):
        return data
    (name,) = parts
    return data[name].rename(history.name)
