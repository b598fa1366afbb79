"""Short texts of objects for notebooks and logs: what they are, with sizes instead of values."""

import html
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

_FEW = 4  # values that are shown one by one
_LONGEST = 120  # characters of a part


def brief(value: Any) -> str:
    """A value in a few words: an array by its type and shape, a long list by its length."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _brief_array(value)
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Path):
        return f"'{value}'"
    if isinstance(value, Mapping):
        pairs = [f"{key!r}: {brief(item)}" for key, item in value.items()]
        return f"{{{', '.join(pairs)}}}" if len(pairs) <= _FEW else f"{len(pairs)} entries"
    if type(value) in (list, tuple):
        inner = ", ".join(brief(item) for item in value) if len(value) <= _FEW else ""
        return f"({inner})" if inner or not value else f"{len(value)} items"
    if hasattr(value, "named_parameters"):  # a network, whose own text is a tree of layers
        return type(value).__name__
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _brief_array(value: Any) -> str:
    kind, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    if len(shape) <= 1 and max(shape, default=1) <= _FEW:
        return brief(value.tolist())
    return f"{kind} {shape}"


def brief_repr(self: Any) -> str:
    """``__repr__`` of dataclasses and named tuples that hold tensors or other large things."""
    names = (
        [part.name for part in fields(self) if part.repr] if is_dataclass(self) else self._fields
    )
    parts = (f"{name}={brief(getattr(self, name))}" for name in names)
    return f"{type(self).__name__}({', '.join(parts)})"


def first_line(error: Exception) -> str:
    """What an error of others says, without what may follow."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def named_units(names: Iterable[str], units: Iterable[str]) -> str:
    """Channels with their units where they have any, as ``u [m/s], v [m/s]``."""
    units = tuple(units)
    names = tuple(names)
    units = units or ("",) * len(names)
    return ", ".join(f"{n} [{u}]" if u else n for n, u in zip(names, units, strict=True))


def bytes_in_words(count: int) -> str:
    """A size, in the unit that suits it."""
    unit, name = next(
        (u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1, "bytes")) if count >= u or u == 1
    )
    return f"{count / unit:,.1f} {name}".replace(".0 bytes", " bytes")


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table for notebooks; whatever files or users put into the texts is escaped."""
    body = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table><caption>{html.escape(title)}</caption><tbody>{body}</tbody></table>"
