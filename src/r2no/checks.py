"""What people give, checked: a wrong value is named where it enters and not deep inside.

Single arguments one by one; settings as a whole, alike from Python and YAML: frozen, unknown keys
refused, and every complaint a named error with the nearest right key.
"""

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
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


class Settings(BaseModel, frozen=True, extra="forbid"):
    """Base of all settings that users write in Python."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            kind = type(self)
            raise ConfigError(f"{kind.__name__}: {problems(error, kind)}") from error

    # Parts of a whole are checked by the whole, which knows where they are.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


SomeSettings = TypeVar("SomeSettings", bound=Settings)
Model = TypeVar("Model", bound=BaseModel)


def changed(settings: SomeSettings, **values: Any) -> SomeSettings:
    """A copy with other values, checked as if they had been given at once."""
    return type(settings)(**{**dict(settings), **values})


def valid(kind: type[Model], values: Mapping[str, Any], what: str, **options: str) -> Model:
    """Settings of a kind from values that somebody wrote; options as of :func:`problems`.

    Raises:
        ConfigError: naming ``what`` is wrong, and each key with the nearest right one.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        raise ConfigError(f"{what} is not valid: {problems(error, kind, **options)}") from error


def problems(error: ValidationError, model: type[BaseModel], *, missing: str = "is needed") -> str:
    """What is wrong with which key, in one line, with the nearest right key or value.

    ``missing`` is said of a key that is not there; ``{option}`` in it is the key as an option.
    """
    lines = []
    for problem in error.errors():
        parts = [str(part) for part in problem["loc"]]
        name, text = ".".join(parts), problem["msg"].removeprefix("Value error, ").rstrip(".")
        if problem["type"] == "missing":
            text = missing.format(option=f"--{name.replace('_', '-')}")
        if problem["type"] == "extra_forbidden":
            text = f"is not known. {did_you_mean(parts[-1], _keys(model, parts[:-1]))}".rstrip(".")
        if problem["type"] == "literal_error":
            options = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
            hint = did_you_mean(str(problem["input"]), options)
            text = f"cannot be {problem['input']!r}. {hint}"
        named = not name or f"`{name}`" in text
        lines.append((text if named else f"`{name}` {text}").rstrip("."))
    return "; ".join(lines) + "."


def _keys(model: Any, parts: list[str]) -> list[str]:
    """The keys that are known under a path of keys."""
    for part in parts:
        field = model.model_fields.get(part)
        options = getattr(field.annotation, "__args__", (field.annotation,)) if field else ()
        models = [
            item for item in options if isinstance(item, type) and issubclass(item, BaseModel)
        ]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)
