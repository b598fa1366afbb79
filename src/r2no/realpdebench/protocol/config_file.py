"""A config from a YAML file and options on top of it, with errors that name the key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from r2no._types import PathLike
from r2no.realpdebench.protocol.config import BenchmarkConfig
from r2no.settings import valid
from r2no.yaml_text import read_yaml

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
    config = valid(
        kind,
        values,
        "The settings",
        missing="is needed; give `{option}` or put it into the config file",
    )
    config.check()
    return config
