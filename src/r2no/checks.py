"""Checks of single arguments, so that a wrong one is named where it enters and not deep inside."""

import difflib
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from r2no.errors import ConfigError, ShapeError

Kind = TypeVar("Kind")


def whole(name: str, value: Any, *, least: int | None = 1) -> int:
    """``value`` as an int, from ``least`` on unless that is None."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ConfigError(f"`{name}` must be a whole number, but got {_shown(value)}.")
    if least is not None and value < least:
        raise ConfigError(f"`{name}` must be at least {least}, but got {value}.")
    return int(value)


def real(name: str, value: Any, *, finite: bool = True) -> float:
    """``value`` as a float, finite unless said otherwise."""
    number = isinstance(value, (int, float, np.integer, np.floating))
    if not number or isinstance(value, bool):
        raise ConfigError(f"`{name}` must be a number, but got {_shown(value)}.")
    if finite and not math.isfinite(value):
        raise ConfigError(f"`{name}` must be a finite number, but got {value}.")
    return float(value)


def listed(name: str, value: Any) -> tuple[Any, ...]:
    """``value`` as a tuple; a text is not taken for its letters."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ConfigError(f"`{name}` must be a list or a tuple, but got {_shown(value)}.")
    return tuple(value)


def names(name: str, value: Any) -> tuple[str, ...]:
    """``value`` as a tuple of texts."""
    plain = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    found = tuple(value) if plain else (None,)
    if not all(isinstance(one, str) for one in found):
        raise ConfigError(f"`{name}` must be a list of names, but got {_shown(value)}.")
    return found


def path(name: str, value: Any) -> Path:
    """``value`` as a path."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise ConfigError(f"`{name}` must be a path or a text, but got {_shown(value)}.")
    if "\0" in os.fspath(value):
        raise ConfigError(f"`{name}` must not hold a zero byte, but got {_shown(value)}.")
    return Path(value)


def instance(name: str, value: Any, kind: type[Kind]) -> Kind:
    """``value``, which must be of a class."""
    if not isinstance(value, kind):
        raise ConfigError(f"`{name}` must be a `{kind.__name__}`, but got {_shown(value)}.")
    return value


def tensor(name: str, value: Any) -> Tensor:
    """``value``, which must be a tensor of real floating-point numbers."""
    if not isinstance(value, Tensor):
        raise ShapeError(
            f"`{name}` must be a tensor, but got {_shown(value)}. Convert it with "
            "`torch.as_tensor(..., dtype=torch.float32)`."
        )
    if value.dtype not in (torch.float32, torch.float64):
        raise ShapeError(
            f"`{name}` must be of type float32 or float64, but is {value.dtype}. Convert it with "
            "`.float()`."
        )
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for a wrong name: the nearest right one and all that there are."""
    found = [str(candidate) for candidate in known]
    plain = {_plain(candidate): candidate for candidate in found}
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.4)
    hint = f"Did you mean {plain[close[0]]!r}? " if close else ""
    return f"{hint}There are {', '.join(map(repr, found)) or 'none'}."


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def choice(argument: str, value: str, allowed: Iterable[str]) -> str:
    """``value``, which must be one of those allowed."""
    known = list(allowed)
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise ConfigError(f"`{argument}` cannot be {value!r}. {hint}")
    return value


def _shown(value: Any) -> str:
    """What came, by its value where that is short, and by its type."""
    text = repr(value) if isinstance(value, (str, bytes, int, float, list, tuple, dict)) else ""
    return f"{text:.60} (`{type(value).__name__}`)" if text else f"a `{type(value).__name__}`"
