"""Axis: a coordinate in equal steps. Grids and time must be regular; the tolerance is here.

Whether data lie on the axes that others lie on is decided here too (:func:`check_space`), and how
units as data files write them become one another (:func:`conversion`).
"""

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from r2no.data.window import Fields
from r2no.errors import DataError, GridMismatchError, IrregularGridError, ShapeError

#: A step may differ from the mean step by this fraction of it (and by rounding of the numbers).
TOLERANCE = 1e-3
_WAYS = ("grows", "falls")

_PREFIXES = {"k": 1e3, "h": 1e2, "da": 1e1, "d": 1e-1, "c": 1e-2, "m": 1e-3, "u": 1e-6, "µ": 1e-6}
_PREFIXES |= {"μ": 1e-6, "n": 1e-9, "M": 1e6, "G": 1e9}

# Symbol: factor to SI, powers of (metre, second, kilogram, kelvin).
_Power = tuple[int, int, int, int]
_SYMBOLS: dict[str, tuple[float, _Power]] = {
    "m": (1.0, (1, 0, 0, 0)),
    "s": (1.0, (0, 1, 0, 0)),
    "g": (1e-3, (0, 0, 1, 0)),
    "K": (1.0, (0, 0, 0, 1)),
    "N": (1.0, (1, -2, 1, 0)),
    "Pa": (1.0, (-1, -2, 1, 0)),
    "J": (1.0, (2, -2, 1, 0)),
    "W": (1.0, (2, -3, 1, 0)),
    "Hz": (1.0, (0, -1, 0, 0)),
    "bar": (1e5, (-1, -2, 1, 0)),
    "atm": (101325.0, (-1, -2, 1, 0)),
    "psi": (6894.757293168, (-1, -2, 1, 0)),
    "min": (60.0, (0, 1, 0, 0)),
    "h": (3600.0, (0, 1, 0, 0)),
    "hr": (3600.0, (0, 1, 0, 0)),
    "day": (86400.0, (0, 1, 0, 0)),
    "in": (0.0254, (1, 0, 0, 0)),
    "ft": (0.3048, (1, 0, 0, 0)),
    "knot": (1852 / 3600, (1, -1, 0, 0)),
    "mph": (0.44704, (1, -1, 0, 0)),
    "1": (1.0, (0, 0, 0, 0)),
    "%": (0.01, (0, 0, 0, 0)),
}
_WORDS = {
    "metre": "m",
    "meter": "m",
    "second": "s",
    "sec": "s",
    "kelvin": "K",
    "pascal": "Pa",
    "hour": "h",
    "minute": "min",
    "knots": "knot",
    "kn": "knot",
    "kt": "knot",
    "kph": "km/h",
    "kmh": "km/h",
    "percent": "%",
    "dimensionless": "1",
}
_CELSIUS = {"degC", "°C", "celsius", "Celsius", "deg_C", "degree_Celsius", "degrees_Celsius"}
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_FACTOR = re.compile(r"([A-Za-zµμ%]+|1)(?:\^|\*\*)?\(?([+-]?\d+)?\)?")


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


def check_axes(fields: Fields, time: Axis, space: Sequence[Axis], mine: str) -> None:
    """Refuse data whose time, spacing or direction of axes are others than a model's ``fields``.

    What one of them does not say (no coordinate, no units, a time step of 1 without a unit, the
    step of a single frame) is not compared. ``mine`` is what the axes belong to, for messages.

    Raises:
        DataError: for another time step, or another unit of time or of an axis.
        GridMismatchError: for another spacing, or an axis the other way round.
    """
    _check_units("time", time, fields.time_units, mine)
    for axis, units in zip(space, fields.axis_units, strict=False):
        if axis.variable is not None:
            _check_units(repr(axis.name), axis, units, mine)
    steps = (time.step, time.units), (fields.time_step, fields.time_units)
    said = time.size > 1 and all(step != 1 or units for step, units in steps)
    if said and not np.isclose(time.step, fields.time_step, rtol=1e-2):
        raise DataError(
            f"The time step of the data is {time.step:.6g}, but the model was adapted to "
            f"{fields.time_step:.6g}. Resample the data in time."
        )
    check_space(fields, space, mine, "the data the model was adapted to")


def check_alike(fields: Fields, windows: Fields) -> None:
    """Refuse windows on which a score of a model of ``fields`` would say nothing.

    What is measured may differ. Units, steps and directions are compared where both say them, as in
    :func:`check_axes`.

    Raises:
        ShapeError: for other frames, channels or constants.
        GridMismatchError: for another grid, spacing, or an axis the other way round.
        DataError: for other units, or another time step.
    """
    if windows.channels != fields.channels:
        raise ShapeError(
            f"`windows` must have the model's channels {fields.channels}, but has "
            f"{windows.channels}. Give them in this order and under these names."
        )
    if windows.grid != fields.grid:
        raise GridMismatchError(
            f"`windows` must lie on the model's grid {fields.grid}, but lies on {windows.grid}. "
            "Interpolate the data, or look at the order of their axes."
        )
    frames = [(one.history_frames, one.horizon_frames) for one in (windows, fields)]
    if frames[0] != frames[1] or windows.conditioning != fields.conditioning:
        raise ShapeError(
            f"`windows` must be of {fields.history_frames} + {fields.horizon_frames} frames with "
            f"the constants {fields.conditioning}, as in training, but is of "
            f"{windows.history_frames} + {windows.horizon_frames} with {windows.conditioning}."
        )
    for name, given, wanted in zip(fields.channels, windows.units, fields.units, strict=False):
        what = f"Channel {name!r} of `windows`"
        if not conversion(given, wanted, what=what).trivial:
            raise _other_units(what, given, wanted)
    time = Axis("time", 2, windows.time_step, windows.time_units, None)
    check_axes(fields, time, _spaced(windows, fields.falling), "`windows`")


def _spaced(windows: Fields, falling: Sequence[bool]) -> list[Axis]:
    """The spatial axes of windows, with a coordinate where their steps are known."""
    number = len(windows.grid)
    names = windows.axes or tuple(f"axis {place + 1}" for place in range(number))
    steps, units = windows.spacing or (1.0,) * number, windows.axis_units or ("",) * number
    falls = windows.falling or falling or (False,) * number
    found = []
    for name, step, unit, down in zip(names, steps, units, falls, strict=True):
        axis = Axis(name, 2, step, unit, None)
        known = step != 1 or bool(windows.falling)
        found.append(axis.in_steps(step, unit, falls=down) if known else axis)
    return found


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


def _check_units(what: str, axis: Axis, expected: str, mine: str) -> None:
    """Compare units of an axis; of "days since ..." the days, since recordings begin anywhere."""
    what = f"The coordinate of {what} of {mine}"
    given, wanted = (text.partition(" since ")[0] for text in (axis.units, expected))
    if not conversion(given, wanted, what=what).trivial:
        raise _other_units(what, given, wanted)


@dataclass(frozen=True)
class Conversion:
    """``value * factor + offset`` turns one unit into another."""

    factor: float = 1.0
    offset: float = 0.0

    @property
    def trivial(self) -> bool:
        """Whether both are one unit, spelt in two ways perhaps."""
        return abs(self.factor - 1) < 1e-9 and self.offset == 0


def conversion(given: str, wanted: str, *, what: str) -> Conversion:
    """How to turn values in ``given`` into ``wanted``; nothing to do where either is unknown ("").

    Raises:
        DataError: if they are of different kinds, or one of them cannot be read.
    """
    given, wanted = (unit.partition(" since ")[0].strip() for unit in (given, wanted))
    if not given or not wanted or given == wanted:
        return Conversion()
    first, second = _read(given), _read(wanted)
    if first is None or second is None or first[1] != second[1]:
        raise _other_units(what, given, wanted)
    offset = (first[2] - second[2]) / second[0]
    return Conversion(first[0] / second[0], offset)


def _other_units(what: str, given: str, wanted: str) -> DataError:
    return DataError(
        f"{what} is in {given!r}, but the model was adapted in {wanted!r}. Convert the data."
    )


def _read(text: str) -> tuple[float, _Power, float] | None:
    """Factor to SI, powers of the base units and offset; None for what is not understood."""
    if text in _CELSIUS:
        return 1.0, (0, 0, 0, 1), 273.15
    factor, power = 1.0, (0, 0, 0, 0)
    text = _WORDS.get(text.lower(), text).translate(_SUPERSCRIPTS)
    for number, part in enumerate(text.split("/")):
        for word in re.split(r"[\s.·*]+(?![*\d])", part.replace("**", "^").strip()):
            found = _symbol(word)
            if found is None:
                return None
            sign = -1 if number else 1
            factor *= found[0] ** sign
            power = tuple(a + sign * b for a, b in zip(power, found[1], strict=True))  # type: ignore[assignment]
    return factor, power, 0.0


def _symbol(word: str) -> tuple[float, _Power] | None:
    """One symbol with its exponent, as in ``mm`` or ``s-1``."""
    match = _FACTOR.fullmatch(word)
    if match is None:
        return None
    name, exponent = match.group(1), int(match.group(2) or 1)
    name = _WORDS.get(name.lower(), _WORDS.get(name.lower().removesuffix("s"), name))
    candidates = [(1.0, name)]
    candidates += [(size, name[len(p) :]) for p, size in _PREFIXES.items() if name.startswith(p)]
    for size, rest in candidates:
        if rest in _SYMBOLS and (size == 1.0 or rest not in ("1", "%", "min", "h", "day")):
            factor, power = _SYMBOLS[rest]
            raised: _Power = tuple(exponent * p for p in power)  # type: ignore[assignment]
            return (size * factor) ** exponent, raised
    return None
