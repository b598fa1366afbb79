"""Files of precomputed forecasts: what `r2no.data.open` reads, and what `r2no predict` writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray

from r2no._types import PathLike
from r2no.data.coordinates import check_space, read_axis
from r2no.data.files import check_file, find_files, read_file
from r2no.data.forecast_layout import RECORDING
from r2no.data.lazy import LazyTrajectory, Part
from r2no.data.names import SPACE, assign_roles, check_given, dim_role
from r2no.data.window import Fields
from r2no.errors import DataError, GridMismatchError

_TRAJECTORY, _TIME, _START, _LEAD = "trajectory", "time", "start", "lead"
_ROLES = (_TRAJECTORY, _TIME, _START, _LEAD, *SPACE, "channel")
_BY_NAME = {
    **dict.fromkeys(("start", "origin", "init", "issue", "forecast_reference_time"), _START),
    **dict.fromkeys(("lead", "lead_time", "leadtime", "forecast_period"), _LEAD),
}
Opened = tuple[list[Any], list[list[int]] | None]
#: A path, a pattern, a folder, or a list of these.
Stored = PathLike | Sequence[PathLike]


@dataclass(frozen=True)
class Wanted:
    """What is asked of files of forecasts.

    Attributes:
        names: Of the variables, in the order of the channels.
        fields: Of the windows that the forecasts are for.
        dims: What dimensions are, where the guess is wrong.
        like: The same of the data, for dimensions that the forecasts share with them.
        axes: Names of the axes of arrays that come without.
        allow_sparse: Whether files may declare values that are not in them.
    """

    names: tuple[str, ...]
    fields: Fields
    dims: Mapping[str, str] = field(default_factory=dict)
    like: Mapping[str, str] = field(default_factory=dict)
    axes: Sequence[str] | None = None
    allow_sparse: bool = False


def open_forecasts(source: Stored, wanted: Wanted) -> Opened:
    """Arrays by trajectory, and their starts if the files have them; files follow each other.

    ``source`` is a file, folder, pattern or list; one file per trajectory, or several in each.
    """
    sources = [source] if isinstance(source, (str, Path)) else list(source)
    if not sources:
        raise DataError("`path` is empty. Give at least one file of forecasts.")
    paths = [path for one in sources for path in find_files(str(one))]
    values: list[Any] = []
    starts: list[list[int]] = []
    for path in paths:
        found, own = _open_file(path, wanted)
        values += found
        starts += [] if own is None else own
    if starts and len(starts) != len(values):
        raise DataError(
            f"Some of the forecasts in {list(map(str, paths))} say where they start and others do "
            "not. Give files of one kind."
        )
    return values, starts or None


def _open_file(path: Path, wanted: Wanted) -> Opened:
    """The trajectories of one file, and for issued forecasts where each starts."""
    names, fields, axes = wanted.names, wanted.fields, wanted.axes
    allow_sparse = wanted.allow_sparse
    if path.suffix == ".npy" and axes is None:
        check_file(path, "npy", allow_sparse=allow_sparse)
        return [np.lib.format.open_memmap(path, mode="r")], None
    if path.suffix == ".npz" and axes is None:
        check_file(path, "npz", allow_sparse=allow_sparse)
        with np.load(path, allow_pickle=False) as archive:
            if not set(names) & set(archive.files):
                return [archive[name] for name in archive.files], None
    data = read_file(path, axes, names, allow_sparse=allow_sparse)
    arrays = _variables(data, names, path)
    roles = _roles(data, arrays[0], wanted, path)
    for name, array in zip(names, arrays, strict=True):
        if set(array.dims) != set(arrays[0].dims):
            raise DataError(
                f"Forecasts of `{path}` must share their dimensions, but {names[0]!r} has "
                f"{arrays[0].dims} and {name!r} has {array.dims}."
            )
    issued = _check_roles(roles, list(map(str, arrays[0].dims)), fields, path)
    _check_grid(data, roles, fields, path)
    space = [roles[role] for role in SPACE if role in roles]
    first = [roles[_START], roles[_LEAD]] if issued else [roles[_TIME]]
    if _TRAJECTORY in roles:
        number = data.sizes[roles[_TRAJECTORY]]
        runs = [[a.isel({roles[_TRAJECTORY]: n}) for a in arrays] for n in range(number)]
    else:
        runs = [arrays]
    order = (*first, *space)
    stacked = [LazyTrajectory.of([Part(array.variable) for array in run], order) for run in runs]
    if not issued:
        return stacked, None
    if roles[_START] not in data.coords and "frame" in data.variables:
        return _of_predictions(data, arrays, order, fields.history_frames, path)
    return stacked, _starts(data, roles[_START], len(stacked), path)


def _variables(data: xarray.Dataset, names: tuple[str, ...], path: Path) -> list[xarray.DataArray]:
    """The arrays of these names: variables, or labels along a dimension."""
    missing = [name for name in names if name not in data.data_vars]
    if not missing:
        return [data[name] for name in names]
    for array in data.data_vars.values():
        for dim in array.dims:
            labels = data[dim].values.tolist() if dim in data.coords else []
            if set(names) <= set(map(str, labels)):
                places = [list(map(str, labels)).index(name) for name in names]
                return [array.isel({dim: place}, drop=True) for place in places]
    raise DataError(
        f"`{path}` has no variable {missing[0]!r}; it has {', '.join(map(str, data.data_vars))}. "
        "Give `variables` in the order of the channels."
    )


def _roles(
    data: xarray.Dataset, array: xarray.DataArray, wanted: Wanted, path: Path
) -> dict[str, str]:
    """Role to dimension, as in the data; start and lead besides."""
    what = f"the forecasts in `{path}`"
    check_given(array.dims, wanted.dims, what, roles=_ROLES)
    named = {**wanted.like, **wanted.dims}
    given = {role: name for role, name in named.items() if name in array.dims}
    return assign_roles(
        array.dims,
        given,
        lambda dim: _BY_NAME.get(dim.lower()) or dim_role(data, dim),
        what,
        _ROLES,
    )


def _check_roles(roles: Mapping[str, str], names: list[str], fields: Fields, path: Path) -> bool:
    """Whether the forecasts were issued one by one; refuses what is neither that nor a run."""
    issued = _START in roles and _LEAD in roles
    space = [role for role in SPACE if role in roles]
    alongside = _TIME in roles and not {_START, _LEAD} & set(roles)
    whole = len(space) == len(fields.grid) and set(roles) <= {*_ROLES[:4], *space}
    if whole and (alongside or (issued and _TIME not in roles)):
        return issued
    raise DataError(
        f"The forecasts in `{path}` have dimensions {names}, read as {roles}, but ([trajectory], "
        f"time, {len(fields.grid)} of space) or ([trajectory], start, lead, {len(fields.grid)} of "
        "space) is needed. Say what they are with `dims`, or rename them with `ds.rename`."
    )


def _check_grid(data: xarray.Dataset, roles: Mapping[str, str], fields: Fields, path: Path) -> None:
    """Refuse forecasts on another grid, or along another direction, than the data."""
    space = [roles[role] for role in SPACE if role in roles]
    sizes = tuple(data.sizes[dim] for dim in space)
    if sizes != fields.grid:
        raise GridMismatchError(
            f"Forecasts must be on the grid of the data, {fields.grid}, but those of `{path}` have "
            f"{dict(zip(space, sizes, strict=True))}. Resample them, or say with `dims` which axis "
            "is which."
        )
    if fields.falling:
        axes = [read_axis(data, dim, increasing=False, where=f"`{path}`") for dim in space]
        check_space(fields, axes, f"the forecasts in `{path}`", "the data")


def _starts(data: xarray.Dataset, dim: str, number: int, path: Path) -> list[list[int]] | None:
    """First frames of the histories, by the coordinate of the start."""
    if dim not in data.coords:
        if dim == _START:
            return None
        raise DataError(
            f"Nothing in `{path}` says which window each place along {dim!r} belongs to. Add a "
            f"coordinate {dim!r} with the first frame of each history, or `frame` with the last."
        )
    found = data[dim].values
    if found.dtype.kind not in "iuf" or (found != np.round(found)).any():
        raise DataError(
            f"Coordinate {dim!r} of `{path}` must hold the first frame of each history, a whole "
            f"number, but begins with {found[:3].tolist()}."
        )
    return [[int(value) for value in found]] * number


def _of_predictions(
    data: xarray.Dataset,
    arrays: Sequence[xarray.DataArray],
    order: tuple[str, ...],
    history: int,
    path: Path,
) -> Opened:
    """A file of `write_predictions`: one row per origin, with its recording and last frame."""
    frame = data["frame"].values
    owner = data[_TRAJECTORY].values if _TRAJECTORY in data.variables else np.zeros_like(frame)
    if frame.shape != (data.sizes[order[0]],) or owner.shape != frame.shape:
        raise DataError(
            f"`frame` and `trajectory` of `{path}` must hold one number for each place along "
            f"{order[0]!r}."
        )
    number = data.sizes.get(RECORDING, int(owner.max()) + 1)
    values: list[Any] = []
    starts = []
    for one in range(number):
        rows = np.flatnonzero(owner == one)
        parts = [Part(array.variable.isel({order[0]: rows})) for array in arrays]
        values.append(LazyTrajectory.of(parts, order))
        starts.append([int(frame[row]) - history + 1 for row in rows])
    return values, starts
