"""Text from files of unknown origin: regular files only, bounded, strict JSON and plain YAML.

What a file may cost is known before it is parsed, so a hostile one is refused and never hangs.
"""

import json
import math
import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from r2no._types import PathLike
from r2no.errors import ConfigError, FileDamagedError, FileMissingError

SMALL = 8 * 2**20  # bytes that anything may declare
RATIO = 100  # by which declared values may exceed the bytes that hold them
_LARGEST = 32 * 2**20  # bytes of a JSON file
_MOST_PARTS = 1_000_000  # values in it
_DEEPEST = 64  # levels in it
_LARGEST_YAML = 2**16  # bytes of a config file
_DEEPEST_YAML = 32  # levels in it

_KINDS: dict[Callable[[int], bool], str] = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def regular_file(path: PathLike) -> Path:
    """``path``, if it is a regular file; pipes and devices may never end.

    Raises:
        FileMissingError: if there is nothing of this name.
        FileDamagedError: if it is a folder, a pipe, a socket or a device.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # nothing there, a loop of links, a name too long
        raise FileMissingError(f"There is no file `{path}`.") from error
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS.items() if test(mode)), "no regular file")
        raise FileDamagedError(
            f"`{path}` must be a regular file, but is {kind}. Copy its content into a file first."
        )
    return path


def check_declared(
    where: str, declared: int, held: int, remedy: str, *, small: int = SMALL, ratio: int = RATIO
) -> None:
    """Refuse what declares far more bytes than are there to fill them.

    Compression and repeated values explain a factor of ``ratio`` at most; what declares no
    more than ``small`` bytes costs little in any case.

    Raises:
        FileDamagedError: giving both numbers, and ``remedy``.
    """
    if declared > max(small, ratio * held):
        raise FileDamagedError(
            f"{where} declares {declared} bytes of values but holds {held} bytes in all. {remedy}"
        )


def read_text(path: PathLike, *, largest: int) -> str:
    """The text of a regular file of at most ``largest`` bytes.

    Raises:
        FileMissingError: if there is no such file.
        FileDamagedError: if it is no regular file, larger, or not UTF-8.
    """
    path = regular_file(path)
    with path.open("rb") as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise FileDamagedError(
            f"`{path}` holds {os.stat(path).st_size} bytes, but no such file has more than "
            f"{largest}. It is not the file that was meant; restore it from a copy."
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise FileDamagedError(
            f"`{path}` is not text in UTF-8 ({error}). Restore it from a copy."
        ) from error


def read_json(path: PathLike, *, allow_nan: bool = False) -> Any:
    """Read a JSON file strictly, naming it when it is damaged; see :func:`parse_json`."""
    return parse_json(read_text(path, largest=_LARGEST), f"`{path}`", allow_nan=allow_nan)


def parse_json(text: str, where: str, *, allow_nan: bool = False) -> Any:
    """JSON by its standard: no NaN, no infinity, no name twice; of bounded size and depth.

    Files of others often hold NaN all the same: ``allow_nan``.

    Raises:
        FileDamagedError: naming ``where``, if the text is anything else.
    """
    if sum(map(text.count, ",[{")) > _MOST_PARTS:
        raise _damaged(where, f"more than {_MOST_PARTS} values")
    try:
        content = json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=None if allow_nan else _refuse_constant,
            parse_float=None if allow_nan else _finite,
        )
    except RecursionError as error:
        raise _damaged(where, f"nested deeper than {_DEEPEST} levels") from error
    except ValueError as error:
        raise _damaged(where, str(error)) from error
    _check_depth(content, where)
    if "\\ud" in text.lower():  # half a character, which no file could be written with
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise _damaged(where, f"half a character, {error.object[error.start]!r}") from error
    return content


def _damaged(where: str, reason: str) -> FileDamagedError:
    return FileDamagedError(
        f"{where} is not valid JSON ({reason}). It was cut short or edited; "
        "restore it from a copy, or delete it to have it made again."
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        double = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {double[:80]!r} is there twice")
    return content


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond the range of numbers")
    return value


def _check_depth(content: Any, where: str) -> None:
    """Level by level, since recursion would end in an error of its own."""
    level: list[Any] = [[content]]
    for _ in range(_DEEPEST + 1):
        inner: list[Any] = []
        for value in level:
            inner.extend(value.values() if isinstance(value, dict) else value)
        level = [value for value in inner if isinstance(value, (dict, list))]
        if not level:
            return
    raise _damaged(where, f"nested deeper than {_DEEPEST} levels")


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
        content = load_yaml(read_text(path, largest=_LARGEST_YAML))
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
        if depth > _DEEPEST_YAML:
            raise yaml.YAMLError(f"nested deeper than {_DEEPEST_YAML} levels")
