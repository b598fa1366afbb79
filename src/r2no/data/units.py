"""Units as data files write them: whether two are the same, and how to convert one to the other."""

import re
from dataclasses import dataclass

from r2no.errors import DataError

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
    given, wanted = given.strip(), wanted.strip()
    if not given or not wanted or given == wanted:
        return Conversion()
    first, second = _read(given), _read(wanted)
    if first is None or second is None or first[1] != second[1]:
        raise DataError(
            f"{what} is in {given!r}, but the model was adapted in {wanted!r}. Convert the data."
        )
    offset = (first[2] - second[2]) / second[0]
    return Conversion(first[0] / second[0], offset)


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
