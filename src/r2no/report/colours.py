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
    pixels = np.dstack([table(name)[codes], alpha])
    buffer = io.BytesIO()
    imsave(buffer, pixels, format="png", metadata={"Software": "r2no"})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def ramp(name: str) -> str:
    """The table as a PNG one pixel high, for a colour bar."""
    return picture(np.linspace(0, 1, _STEPS)[None], name, 0.0, 1.0)
