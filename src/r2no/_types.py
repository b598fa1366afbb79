"""Axis order, tensor aliases and small protocols.

Fields are (batch, time, height, width, channel) everywhere in the public API; on 1-D and 3-D
grids the two spatial axes become one or three. ``*space`` stands for those axes in shape strings.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from jaxtyping import Float
from torch import Tensor

Grid = tuple[int, ...]
PathLike = str | Path
#: A whole number is a number too; said out loud because types are checked when tests run.
Number = float | int

#: Fields of some windows; ``*space_channel`` stands for the spatial axes and the channel.
Field = Float[Tensor, "batch time *space_channel"]
#: What is known of some windows; its channels may be more, by the constants.
History = Float[Tensor, "batch history_time *space_history_channel"]
#: A number for each stored coefficient of a real field's spectrum.
HalfPlane = Float[Tensor, "*half"]

#: A source operator: physical history in, physical prediction out.
Operator = Callable[[Tensor], Tensor]

Extent = Literal["corner", "ellipse"]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
