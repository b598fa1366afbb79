"""What PIV programs write: x and y as fields beside u and v, and a file for every frame.

Such meshgrids become coordinates, and the frames of a folder one recording, read on demand.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from r2no.data.lazy import on_demand
from r2no.data.names import SPACE, dim_role, role_of_name
from r2no.errors import DataError, GridMismatchError

Named = tuple[str, xr.Dataset]
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


def natural(name: object) -> list[tuple[int, Any]]:
    """A key that sorts frame2 before frame10."""
    return [
        (0, int(part)) if part.isdigit() else (1, part)
        for part in re.split(r"([0-9]+)", str(name))
        if part
    ]


def join_frames(found: Sequence[Named], time: str | None) -> list[Named]:
    """Files of a single frame joined by folder, in natural order; other files as they are.

    Args:
        found: Path and data set of each file.
        time: The dimension of time, if the user named it.

    Raises:
        DataError: if a frame lacks a variable that others have.
        GridMismatchError: if frames are on different grids.
    """
    folders: dict[Path, list[Named]] = {}
    for name, data in found:
        folders.setdefault(Path(name).parent, []).append((name, data))
    joined: list[Named] = []
    for folder, files in folders.items():
        if len(files) > 1 and all(_is_frame(data, time) for _, data in files):
            joined.append(_joined(folder, sorted(files, key=lambda one: natural(one[0])), time))
        else:
            joined += files
    return joined


def _time_dims(data: xr.Dataset, time: str | None) -> list[str]:
    return [d for d in map(str, data.dims) if d == time or dim_role(data, d) == "time"]


def _is_frame(data: xr.Dataset, time: str | None) -> bool:
    along = _time_dims(data, time)
    planes = any(len(set(v.dims) - set(along)) > 1 for v in data.data_vars.values())
    several = any(dim_role(data, str(dim)) == "trajectory" for dim in data.dims)
    return planes and not several and all(data.sizes[dim] == 1 for dim in along)


def _joined(folder: Path, files: Sequence[Named], time: str | None) -> Named:
    """One recording from files of one frame each, read when asked for."""
    names = [name for name, _ in files]
    frames = [data.squeeze(_time_dims(data, time)) for _, data in files]
    first = frames[0]
    along = time or next(iter(_time_dims(files[0][1], time)), "time")
    for name, frame in zip(names[1:], frames[1:], strict=True):
        _check_alike(names[0], first, name, frame)
    variables: dict[str, Any] = {}
    for label, variable in first.data_vars.items():
        if variable.ndim < 2:
            variables[str(label)] = variable.variable
            continue
        parts = [frame[label].variable for frame in frames]
        dtype = np.result_type(*(part.dtype for part in parts))
        values = on_demand(
            (len(parts), *variable.shape), dtype, partial(_some_frames, parts, dtype)
        )
        variables[str(label)] = xr.Variable((along, *variable.dims), values, variable.attrs)
    clock = next((n for n in map(str, first.variables) if _is_clock(first, n, along)), None)
    if clock is not None:
        variables.pop(clock, None)
        times = np.array([frame[clock].values for frame in frames])
        variables[along] = xr.Variable((along,), times, first[clock].attrs)
    coords = {n: c.variable for n, c in first.coords.items() if n != clock}
    return f"{folder} ({len(files)} frames)", xr.Dataset(variables, coords, first.attrs)


def _is_clock(data: xr.Dataset, name: str, along: str) -> bool:
    """Whether a scalar of each frame is its time."""
    return data[name].ndim == 0 and (name == along or dim_role(data, name) == "time")


def _check_alike(one: str, first: xr.Dataset, other: str, frame: xr.Dataset) -> None:
    """Refuse frames of other variables or another grid than the first."""
    missing = [str(n) for n, v in first.data_vars.items() if v.ndim > 1 and n not in frame]
    if missing:
        raise DataError(
            f"Frames of one recording must hold the same variables, but `{other}` lacks "
            f"{missing[0]!r}, which `{one}` has. Leave the file out, or choose with `variables`."
        )
    same = first.sizes == frame.sizes and all(
        name in frame.variables
        and np.allclose(first[name].values, frame[name].values, rtol=1e-5, equal_nan=True)
        for name in first.dims
        if name in first.variables and first[name].dtype.kind in "iuf"
    )
    if not same:
        raise GridMismatchError(
            f"Frames of one recording must share one grid, but `{one}` has {dict(first.sizes)} and "
            f"`{other}` has {dict(frame.sizes)}, or their coordinates differ. Give the files of "
            "one recording a folder or pattern of their own."
        )


def _some_frames(parts: Sequence[xr.Variable], dtype: Any, key: tuple[Any, ...]) -> np.ndarray:
    """Of many files as one array, the frames and the part of the grid that ``key`` asks for."""
    frames = range(len(parts))[key[0]]
    if not isinstance(frames, range):
        result: np.ndarray = parts[frames][key[1:]].to_numpy().astype(dtype)
        return result
    read = [parts[number][key[1:]].to_numpy() for number in frames]
    return np.reshape(read, (len(read), *parts[0][key[1:]].shape)).astype(dtype)
