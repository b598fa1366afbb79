"""open(): what the data are called, whether files agree, and a Measurements of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from r2no._types import Number
from r2no.data.coordinates import Axis
from r2no.data.files import Source, read_all
from r2no.data.measurements import Measurements
from r2no.data.recordings import Recording, read_recordings
from r2no.errors import ConfigError, DataError, EmptySplitError, GridMismatchError


def open(
    source: Source,
    *,
    variables: Sequence[str] | None = None,
    dims: Mapping[str, str] | None = None,
    mask: str | None = "auto",
    conditioning: Sequence[str] = (),
    axes: Sequence[str] | None = None,
    spacing: Sequence[Number] | None = None,
    time_step: Number | None = None,
) -> Measurements:
    """Open measured fields; nothing but names and coordinates is read.

    Args:
        source: A path or pattern (NetCDF, Zarr, HDF5, npz, npy), an xarray object, an array
            (time, space..., channel), a mapping of arrays (time, space...), or a list of these.
            Each is a trajectory, or several along its trajectory dimension.
        variables: Names of the variables, in the order of the channels (or labels along a channel
            dimension; for an array without names, names for its channels); default every
            floating-point field over time and space.
        dims: What dimensions are where the guess is wrong: a mapping of "trajectory", "time",
            "depth", "height", "width", "channel" to their names.
        mask: See :class:`Measurements`.
        conditioning: Scalar variables or attributes that are appended to the history.
        axes: Names of the axes of arrays that come without (NumPy, npz, plain HDF5).
        spacing: Of the grid, where the data have no coordinates.
        time_step: Likewise.

    Example:
        >>> wave = np.sin(np.arange(20.0)[:, None, None] + np.arange(6.0)).repeat(4, 1)
        >>> data = xr.Dataset({"u": (("time", "lat", "lon"), wave, {"units": "m/s"})})
        >>> print(open(data, time_step=0.5))  # doctest: +ELLIPSIS
        Measurements: 1 trajectory of 20 frames, 3,840 bytes
          channels    u [m/s]
          dimensions  time = time, height = lat, width = lon
          ...
    """
    found = []
    for name, data in read_all(source, axes, variables):
        found += read_recordings(
            name,
            data,
            variables=variables,
            dims=dims or {},
            mask=None if mask in ("auto", "nan") else mask,
            conditioning=conditioning,
        )
    if not found:
        raise EmptySplitError("`source` is empty. Give at least one file, array or data set.")
    found = [_with_steps(recording, spacing, time_step) for recording in found]
    for other in found[1:]:
        _check_agreement(found[0], other)
    return Measurements(tuple(found), mask, tuple(conditioning))


def _with_steps(
    recording: Recording, spacing: Sequence[Number] | None, time_step: Number | None
) -> Recording:
    """Coordinates from ``spacing`` and ``time_step`` where the data have none."""
    if spacing is not None and len(spacing) != len(recording.space):
        raise ConfigError(
            f"`spacing` must hold one number for each of {len(recording.space)} spatial axes, but "
            f"got {tuple(spacing)}."
        )
    steps = [None] * len(recording.space) if spacing is None else list(spacing)
    space = tuple(
        _with_step(axis, step, recording.name)
        for axis, step in zip(recording.space, steps, strict=True)
    )
    made = {axis.name: axis.variable for axis in space if axis.variable is not None}
    return replace(
        recording,
        time=_with_step(recording.time, time_step, recording.name),
        space=space,
        coordinates={**recording.coordinates, **made},
    )


def _with_step(axis: Axis, step: Number | None, where: str) -> Axis:
    if step is None:
        return axis
    if axis.variable is not None:
        raise ConfigError(
            f"`spacing` and `time_step` are for data without coordinates, but `{where}` has "
            f"{axis.name!r}. Leave the argument out, or drop the coordinate."
        )
    values = xr.Variable((axis.name,), np.arange(axis.size) * float(step))
    return replace(axis, step=float(step), variable=values)


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
