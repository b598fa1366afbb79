"""Valid flags: which values of a mask variable mean that a point was measured."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from r2no._types import Number
from r2no.checks import did_you_mean
from r2no.data.lazy import LazyTrajectory, as_mask
from r2no.errors import ConfigError

#: What `open` takes as a mask.
Mask = str | Mapping[str, Any] | None
_NAN = ("auto", "nan")


@dataclass(frozen=True)
class Flags:
    """A mask variable and the values of it that mean valid; None where it is true or false."""

    variable: str
    valid: tuple[float, ...] | None = None


def read_mask(mask: Mask) -> Flags | None:
    """The mask variable that ``mask`` names; None if NaN alone decides.

    Raises:
        ConfigError: if it is neither a name nor {variable: name, valid: values}.
    """
    if mask is None or (isinstance(mask, str) and mask in _NAN):
        return None
    if isinstance(mask, str):
        return Flags(mask)
    if not isinstance(mask, Mapping):
        raise ConfigError(
            '`mask` must be "auto", "nan", None, the name of a variable or {"variable": name, '
            f'"valid": [1]}}, but got {mask!r}.'
        )
    for key in mask:
        if key not in ("variable", "valid"):
            raise ConfigError(
                f"`mask` has no key {key!r}. {did_you_mean(str(key), ('variable', 'valid'))}"
            )
    if not isinstance(name := mask.get("variable"), str):
        raise ConfigError(f"`mask` must name its `variable`, but got {dict(mask)!r}.")
    return Flags(name, _valid_values(mask.get("valid")))


def _valid_values(values: Any) -> tuple[float, ...] | None:
    if values is None:
        return None
    found = [values] if isinstance(values, Number) else values
    plain = isinstance(found, Sequence) and not isinstance(found, str) and len(found) > 0
    if not plain or not all(isinstance(v, Number) and math.isfinite(v) for v in found):
        raise ConfigError(
            "`valid` of `mask` must hold the values that mean valid, as in [1], but got "
            f"{values!r}."
        )
    return tuple(float(value) for value in found)


def gaps_in_words(mask: Mask, shares: Mapping[str, float] | None) -> str:
    """What counts as missing, and how much of each channel is, if that was counted."""
    flags = read_mask(mask)
    if flags is None:
        rule = {"auto": "NaN, if any", "nan": "NaN"}.get(str(mask), "not allowed")
    elif flags.valid is None:
        rule = f"NaN and where {flags.variable!r} is false"
    else:
        shown = " or ".join(f"{value:g}" for value in flags.valid)
        rule = f"NaN and where {flags.variable!r} is not {shown}"
    if shares is None:
        return f"{rule}; not counted, describe(count=True) does"
    return f"{rule}; missing " + ", ".join(f"{n} {100 * lost:.3g} %" for n, lost in shares.items())


class Validity(LazyTrajectory):
    """True where a flag says valid and the value is finite; read like the values themselves."""

    values: LazyTrajectory
    flags: LazyTrajectory
    chosen: Flags
    where: str

    def __init__(
        self, values: LazyTrajectory, flags: LazyTrajectory, chosen: Flags, where: str
    ) -> None:
        super().__init__(values.parts, values.dims, values.frames)
        self.__dict__.update(values=values, flags=flags, chosen=chosen, where=where)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a mask: true or false."""
        return np.dtype(bool)

    def __getitem__(self, key: slice) -> np.ndarray:
        """Validity of some frames, with the channels last."""
        valid = valid_flags(self.flags[key], self.chosen, self.where)
        values = self.values[key]
        if values.dtype.kind != "f":
            return np.broadcast_to(valid, values.shape)
        result: np.ndarray = valid & np.isfinite(values)
        return result

    def part(self, frames: slice) -> "Validity":
        """The same with fewer frames; nothing is read."""
        flags = self.flags.part(frames)
        return Validity(self.values.part(frames), flags, self.chosen, self.where)

    def steps(self) -> Iterator[tuple[int, int]]:
        """As the values, which are read beside the flags."""
        return self.values.steps()


def valid_flags(values: np.ndarray, chosen: Flags, where: str) -> np.ndarray:
    """True where flags mean valid.

    Raises:
        ConfigError: if there are other values than true and false and nothing says what they mean.
    """
    if chosen.valid is not None:
        return np.isin(values, chosen.valid)
    if values.dtype.kind != "b":
        known = values[np.isfinite(values)] if values.dtype.kind == "f" else values
        if ((known != 0) & (known != 1)).any():
            found = np.unique(known)
            shown = ", ".join(f"{value:g}" for value in found[:6]) + (", ..." * (len(found) > 6))
            raise ConfigError(
                f"`mask` {chosen.variable!r} of {where} holds {shown}, so true and false do not "
                "say which values are valid. Name them, as in mask="
                f'{{"variable": {chosen.variable!r}, "valid": [1]}} (on the command line --mask '
                f"{chosen.variable}=1)."
            )
    return as_mask(values)
