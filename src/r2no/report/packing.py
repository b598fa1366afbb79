"""Numbers in a page: arrays as base64 text, non-finite numbers as null."""

import base64
import math
from typing import Any

import numpy as np
from torch import Tensor

#: Largest code of a 16-bit array; code 0 stands for a missing value.
_CODES = 65535


def pack(values: Tensor) -> dict[str, Any]:
    """An array in 16 bits a value: low + (code - 1) · (high - low) / 65534, code 0 missing (NaN).

    Example:
        >>> import torch
        >>> packed = pack(torch.tensor([0.0, 1.0, float("nan")]))
        >>> packed["low"], packed["high"], unpack(packed).tolist()
        (0.0, 1.0, [0.0, 1.0, nan])
    """
    array = values.detach().cpu().double().numpy()
    finite = np.isfinite(array)
    low = float(array[finite].min()) if finite.any() else 0.0
    high = float(array[finite].max()) if finite.any() else 0.0
    step = (high - low) / (_CODES - 1) or 1.0
    codes = np.where(finite, np.round((np.where(finite, array, low) - low) / step) + 1, 0)
    return {"shape": list(array.shape), "low": low, "high": high, "data": _text(codes, "<u2")}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """Inverse of :func:`pack`, to half a step."""
    codes = np.frombuffer(base64.b64decode(packed["data"]), "<u2").astype(float)
    step = (packed["high"] - packed["low"]) / (_CODES - 1)
    values = np.where(codes > 0, packed["low"] + (codes - 1) * step, math.nan)
    return values.reshape(packed["shape"])


def pack_floats(values: Tensor) -> dict[str, Any]:
    """An array in single precision, for numbers of very different size such as weights."""
    array = values.detach().cpu().numpy()
    return {"shape": list(array.shape), "data": _text(array, "<f4")}


def pack_numbers(values: Tensor) -> dict[str, Any]:
    """An array of whole numbers below 65536."""
    array = values.detach().cpu().numpy()
    return {"shape": list(array.shape), "data": _text(array, "<u2")}


def unpack_numbers(packed: dict[str, Any]) -> np.ndarray:
    """Inverse of :func:`pack_numbers`."""
    return np.frombuffer(base64.b64decode(packed["data"]), "<u2").reshape(packed["shape"])


def _text(array: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array.astype(kind)).tobytes()).decode("ascii")


def clean(content: Any) -> Any:
    """``content`` with None for every NaN and infinity, and lists for tuples: strict JSON."""
    if isinstance(content, dict):
        return {str(key): clean(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [clean(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def rounded(values: Tensor, digits: int = 5) -> Any:
    """Nested lists with so many significant digits, None where not finite."""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(item) for item in value]
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None

    return short(values.detach().cpu().double().tolist())


def minus(text: str) -> str:
    """A number's text with a real minus sign."""
    return text.replace("-", "\u2212")
