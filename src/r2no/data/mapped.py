"""Memory-mapped arrays that travel to worker processes as a place in a file."""

import mmap
from typing import Any

import numpy as np

from r2no.errors import DataError


class MappedFile:
    """Where a memory-mapped array lies in its file, so workers map it again, not copy it."""

    def __init__(self, array: np.memmap) -> None:
        page = mmap.ALLOCATIONGRANULARITY
        begin = np.frombuffer(array._mmap, dtype=np.uint8).ctypes.data  # type: ignore[attr-defined]
        self.offset = array.offset // page * page + array.ctypes.data - begin
        self.file, self.dtype, self.shape = str(array.filename), array.dtype, array.shape

    @staticmethod
    def of(array: Any) -> Any:
        """The place of a memory-mapped array on disk; anything else as it is."""
        mapped = isinstance(array, np.memmap) and array.filename is not None
        shared = mapped and array._mmap is not None and array.mode != "c"
        return MappedFile(array) if shared and array.flags.c_contiguous else array

    def open(self) -> np.memmap:
        """Map the array again, read-only."""
        try:
            return np.memmap(self.file, self.dtype, "r", self.offset, self.shape)
        except (OSError, ValueError) as error:
            raise DataError(
                f"Could not map `{self.file}` again in another process: {error}. "
                "Keep the file in place while its windows are in use."
            ) from error
