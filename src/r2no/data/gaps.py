"""Gaps: what is missing, by NaN or by the flags of a mask variable, and the rule that fills it.

The rule is that of :class:`r2no.data.ArrayWindows`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from r2no._types import Number
from r2no.checks import did_you_mean
from r2no.data.lazy import LazyTrajectory, as_mask
from r2no.errors import ConfigError

#: What `open` takes as a mask.
Mask = str | Mapping[str, Any] | None
_NAN = ("auto", "nan")
#: How often missing values are replaced by the mean of their neighbours; holes wider than twice
#: this many points keep the value from another time at their centre.
SWEEPS = 8


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


def fill_gaps(
    values: Float[Tensor, "time *space channel"], valid: Bool[Tensor, "time *space channel"]
) -> Float[Tensor, "time *space channel"]:
    """Fill missing values: first from other times, then smoothly from their surroundings.

    The second step approaches the solution of Laplace's equation in the gaps with the valid values
    around them as boundary values (Jacobi sweeps, edges of the grid insulated). A field moves
    between two frames by more than it bends between two points, so the neighbours know better.
    """
    if bool(valid.all()):
        return values
    filled = _fill_in_time(values, valid)
    for _ in range(SWEEPS):
        filled = torch.where(valid, filled, _neighbour_mean(filled))
    return filled


def _fill_in_time(values: Tensor, valid: Tensor) -> Tensor:
    """The last valid value before, else the next one after, else the channel's mean, else zero."""
    frames = values.shape[0]
    known = torch.where(valid, values, torch.zeros((), dtype=values.dtype))
    frame = torch.arange(frames).reshape(-1, *[1] * (values.ndim - 1))
    before = torch.where(valid, frame, -1).cummax(0).values
    after = torch.where(valid, frame, frames).flip(0).cummin(0).values.flip(0)
    source = torch.where(before >= 0, before, after)
    filled = known.gather(0, source.clamp(max=frames - 1))
    axes = tuple(range(values.ndim - 1))
    count = valid.sum(axes).clamp(min=1)
    mean = (known.double().sum(axes) / count).to(values.dtype)
    return torch.where(source < frames, filled, mean)


def _neighbour_mean(values: Tensor) -> Tensor:
    """Mean of the two neighbours along each spatial axis; an edge is its own neighbour outside."""
    total = torch.zeros_like(values)
    for axis in range(1, values.ndim - 1):
        size = values.shape[axis]
        before = torch.arange(-1, size - 1).clamp(min=0)
        after = torch.arange(1, size + 1).clamp(max=size - 1)
        total += values.index_select(axis, before) + values.index_select(axis, after)
    return total / (2 * (values.ndim - 2))
