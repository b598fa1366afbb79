"""Whether new data lie on the axes a model was adapted on: steps, units and directions."""

import numpy as np

from r2no.data.coordinates import Axis
from r2no.data.measurements import Measurements
from r2no.data.window import Fields
from r2no.errors import DataError, GridMismatchError

_SAME = {"seconds": "s", "second": "s", "sec": "s", "metres": "m", "meters": "m", "metre": "m"}
_WAYS = ("grows", "falls")


def check_axes(fields: Fields, data: Measurements) -> None:
    """Refuse data whose time, spacing or direction of axes are others than those of ``fields``.

    What one of them does not say (no coordinate, no units) is not compared.

    Raises:
        DataError: for another unit of time or of an axis.
        GridMismatchError: for another spacing, or an axis the other way round.
    """
    time = data.recordings[0].time
    _check_units("time", time, fields.time_units)
    for place, axis in enumerate(data.space):
        if axis.variable is None:
            continue
        if place < len(fields.axis_units):
            _check_units(repr(axis.name), axis, fields.axis_units[place])
        if place < len(fields.falling) and axis.falls != fields.falling[place]:
            raise GridMismatchError(
                f"Coordinate {axis.name!r} of `data` {_WAYS[axis.falls]}, but it "
                f"{_WAYS[fields.falling[place]]} in the data the model was adapted to, so the "
                "fields would be upside down. Turn the data round, as in "
                f"`data.isel({axis.name}=slice(None, None, -1))`."
            )
        spacing = fields.spacing[place] if place < len(fields.spacing) else 1.0
        known = bool(fields.falling) or spacing != 1.0
        if known and not np.isclose(axis.step, spacing, rtol=1e-2):
            raise GridMismatchError(
                f"`data` has a spacing of {axis.step:.6g} along {axis.name!r}, but the model was "
                f"adapted to {spacing:.6g}. Interpolate the data, or convert their coordinates."
            )


def _check_units(what: str, axis: Axis, expected: str) -> None:
    mine, theirs = (_SAME.get(text, text) for text in (axis.units, expected))
    if mine and theirs and mine != theirs:
        raise DataError(
            f"The coordinate of {what} of `data` is in {axis.units!r}, but the model was adapted "
            f"to {expected!r}. Convert the coordinate."
        )
