"""Axis order, tensor aliases and small protocols.

Fields are (batch, time, height, width, channel) everywhere in the public API; on 1-D and 3-D
grids the two spatial axes become one or three. ``*space`` stands for those axes in shape strings.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

Grid = tuple[int, ...]
PathLike = str | Path
#: A whole number is a number too; said out loud because types are checked when tests run.
Number = float | int

Field = Float[Tensor, "batch time *space channel"]
FieldMask = Bool[Tensor, "batch time *space channel"]
Iterates = Float[Tensor, "member depth batch time *space channel"]
HalfPlane = Float[Tensor, "*half"]
CellIndex = Int[Tensor, "*half"]
Spectrum = Complex[Tensor, "batch time *half channel"]

#: A source operator: physical history in, physical prediction out.
Operator = Callable[[Tensor], Tensor]

Extent = Literal["corner", "ellipse"]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]

__all__ = [
    "Callable",
    "CellIndex",
    "Extent",
    "Field",
    "FieldMask",
    "Grid",
    "HalfPlane",
    "Iterates",
    "Number",
    "Operator",
    "PaddingMode",
    "PathLike",
    "Sequence",
    "Spectrum",
]
