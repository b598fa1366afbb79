"""A config from a YAML file and options on top of it, with errors that name the key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from yaml import YAMLError

from r2no._types import PathLike
from r2no.data.realpdebench.systems import choice
from r2no.errors import ConfigError, FileDamagedError, FileMissingError
from r2no.experiments.realpdebench.config import BenchmarkConfig
from r2no.reading import read_text
from r2no.yaml_text import load_yaml

_LARGEST = 2**16  # bytes of a config file
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


def read_yaml(path: Path) -> dict[str, Any]:
    """The `name: value` lines of a YAML file."""
    try:
        content = load_yaml(read_text(path, largest=_LARGEST))
    except FileMissingError as error:
        raise ConfigError(f"There is no config file `{path}`.") from error
    except (YAMLError, FileDamagedError) as error:
        raise ConfigError(f"`{path}` is not a YAML file: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"`{path}` must hold `name: value` lines, as `r2no train --help` lists.")
    return content


def _problems(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        text = problem["msg"].removeprefix("Value error, ").rstrip(".")
        if problem["type"] == "missing":
            text = f"is needed; give `--{name.replace('_', '-')}` or put it into the config file"
        lines.append(text if name and f"`{name}`" in text else f"`{name}` {text}")
    return "; ".join(lines) + "."
