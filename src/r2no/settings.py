"""Settings: frozen, unknown keys refused, and every complaint a named error with the nearest key.

Python arguments and YAML files are checked alike, by :func:`problems`.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from r2no.checks import did_you_mean
from r2no.errors import ConfigError


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


Kind = TypeVar("Kind", bound=Settings)
Model = TypeVar("Model", bound=BaseModel)


def changed(settings: Kind, **values: Any) -> Kind:
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
