"""A config from a YAML file and options on top of it, with errors that name the key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from r2no._types import PathLike
from r2no.errors import ConfigError
from r2no.realpdebench.protocol.config import BenchmarkConfig
from r2no.realpdebench.systems import choice
from r2no.runs.config_file import read_yaml

Config = TypeVar("Config", bound=BenchmarkConfig)


def read_config(
    kind: type[Config], path: PathLike | None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Read a YAML file, if given, and put ``overrides`` on top.

    Raises:
        ConfigError: for an unknown key, with the nearest right one, or a value that does not fit.
    """
    values: dict[str, Any] = {} if path is None else read_yaml(Path(path))
    values |= overrides or {}
    for name in values:
        choice("config key", str(name), tuple(kind.model_fields))
    try:
        config = kind(**values)
        config.check()
    except ValidationError as error:
        raise ConfigError(f"The settings are not valid: {_problems(error)}") from error
    return config


def _problems(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        text = problem["msg"].removeprefix("Value error, ").rstrip(".")
        if problem["type"] == "missing":
            text = f"is needed; give `--{name.replace('_', '-')}` or put it into the config file"
        lines.append(text if name and f"`{name}`" in text else f"`{name}` {text}")
    return "; ".join(lines) + "."
