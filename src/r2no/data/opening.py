"""open(): what the data are called, whether files agree, and a Measurements of them."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from r2no import checks
from r2no._types import Number
from r2no.checks import did_you_mean
from r2no.data.coordinates import Axis
from r2no.data.files import Source, read_all, reading_file
from r2no.data.gaps import Mask, read_mask, valid_flags
from r2no.data.measurements import CHEAP, Measurements
from r2no.data.recordings import Recording, read_recordings
from r2no.errors import (
    ConfigError,
    DataError,
    EmptySplitError,
    GridMismatchError,
    UnknownNameError,
)

#: Units: one for all channels, one for each, or by name.
Units = str | Sequence[str] | Mapping[str, str]


def open(
    source: Source,
    *,
    variables: Sequence[str] | None = None,
    dims: Mapping[str, str] | None = None,
    mask: Mask = "auto",
    conditioning: Sequence[str] = (),
    axes: Sequence[str] | None = None,
    units: Units | None = None,
    spacing: Sequence[Number] | Number | None = None,
    time_step: Number | None = None,
    allow_sparse: bool = False,
) -> Measurements:
    """Open measured fields; nothing but names and coordinates is read.

    Args:
        source: A path, a pattern or a folder (NetCDF, Zarr, HDF5, MATLAB, npz, npy), an xarray
            object, an array (time, space..., channel), a mapping of arrays (time, space...), or a
            list of these. Each is a trajectory, or several along its trajectory dimension; files
            of a single frame each are one trajectory per folder.
        variables: Names of the variables, in the order of the channels (or labels along a channel
            dimension; for an array without names, names for its channels); default every
            floating-point field over time and space but flags and measures of quality.
        dims: What dimensions are where the guess is wrong: a mapping of "trajectory", "time",
            "depth", "height", "width", "channel" to their names.
        mask: See :class:`Measurements`.
        conditioning: Scalar variables or attributes that are appended to the history.
        axes: Names of the axes of arrays that come without (NumPy, npz, plain HDF5; MATLAB, in
            MATLAB's order).
        units: Where the data have none: one for all channels, one for each, or by name.
        spacing: Of the grid, where the data have no coordinates.
        time_step: Between frames, where the data have no times.
        allow_sparse: Open files that declare far more values than are in them, such as stores
            with missing chunks; refused otherwise, since a hostile file does the same.

    Example:
        >>> wave = np.sin(np.arange(20.0)[:, None, None] + np.arange(6.0)).repeat(4, 1)
        >>> data = xr.Dataset({"u": (("time", "lat", "lon"), wave, {"units": "m/s"})})
        >>> print(open(data, time_step=0.5))  # doctest: +ELLIPSIS
        Measurements: 1 trajectory of 20 frames, 3,840 bytes
          channels    u [m/s]
          dimensions  time = time, height = lat, width = lon
          ...
    """
    if dims is not None and not isinstance(dims, Mapping):
        raise ConfigError(f"`dims` must be a mapping of roles to names, but got {dims!r:.60}.")
    dims, flags, conditioning = dict(dims or {}), read_mask(mask), conditioning or ()
    for name, given in (("variables", variables), ("axes", axes), ("conditioning", conditioning)):
        _check_names(name, given)
    found = []
    for name, data in read_all(
        source, axes, variables, dims.get("time"), allow_sparse=allow_sparse
    ):
        with _named_errors(name):
            found += read_recordings(
                name, data, variables=variables, dims=dims, mask=flags, conditioning=conditioning
            )
    found = [_with_units(_with_steps(recording, spacing, time_step), units) for recording in found]
    _check_all(found)
    return Measurements(tuple(found), mask, tuple(conditioning))


def _named_errors(name: str) -> AbstractContextManager[None]:
    """Name the file in whatever its reader raises; nothing for data that are in no file."""
    file = Path(name)
    return reading_file(file, "fields with coordinates") if file.exists() else nullcontext()


def _check_all(found: Sequence[Recording]) -> None:
    """Refuse no data, recordings without values, and recordings that do not go together."""
    if not found:
        raise EmptySplitError("`source` is empty. Give at least one file, array or data set.")
    for recording in found:
        if 0 in recording.values.shape:
            raise DataError(
                f"`{recording.name}` holds no values: its shape is {tuple(recording.values.shape)}."
            )
    for other in found[1:]:
        _check_agreement(found[0], other)
    for recording in found:
        _check_flags(recording)


def _check_names(argument: str, given: Sequence[str] | None) -> None:
    if given is None:
        return
    given = checks.names(argument, given)
    if argument != "conditioning" and (not given or len(set(given)) < len(given)):
        raise ConfigError(
            f"`{argument}` must hold at least one name and none twice, but got {list(given)}."
        )


def _check_flags(recording: Recording) -> None:
    """Look at flags early: all of them where that is cheap, else the first ones."""
    if recording.flags is None or recording.chosen is None:
        return
    for piece in recording.flags.pieces():
        valid_flags(piece, recording.chosen, f"`{recording.name}`")
        if recording.flags.nbytes > CHEAP:
            return


def _with_units(recording: Recording, units: Units | None) -> Recording:
    """Units that were given, or that a text beside the data states, where variables have none."""
    if units is None:
        stated = tuple(own or recording.stated_units for own in recording.units)
        return replace(recording, units=stated)
    names = recording.channels
    if isinstance(units, Mapping):
        for name in units:
            if name not in names:
                raise UnknownNameError(
                    f"`units` names {name!r}, which is no channel of `{recording.name}`. "
                    + did_you_mean(str(name), names)
                )
        given = [str(units.get(name, "")) for name in names]
    else:
        given = [units] * len(names) if isinstance(units, str) else list(units)
    if len(given) != len(names) or not all(isinstance(one, str) for one in given):
        raise ConfigError(
            f"`units` must be one text, or one for each of the channels {names}, but got {units!r}."
        )
    for name, own, new in zip(names, recording.units, given, strict=True):
        if own and new and own != new:
            raise ConfigError(
                f"`units` is for data without units, but {name!r} of `{recording.name}` is in "
                f"{own!r}, not {new!r}. Leave the argument out, or convert the data."
            )
    merged = [own or new for own, new in zip(recording.units, given, strict=True)]
    return replace(recording, units=tuple(merged))


def _with_steps(
    recording: Recording, spacing: Sequence[Number] | Number | None, time_step: Number | None
) -> Recording:
    """Coordinates from ``spacing`` and ``time_step`` where the data have none."""
    count = len(recording.space)
    if isinstance(spacing, (int, float)):
        spacing = [spacing] * count
    spacing = None if spacing is None else checks.listed("spacing", spacing)
    if spacing is not None and len(spacing) != count:
        raise ConfigError(
            f"`spacing` must hold one number for each of {count} spatial axes, but "
            f"got {tuple(spacing)}."
        )
    steps = [None] * count if spacing is None else list(spacing)
    for name, step in [("time_step", time_step), *(("spacing", one) for one in steps)]:
        plain = isinstance(step, (int, float)) and not isinstance(step, bool)
        if step is not None and not (plain and math.isfinite(step) and step > 0):
            raise ConfigError(f"`{name}` must be positive and finite, but got {step!r}.")
    space = tuple(
        _with_step(axis, step, recording.name)
        for axis, step in zip(recording.space, steps, strict=True)
    )
    return recording.on_axes(_with_step(recording.time, time_step, recording.name), space)


def _with_step(axis: Axis, step: Number | None, where: str) -> Axis:
    if step is None:
        return axis
    if axis.variable is not None:
        raise ConfigError(
            f"`spacing` and `time_step` are for data without coordinates, but `{where}` has "
            f"{axis.name!r}. Leave the argument out, or drop the coordinate."
        )
    return axis.in_steps(float(step))


def _check_agreement(first: Recording, other: Recording) -> None:
    """Refuse recordings that are not of the same thing."""
    grids = [[(axis.name, axis.size) for axis in r.space] for r in (first, other)]
    if grids[0] != grids[1]:
        raise GridMismatchError(
            f"All trajectories must share one grid, but `{first.name}` has {grids[0]} and "
            f"`{other.name}` has {grids[1]}. Resample them, or open one grid at a time."
        )
    for what in ("channels", "units"):
        if getattr(first, what) != getattr(other, what):
            raise DataError(
                f"All trajectories must have the same {what}, but `{first.name}` has "
                f"{getattr(first, what)} and `{other.name}` has {getattr(other, what)}. "
                "Convert or rename them, or choose common ones with `variables`."
            )
    if abs(first.time.step - other.time.step) > 1e-3 * first.time.step:
        raise DataError(
            f"All trajectories must have the same time step, but `{first.name}` has "
            f"{first.time.step:.6g} and `{other.name}` has {other.time.step:.6g}. "
            "Resample them in time, or open them apart."
        )
    for here, there in zip(first.space, other.space, strict=True):
        if here.variable is None or there.variable is None:
            continue
        if here.variable.dtype.kind in "iuf" and not np.allclose(
            here.variable.values, there.variable.values, rtol=0, atol=1e-3 * here.step
        ):
            raise GridMismatchError(
                f"Coordinate {here.name!r} differs between `{first.name}` and `{other.name}`. "
                "Interpolate to one grid (`data.interp_like`), or open them apart."
            )
