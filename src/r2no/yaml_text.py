"""YAML of unknown origin: plain values of bounded depth, no aliases, no name twice."""

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from r2no.errors import ConfigError, FileDamagedError, FileMissingError
from r2no.reading import read_text

_DEEPEST = 32  # levels
_LARGEST = 2**16  # bytes of a config file
_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Fast):  # type: ignore[misc]
    """PyYAML's safe loader, but a name that is given twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        content = super().construct_mapping(node, deep=deep)
        if len(content) < len(node.value):
            names = Counter(str(key.value) for key, _ in node.value)
            raise yaml.YAMLError(f"{names.most_common(1)[0][0]!r} is there twice")
        return content  # type: ignore[no-any-return]


def read_yaml(path: Path) -> dict[str, Any]:
    """The `name: value` lines of a YAML file.

    Raises:
        ConfigError: naming it, if it is missing or holds anything else.
    """
    try:
        content = load_yaml(read_text(path, largest=_LARGEST))
    except FileMissingError as error:
        raise ConfigError(f"There is no config file `{path}`.") from error
    except (yaml.YAMLError, FileDamagedError) as error:
        raise ConfigError(f"`{path}` is not a YAML file: {error}") from error
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise ConfigError(f"`{path}` must hold `name: value` lines, but holds a `{kind}`.")
    return content


def load_yaml(text: str) -> Any:
    """The values in ``text``.

    Raises:
        yaml.YAMLError: if it is not YAML, or uses what no config needs and an attack does: deep
            nesting, or aliases, which a few lines can make stand for millions of values.
    """
    try:
        _check_events(text)
        return yaml.load(text, _Loader)  # a safe loader
    except yaml.YAMLError:
        raise
    except Exception as error:  # PyYAML's own constructors raise anything for odd dates or numbers
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from error


def _check_events(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, _Fast):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"it has an alias, *{event.anchor}; write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"nested deeper than {_DEEPEST} levels")
