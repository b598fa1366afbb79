"""Layout: how a network orders its axes, and the way there and back from r2no's order."""

import math
import re
from dataclasses import dataclass

from torch import Tensor

from r2no._types import Grid
from r2no.errors import ConfigError, LayoutError

#: Names of the spatial axes by their number, and what else they may be called.
_SPACE = {1: ("W",), 2: ("H", "W"), 3: ("D", "H", "W")}
_ALIASES = {"X": "W", "Y": "H", "Z": "D"}

#: What is tried when the declared layout does not fit; H W stands for the spatial axes.
_USUAL = ("B T {s} C", "B C T {s}", "B T C {s}", "B (T C) {s}", "B (C T) {s}", "B {s} (T C)")


@dataclass(frozen=True)
class Layout:
    """An order of axes, such as ``"B C T H W"``; brackets join axes, the first varies slowest.

    B is the batch, T the frames, C the channels; H and W (or Y and X, with D or Z for depth) the
    grid. ``"B (T C) H W"`` holds all channels of the first frame, then those of the second.

    Attributes:
        groups: Axes by name, those joined in brackets together.
        dimensions: Number of spatial axes.
    """

    groups: tuple[tuple[str, ...], ...]
    dimensions: int

    @classmethod
    def parse(cls, text: str, dimensions: int = 2) -> "Layout":
        """Read a layout for a grid of so many axes.

        Raises:
            ConfigError: if an axis is unknown, missing or named twice.
        """
        parts = re.findall(r"\(([^()]*)\)|(\w+)", text)
        groups = tuple(
            tuple(_ALIASES.get(name, name) for name in (inside or alone).upper().split())
            for inside, alone in parts
        )
        found = [name for group in groups for name in group]
        expected = ["B", "T", "C", *_SPACE[dimensions]]
        if sorted(found) != sorted(expected) or groups[0] != ("B",):
            raise ConfigError(
                f"`layout` must begin with B and name each of {' '.join(expected)} once, but got "
                f"{text!r}. For these fields it can be {_quoted(usual_layouts(dimensions))}."
            )
        return cls(groups, dimensions)

    def __str__(self) -> str:
        return " ".join(
            group[0] if len(group) == 1 else f"({' '.join(group)})" for group in self.groups
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of r2no's own order, the channels last."""
        return ("B", "T", *_SPACE[self.dimensions], "C")

    def pack(self, field: Tensor) -> Tensor:
        """(batch, time, *space, channel) to this layout."""
        order = [self.axes.index(name) for group in self.groups for name in group]
        values = field.permute(order)
        for position, group in enumerate(self.groups):  # axes before are already joined
            if len(group) > 1:
                values = values.flatten(position, position + len(group) - 1)
        return values.contiguous()  # networks may call `view`

    def unpack(self, values: Tensor, grid: Grid, channels: int) -> Tensor:
        """This layout to (batch, time, *space, channel); the frames follow from the shape.

        Raises:
            LayoutError: if the shape is not that of a field with this grid and these channels.
        """
        sizes = {"C": channels, **dict(zip(self.axes[2:-1], grid, strict=True))}
        frames = self._frames(values, sizes)
        sizes |= {"T": frames}
        flat = [name for group in self.groups for name in group]
        shape = [values.shape[0] if name == "B" else sizes[name] for name in flat]
        return values.reshape(shape).permute([flat.index(name) for name in self.axes])

    def shape(self, frames: int, grid: Grid, channels: int) -> str:
        """What a tensor of this layout looks like, for messages."""
        sizes = {"T": frames, "C": channels, **dict(zip(self.axes[2:-1], grid, strict=True))}
        parts = [str(math.prod(sizes[name] for name in group)) for group in self.groups[1:]]
        return f"({', '.join(['batch', *parts])})"

    def _frames(self, values: Tensor, sizes: dict[str, int]) -> int:
        if values.ndim != len(self.groups):
            raise LayoutError(f"{values.ndim} axes where {self} has {len(self.groups)}")
        frames = 0
        for group, size in zip(self.groups, values.shape, strict=True):
            known = math.prod(sizes[name] for name in group if name in sizes)
            if "T" in group:
                frames = size // known
            if group != ("B",) and (size % known if "T" in group else size != known):
                raise LayoutError(f"{size} entries on {'·'.join(group)}, which is {known} here")
        return frames


def usual_layouts(dimensions: int) -> tuple[str, ...]:
    """Layouts that networks commonly use on a grid of so many axes."""
    return tuple(text.format(s=" ".join(_SPACE[dimensions])) for text in _USUAL)


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)
