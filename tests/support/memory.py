"""Data larger than memory, where memory is what a limit leaves of it."""

import ctypes
import gc
import resource
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
    """Let this process map this much more than it has; checked by asking for far more.

    What earlier tests freed is given back first where the allocator can; what it keeps mapped could
    otherwise serve a request that the limit should refuse.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc to know what is mapped")
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    now = 1024 * int(status.read_text().split("VmSize:")[1].split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + megabytes * 2**20, hard))
    try:
        with pytest.raises(MemoryError):
            np.empty((megabytes + 8192) * 2**20, np.uint8)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
