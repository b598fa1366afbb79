"""Colour tables shared by script and static pictures, and pictures as data addresses."""

import base64
import io

import numpy as np
from matplotlib import colormaps
from matplotlib.image import imsave

_STEPS = 128

#: What is drawn with which table (signed: orange below zero, purple above); all three can be read
#: with colour-vision deficiencies.
TABLES = {"field": "viridis", "signed": "PuOr", "amount": "cividis"}


#: Of groups of columns, in order; those beyond share the last. Told apart with colour-vision
#: deficiencies (after Okabe and Ito).
_GROUPS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#56b4e9", "#d55e00", "#8a8a8a")


def group_colour(number: int) -> str:
    """Colour of a group of columns by its number."""
    return _GROUPS[min(number, len(_GROUPS) - 1)]


def group_picture(numbers: np.ndarray) -> str:
    """As :func:`picture`, of numbers of groups."""
    finite = np.isfinite(numbers)
    colours = np.array([list(bytes.fromhex(colour[1:])) for colour in _GROUPS], dtype=np.uint8)
    codes = np.clip(np.where(finite, numbers, 0).astype(int), 0, len(_GROUPS) - 1)
    return _png(np.dstack([colours[codes], np.where(finite, 255, 0).astype(np.uint8)]))


def table(name: str) -> np.ndarray:
    """128 colours as bytes, (step, RGB)."""
    return colormaps[TABLES[name]](np.linspace(0, 1, _STEPS), bytes=True)[:, :3]


def table_text(name: str) -> str:
    """The table as hexadecimal digits, six a colour."""
    return table(name).tobytes().hex()


def picture(values: np.ndarray, name: str, low: float, high: float) -> str:
    """A PNG as a data address, one pixel a value; missing values are transparent."""
    finite = np.isfinite(values)
    place = (np.where(finite, values, low) - low) / ((high - low) or 1.0)
    codes = np.clip((place * _STEPS).astype(int), 0, _STEPS - 1)
    alpha = np.where(finite, 255, 0).astype(np.uint8)
    return _png(np.dstack([table(name)[codes], alpha]))


def _png(pixels: np.ndarray) -> str:
    """Pixels as a data address."""
    buffer = io.BytesIO()
    imsave(buffer, pixels, format="png", metadata={"Software": "r2no"})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def ramp(name: str) -> str:
    """The table as a PNG one pixel high, for a colour bar."""
    return picture(np.linspace(0, 1, _STEPS)[None], name, 0.0, 1.0)
