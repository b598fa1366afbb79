"""Data files of unknown origin: what they declare against what they hold, before they are opened.

Opening and inspecting cost what a file is worth, in time and memory: see the checks of each format.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from r2no.data.hdf5_checks import check_hdf5, sparse_remedy
from r2no.data.zarr_checks import check_zarr
from r2no.errors import DataError, FileDamagedError, R2NOError
from r2no.reading import check_declared, regular_file

_MOST_MEMBERS = 10_000  # arrays of an npz file


def check_file(path: Path, kind: str, *, allow_sparse: bool = False) -> None:
    """Refuse what would cost far more than the file's size to open, or leads to other files.

    Args:
        path: The file, or the folder of a Zarr store.
        kind: netcdf, zarr, hdf5, mat, npz or npy.
        allow_sparse: Whether it may declare values that are not in it.

    Raises:
        DataError: if it refers to other files or names foreign codecs.
        FileDamagedError: if it declares far more than it holds, or is no regular file.
    """
    try:
        if kind == "zarr":
            check_zarr(path, allow_sparse=allow_sparse)
            return
        regular_file(path)
        if kind in ("netcdf", "hdf5", "mat") and h5py.is_hdf5(path):
            check_hdf5(path, allow_sparse=allow_sparse, soft_links=kind != "netcdf")
        elif kind == "netcdf":
            _check_classic(path, allow_sparse)
        elif kind == "npy":
            with path.open("rb") as stream:
                _check_array(stream, path.stat().st_size, f"`{path}`")
        elif kind == "npz":
            _check_npz(path, allow_sparse)
        elif kind == "mat":
            _check_mat(path, allow_sparse)
    except R2NOError:
        raise
    except Exception as error:  # readers raise anything for what is no such file
        raise unreadable(path, kind, error) from error


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Name the file in whatever its reader raises; nothing for data that are in no file."""
    try:
        yield
    except R2NOError:
        raise
    except Exception as error:  # readers raise anything for damaged content
        if not Path(name).exists():
            raise
        raise unreadable(Path(name), "fields with coordinates", error) from error


def unreadable(path: Path, kind: str, error: Exception) -> DataError:
    """That a file could not be read, with the reader's own words."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return DataError(
        f"Could not read `{path}` as {kind}: {reason}. It is damaged, still being written, or "
        "of another format than its name says."
    )


def _check_classic(path: Path, allow_sparse: bool) -> None:
    """NetCDF before version 4."""
    try:
        import netCDF4
    except ImportError:
        return  # said where the file is opened
    with netCDF4.Dataset(path) as file:
        declared = sum(
            np.dtype(one.dtype).itemsize * prod(map(int, one.shape))
            for one in file.variables.values()
        )
    if not allow_sparse:
        check_declared(f"`{path}`", declared, path.stat().st_size, sparse_remedy(), ratio=2)


def _check_npz(path: Path, allow_sparse: bool) -> None:
    held = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS:
            raise FileDamagedError(f"`{path}` holds more than {_MOST_MEMBERS} arrays.")
        for member in members:
            with archive.open(member) as stream:
                _check_array(stream, member.file_size, f"`{member.filename}` of `{path}`")
    declared = sum(member.file_size for member in members)
    if not allow_sparse:
        check_declared(f"`{path}`", declared, held, sparse_remedy())


def _check_array(stream: Any, size: int, where: str) -> None:
    """An array as ``np.save`` writes it is exactly as long as its header says."""
    shape, _, dtype = read_header(stream)
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


def read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether by column, and type in the header of an npy file; stops behind it."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)  # version 3 differs in the text of names


def _check_mat(path: Path, allow_sparse: bool) -> None:
    """MATLAB files before version 7.3; their variables may be compressed."""
    try:
        from scipy.io import whosmat
    except ImportError:
        return  # the reader names the extra

    declared = sum(8 * prod(map(int, shape)) for _, shape, _ in whosmat(path))
    if not allow_sparse:
        check_declared(f"`{path}`", declared, path.stat().st_size, sparse_remedy())
