"""Meshgrids: x and y as fields beside u and v, the way PIV programs write them, as coordinates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from r2no.data.names import SPACE, role_of_name

_SAME = 1e-3  # of a step that a coordinate may vary by along the other axes


@dataclass(frozen=True, eq=False)
class Plane:
    """What meshgrids say about the axes of a field.

    Attributes:
        names: Of the meshgrids.
        sizes: Of the spatial axes, by name, in the order of the meshgrids' own axes.
        coordinates: Along those axes.
    """

    names: tuple[str, ...]
    sizes: Mapping[str, int]
    coordinates: Mapping[str, np.ndarray]


def short_name(name: str) -> str:
    """A name without the group of its file."""
    return name.rsplit("/", 1)[-1]


def find_plane(arrays: Mapping[str, Any]) -> Plane | None:
    """The plane that arrays called x, y (z) span, repeated for every frame or not; else None."""
    found: dict[str, tuple[int, np.ndarray]] = {}
    shape: tuple[int, ...] | None = None
    for name, array in arrays.items():
        if role_of_name(name) not in SPACE or array.ndim not in (2, 3):
            continue
        along = _varying(_thinned(xr.Variable(("a", "b", "c")[: array.ndim], array)))
        if along is None or shape not in (None, tuple(array.shape)):
            continue
        shape, found[name] = tuple(array.shape), along
    if shape is None or len({axis for axis, _ in found.values()}) < len(found):
        return None
    dims: list[str | None] = [None] * len(shape)
    for name, (axis, _) in found.items():
        dims[axis] = short_name(name)
    missing = [axis for axis, name in enumerate(dims) if name is None]
    if len(missing) > 1 or (missing and len(shape) == 3 and len(found) < 2):
        return None
    if missing and len(shape) == 2:  # x alone: the other axis is y
        role = role_of_name(next(iter(found)))
        dims[missing[0]] = "x" if role == "height" else "y"
    sizes = {name: size for name, size in zip(dims, shape, strict=True) if name is not None}
    return Plane(
        tuple(found), sizes, {short_name(name): values for name, (_, values) in found.items()}
    )


def flatten_meshgrids(data: xr.Dataset) -> xr.Dataset:
    """A data set whose meshgrids are coordinates of its dimensions, which take their names."""
    grids = {
        str(name): variable
        for name, variable in data.variables.items()
        if role_of_name(str(name)) in SPACE
        and variable.ndim in (2, 3)
        and variable.dtype.kind in "iuf"
    }
    for name, variable in grids.items():
        along = _varying(_thinned(variable))
        if along is None:
            continue
        dim = str(variable.dims[along[0]])
        kept = dim if role_of_name(dim) is not None else name
        if dim in data.variables or role_of_name(kept) != role_of_name(name):
            continue  # it has a coordinate of its own, or is called otherwise
        data = data.drop_vars(name)
        data = data if kept == dim else data.rename_dims({dim: kept})
        data = data.assign_coords({kept: (kept, along[1], variable.attrs)})
    return data


def _thinned(array: xr.Variable) -> np.ndarray | None:
    """A grid with its first and last frame only; None if they differ, so that it is a field."""
    if array.ndim == 2:
        return np.asarray(array, dtype=np.float64)
    for axis in (0, 2):
        ends = [_slice(array, axis, place) for place in (0, array.shape[axis] - 1)]
        if np.array_equal(ends[0], ends[1], equal_nan=True):
            return np.stack(ends, axis)
    return None


def _slice(array: xr.Variable, axis: int, place: int) -> np.ndarray:
    key: list[Any] = [slice(None)] * array.ndim
    key[axis] = slice(place, place + 1)
    return np.asarray(array[tuple(key)], dtype=np.float64).squeeze(axis)


def _varying(values: np.ndarray | None) -> tuple[int, np.ndarray] | None:
    """The one axis along which a grid varies, and its coordinate; None if it is no meshgrid."""
    if values is None:
        return None
    for axis in range(values.ndim):
        lines = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        known = np.isfinite(lines)
        if len(lines) < 2 or not known.any(1).all():
            continue
        low = np.where(known, lines, np.inf).min(1)
        high = np.where(known, lines, -np.inf).max(1)
        step = abs(low[-1] - low[0]) / (len(lines) - 1)
        if step > 0 and float((high - low).max()) <= _SAME * step:
            return axis, (low + high) / 2
    return None
