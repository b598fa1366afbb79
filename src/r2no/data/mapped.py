"""Arrays in npy and npz files: checked against their headers, memory-mapped where they lie.

A memory-mapped array goes to worker processes as its place on disk.
"""

import mmap
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from r2no.errors import DataError, FileDamagedError

_MOST_MEMBERS = 10_000  # arrays of an npz file


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


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file, memory-mapped where they are not compressed (``np.savez``)."""
    found = {}
    with zipfile.ZipFile(path) as archive, np.load(path) as loaded:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            stored = member.compress_type == zipfile.ZIP_STORED
            mapped = _map_member(path, archive, member) if stored else None
            found[name] = loaded[name] if mapped is None else mapped
    return found


def _map_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray | None:
    """An array in its place in the archive; None if it is of a kind that cannot be mapped."""
    with archive.open(member) as stream:
        shape, by_column, dtype = _read_header(stream)
        header = stream.tell()
    if 0 in shape or not shape:
        return None
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)  # lengths of name and extra field, then the content
        lengths = np.frombuffer(file.read(4), dtype="<u2")
    offset = member.header_offset + 30 + int(lengths.sum()) + header
    return np.memmap(path, dtype, "r", offset, shape, "F" if by_column else "C")


def check_npz(path: Path) -> int:
    """Refuse arrays other than they say; returns how many bytes they declare together."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS:
            raise FileDamagedError(f"`{path}` holds more than {_MOST_MEMBERS} arrays.")
        for member in members:
            with archive.open(member) as stream:
                _check_array(stream, member.file_size, f"`{member.filename}` of `{path}`")
    return sum(member.file_size for member in members)


def check_npy(path: Path) -> None:
    """Refuse a file that is not as long as its header says."""
    with path.open("rb") as stream:
        _check_array(stream, path.stat().st_size, f"`{path}`")


def _check_array(stream: Any, size: int, where: str) -> None:
    """An array as ``np.save`` writes it is exactly as long as its header says."""
    shape, _, dtype = _read_header(stream)
    if dtype.hasobject:
        raise DataError(
            f"{where} holds Python objects, which only running its code could restore. Save "
            "arrays of numbers, one for each field."
        )
    needed = dtype.itemsize * prod(map(int, shape))
    if min(shape, default=0) < 0 or stream.tell() + needed > size:
        raise FileDamagedError(
            f"{where} declares shape {shape} of {dtype}, {needed} bytes, but holds "
            f"{size - stream.tell()}. It was cut short, or its header was edited."
        )


def _read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether by column, and type in the header of an npy file; stops behind it."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)  # version 3 differs in the text of names
