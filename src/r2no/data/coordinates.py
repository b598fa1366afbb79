"""Axis: a coordinate in equal steps. Grids and time must be regular; the tolerance is here.

Whether data lie on the axes that others lie on is decided here too (:func:`check_space`).
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from r2no.data.window import Fields
from r2no.errors import DataError, GridMismatchError, IrregularGridError

#: A step may differ from the mean step by this fraction of it (and by rounding of the numbers).
TOLERANCE = 1e-3
_SAME_UNIT = {"seconds": "s", "second": "s", "sec": "s", "metres": "m", "meters": "m", "metre": "m"}
_WAYS = ("grows", "falls")


@dataclass(frozen=True, eq=False)
class Axis:
    """A dimension with its coordinate, if there is one, and the constant step along it.

    Attributes:
        name: Of the dimension.
        size: Points along it.
        step: Distance between neighbours; in seconds for dates, 1 without a coordinate.
        units: Of ``step``; "s" for dates.
        variable: The coordinate, or None.
    """

    name: str
    size: int
    step: float
    units: str
    variable: xr.Variable | None

    def values(self, positions: np.ndarray) -> np.ndarray:
        """Coordinates at ``positions``, also beyond the last one."""
        if self.variable is None:
            return positions.astype(np.float64)
        known = self.variable.values
        inside = known[np.clip(positions, 0, self.size - 1)]
        beyond = np.maximum(positions - (self.size - 1), 0)
        return _later(inside, beyond * self.step)

    def later(self, position: int, seconds: np.ndarray) -> np.ndarray:
        """Coordinates some time after that at ``position``."""
        start = self.values(np.array([position]))
        return _later(np.repeat(start, len(seconds)), seconds)

    @property
    def falls(self) -> bool:
        """Whether its coordinate decreases."""
        if self.variable is None or self.size < 2 or self.variable.dtype.kind not in "iuf":
            return False
        return bool(self.variable.values[-1] < self.variable.values[0])

    def in_steps(self, step: float, units: str = "", *, falls: bool = False) -> "Axis":
        """The same with a coordinate of equal steps from zero."""
        signed = -step if falls else step
        attributes = {"units": units} if units else {}
        values = xr.Variable((self.name,), np.arange(self.size) * signed, attributes)
        return replace(self, step=step, units=units, variable=values)

    def completed(self, step: float, units: str, falls: bool = False) -> "Axis":
        """The same with such a coordinate where it has none and these say something."""
        if self.variable is not None or (step == 1 and not units):
            return self
        return self.in_steps(step, units, falls=falls)

    def __str__(self) -> str:
        step = f"step {self.step:.6g} {self.units}".rstrip()
        return (
            f"{self.name} ({self.size}, {step if self.variable is not None else 'no coordinate'})"
        )


def read_axis(data: xr.Dataset, name: str, *, increasing: bool, where: str) -> Axis:
    """The axis of dimension ``name``; refuses coordinates that are not in equal steps.

    Args:
        data: Where it is.
        name: Of the dimension.
        increasing: Whether it must grow (time); space may also fall.
        where: The file or object, for messages.

    Raises:
        IrregularGridError: for repeated, unordered, missing or unequally spaced coordinates.
    """
    size = data.sizes[name]
    if name not in data.variables or data.variables[name].dims != (name,):
        return Axis(name, size, 1.0, "", None)
    variable = data.variables[name].load()
    numbers = _numbers(variable.values)
    if numbers is None or size < 2:
        return Axis(name, size, 1.0, "", variable)
    units = "s" if variable.dtype.kind in "MmO" else str(variable.attrs.get("units", ""))
    return Axis(name, size, _step(numbers, name, increasing, where), units, variable)


def _step(numbers: np.ndarray, name: str, increasing: bool, where: str) -> float:
    """The step of a coordinate; one that turns back or leaves gaps is refused by position."""
    steps = np.diff(numbers)
    mean = (numbers[-1] - numbers[0]) / (len(numbers) - 1)
    ordered = (steps > 0).all() or (not increasing and (steps < 0).all())
    if not ordered:
        wrong = int(np.flatnonzero(~(steps * (mean if not increasing else 1) > 0))[0])
        raise IrregularGridError(
            f"Coordinate {name!r} of {where} must {'grow' if increasing else 'be monotonic'}, but "
            f"goes from {numbers[wrong]:.6g} to {numbers[wrong + 1]:.6g} at position {wrong}. "
            f"Sort it with `data.sortby({name!r})` and drop repeated entries."
        )
    rounding = 4 * np.finfo(np.float32).eps * float(np.abs(numbers).max())
    allowed = TOLERANCE * abs(mean) + min(rounding, 0.05 * abs(mean))
    usual = float(np.median(steps))
    wrong = int(np.argmax(np.abs(steps - usual)))
    if abs(steps[wrong] - usual) > allowed:
        raise IrregularGridError(
            f"Coordinate {name!r} of {where} must advance in equal steps (to {TOLERANCE:g} of a "
            f"step), but the step is {usual:.6g} and between positions {wrong} and {wrong + 1} it "
            f"is {steps[wrong]:.6g}. r2no works on regular grids only: "
            + (
                "fill missing frames with NaN (`data.reindex`) or cut the recording into several."
                if increasing
                else "resample first, for instance with `data.interp`."
            )
        )
    return abs(float(mean))


def _numbers(values: np.ndarray) -> np.ndarray | None:
    """A coordinate as float64; dates as seconds after the first; None if it is not a number."""
    if values.dtype.kind == "M":
        result: np.ndarray | None = (values - values[0]) / np.timedelta64(1, "s")
        return result
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "s")
    if values.dtype.kind == "O" and hasattr(values[0], "timetuple"):  # other calendars
        return np.array([(value - values[0]).total_seconds() for value in values])
    return values.astype(np.float64) if values.dtype.kind in "iuf" else None


def _later(start: np.ndarray, amount: np.ndarray) -> np.ndarray:
    later: np.ndarray
    if start.dtype.kind in "Mm":
        later = start + np.round(amount * 1e9).astype("timedelta64[ns]")
        return later
    if start.dtype.kind == "O":
        delays: list[Any] = [datetime.timedelta(seconds=float(value)) for value in amount]
        return np.array([one + delay for one, delay in zip(start, delays, strict=True)], object)
    later = start.astype(np.float64) + amount
    return later


def check_axes(fields: Fields, time: Axis, space: Sequence[Axis]) -> None:
    """Refuse data whose time, spacing or direction of axes are others than a model's ``fields``.

    What one of them does not say (no coordinate, no units) is not compared.

    Raises:
        DataError: for another unit of time or of an axis.
        GridMismatchError: for another spacing, or an axis the other way round.
    """
    _check_units("time", time, fields.time_units)
    for axis, units in zip(space, fields.axis_units, strict=False):
        if axis.variable is not None:
            _check_units(repr(axis.name), axis, units)
    check_space(fields, space, "`data`", "the data the model was adapted to")


def check_space(fields: Fields, space: Sequence[Axis], mine: str, theirs: str) -> None:
    """Refuse spatial axes that are spaced or directed otherwise than those of ``fields``.

    Args:
        fields: Of what came before.
        space: The spatial axes to compare; those without a coordinate are not.
        mine: What they belong to, for messages.
        theirs: What ``fields`` belong to, for messages.
    """
    for place, axis in enumerate(space):
        if axis.variable is None:
            continue
        if place < len(fields.falling) and axis.falls != fields.falling[place]:
            raise GridMismatchError(
                f"Coordinate {axis.name!r} of {mine} {_WAYS[axis.falls]}, but it "
                f"{_WAYS[fields.falling[place]]} in {theirs}, so the fields would be upside down. "
                f"Turn the data round, as in `data.isel({axis.name}=slice(None, None, -1))`."
            )
        spacing = fields.spacing[place] if place < len(fields.spacing) else 1.0
        known = bool(fields.falling) or spacing != 1.0
        if known and not np.isclose(axis.step, spacing, rtol=1e-2):
            raise GridMismatchError(
                f"Along {axis.name!r}, {mine} has a spacing of {axis.step:.6g}, but {theirs} "
                f"{spacing:.6g}. Interpolate the data, or convert their coordinates."
            )


def _check_units(what: str, axis: Axis, expected: str) -> None:
    mine, theirs = (_SAME_UNIT.get(text, text) for text in (axis.units, expected))
    if mine and theirs and mine != theirs:
        raise DataError(
            f"The coordinate of {what} of `data` is in {axis.units!r}, but the model was adapted "
            f"to {expected!r}. Convert the coordinate."
        )
