"""Whether data lie on the axes that others lie on, and what neither says."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from r2no.data.coordinates import Axis, check_axes, read_axis
from r2no.data.window import Fields
from r2no.errors import DataError, GridMismatchError

FIELDS = Fields(
    (4, 6),
    2,
    2,
    ("u",),
    (0,),
    spacing=(0.1, 0.2),
    time_step=0.5,
    axes=("y", "x"),
    axis_units=("m", "m"),
    falling=(False, False),
    time_units="s",
)


def axis(name: str, size: int, step: float, units: str) -> Axis:
    data = xr.Dataset(coords={name: (name, np.arange(size) * step, {"units": units})})
    return read_axis(data, name, increasing=name == "time", where="`here`")


TIME, SPACE = axis("time", 5, 0.5, "s"), (axis("y", 4, 0.1, "m"), axis("x", 6, 0.2, "m"))


def check(time: Axis = TIME, y: Axis = SPACE[0], fields: Fields = FIELDS) -> None:
    check_axes(fields, time, (y, SPACE[1]), "`here`")


def test_the_same_axes_and_those_without_coordinates_pass():
    check()
    check(axis("time", 5, 0.5, "sec"), axis("y", 4, 0.1, "metre"))
    check(Axis("time", 5, 1.0, "", None), Axis("y", 4, 1.0, "", None))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"time": axis("time", 5, 0.25, "s")}, DataError, "time step of the data is 0.25"),
        ({"time": axis("time", 5, 0.5, "h")}, DataError, "time of `here` is in 'h'.* in 's'"),
        ({"y": axis("y", 4, 0.1, "mm")}, DataError, "'y' of `here` is in 'mm'"),
        ({"y": axis("y", 4, 0.3, "m")}, GridMismatchError, "`here` has a spacing of 0.3"),
        ({"y": axis("y", 4, -0.1, "m")}, GridMismatchError, "of `here` falls.*upside down"),
    ],
)
def test_other_axes_are_named(changed, error, message):
    with pytest.raises(error, match=message):
        check(**changed)


@pytest.mark.parametrize(("mine", "theirs"), [(6.0, 1.0), (1.0, 6.0)])
def test_a_time_step_of_one_is_compared_where_its_unit_is_said(mine, theirs):
    hourly = replace(FIELDS, time_step=theirs, time_units="h")
    with pytest.raises(DataError, match=f"time step of the data is {mine:.0f}, .* {theirs:.0f}"):
        check(axis("time", 5, mine, "h"), fields=hourly)
    check(axis("time", 5, theirs, "h"), fields=hourly)
    check(axis("time", 5, mine, ""), fields=replace(hourly, time_units=""))


def test_one_frame_has_no_time_step_to_compare():
    check(axis("time", 1, 0.5, "s"))


def test_recordings_may_begin_on_any_date():
    fields = replace(FIELDS, time_units="days since 2000-01-01")
    check(axis("time", 5, 0.5, "days since 2001-01-01"), fields=fields)
    with pytest.raises(DataError, match=r"'hours'.* in 'days'"):
        check(axis("time", 5, 0.5, "hours since 2000-01-01"), fields=fields)
