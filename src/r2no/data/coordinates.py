"""Axis: a coordinate in equal steps. Grids and time must be regular; the tolerance is here."""

import datetime
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from r2no.errors import IrregularGridError

#: A step may differ from the mean step by this fraction of it (and by rounding of the numbers).
TOLERANCE = 1e-3


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
