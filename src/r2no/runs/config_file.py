"""The `name: value` lines of a YAML file, with errors that name it."""

from pathlib import Path
from typing import Any

from yaml import YAMLError

from r2no.errors import ConfigError, FileDamagedError, FileMissingError
from r2no.reading import read_text
from r2no.yaml_text import load_yaml

_LARGEST = 2**16  # bytes of a config file


def read_yaml(path: Path) -> dict[str, Any]:
    """The `name: value` lines of a YAML file."""
    try:
        content = load_yaml(read_text(path, largest=_LARGEST))
    except FileMissingError as error:
        raise ConfigError(f"There is no config file `{path}`.") from error
    except (YAMLError, FileDamagedError) as error:
        raise ConfigError(f"`{path}` is not a YAML file: {error}") from error
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise ConfigError(f"`{path}` must hold `name: value` lines, but holds a `{kind}`.")
    return content
