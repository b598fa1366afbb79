"""Data larger than what a test may keep of them in memory."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest


class Virtual:
    """An array that exists only where it is sliced, and remembers how much was ever asked for."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.largest = shape, np.dtype(np.float32), 0

    def __getitem__(self, key: tuple[Any, ...]) -> np.ndarray:
        axes = [np.arange(n, dtype=np.int32)[k] for n, k in zip(self.shape, key, strict=True)]
        grids = np.meshgrid(*axes, indexing="ij", sparse=True)
        found = sum((7 + 3 * n) * grid for n, grid in enumerate(grids)) % 251
        self.largest = max(self.largest, 4 * found.size)
        return found.astype(np.float32) / 251


@contextmanager
def memory_for_no_more_than(megabytes: int) -> Iterator[None]:
    """Fail if this process came to hold this much more than it held at the start.

    Measured, not limited: a limit of the address space makes libraries that do not expect a refused
    request corrupt their memory, and later tests crash. What earlier tests freed is given back
    first, where the allocator can, so that little of it is left to hide growth.
    """
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs the /proc of Linux to measure what is held")
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the highest point is now the present one
    before = _held("VmRSS")
    yield
    grown = _held("VmHWM") - before
    assert grown <= megabytes, f"memory grew by {grown:.0f} MB; {megabytes} MB were to be enough"


def _held(line: str) -> float:
    return int(Path("/proc/self/status").read_text().split(f"{line}:")[1].split()[0]) / 1024
