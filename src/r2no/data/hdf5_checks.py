"""HDF5 files of unknown origin: what they declare and where it lies, before a value is read.

A file of a kilobyte can declare terabytes that are not in it, and a data set can lie in any other
file of the machine: external storage, virtual data sets, links. Headers tell.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path

import h5py

from r2no.errors import DataError, FileDamagedError
from r2no.reading import check_declared

_MOST_OBJECTS = 20_000
_DEEPEST = 32  # groups in groups
LINE = 2 * 2**20  # bytes that a list of coordinates may declare: these are read in full


def check_hdf5(path: Path, *, allow_sparse: bool = False, soft_links: bool = True) -> None:
    """Refuse what lies outside the file, and what declares far more than the file holds.

    Args:
        path: A regular file.
        allow_sparse: Whether values may be declared that are not there (fill values).
        soft_links: Whether links inside the file are harmless, since they are not followed.

    Raises:
        DataError: if it refers to other files.
        FileDamagedError: if it declares too much, or its groups have no end.
    """
    held, declared = path.stat().st_size, 0
    with h5py.File(path) as file:
        for item in _datasets(file, path, soft_links):
            where = f"`{item.name}` of `{path}`"
            _check_own(item, where)
            size = _declared(item)
            if item.ndim <= 1 and size > LINE and not allow_sparse:
                check_declared(where, size, item.id.get_storage_size(), sparse_remedy(), small=LINE)
            declared += size
    if not allow_sparse:
        check_declared(f"`{path}`", declared, held, sparse_remedy())


def sparse_remedy() -> str:
    """What to do about a file that declares more than it holds."""
    return (
        "It is damaged, hostile, or sparse: never written, or full of one value. If that is meant, "
        "pass `allow_sparse=True` (`allow_sparse: true` in a config, `--allow-sparse`)."
    )


def _datasets(file: h5py.File, path: Path, soft_links: bool) -> Iterator[h5py.Dataset]:
    """Every data set once; groups are walked without recursion."""
    groups, seen, count = [(file["/"], 0)], {_address(file["/"])}, 0
    while groups:
        group, depth = groups.pop()
        count += len(group)
        if count > _MOST_OBJECTS or depth > _DEEPEST:
            raise FileDamagedError(
                f"`{path}` has more than {_MOST_OBJECTS} objects, or groups nested deeper than "
                f"{_DEEPEST} levels. Copy the fields that are needed into a file of their own."
            )
        for name in group:
            link = group.get(name, getlink=True)
            _check_link(link, f"`{group.name.rstrip('/')}/{name}` of `{path}`", soft_links)
            if not isinstance(link, h5py.HardLink):
                continue
            item = group[name]
            if (address := _address(item)) in seen:
                if isinstance(item, h5py.Group) and not soft_links:
                    raise DataError(f"Group `{item.name}` of `{path}` is linked to twice.")
                continue
            seen.add(address)
            if isinstance(item, h5py.Group):
                groups.append((item, depth + 1))
            elif isinstance(item, h5py.Dataset):
                yield item


def _address(item: h5py.HLObject) -> int:
    return int(h5py.h5o.get_info(item.id).addr)


def _check_link(link: object, where: str, soft_links: bool) -> None:
    if isinstance(link, h5py.ExternalLink):
        raise DataError(
            f"{where} is a link to another file, `{link.filename}`, and r2no reads only the file "
            "it was given. Open that file itself, or copy the data into this one (`h5copy`)."
        )
    if isinstance(link, h5py.SoftLink) and not soft_links:
        raise DataError(
            f"{where} is a link to `{link.path}`, which NetCDF does not have. Copy the data to "
            "this place (`h5copy`), or name the file *.h5."
        )


def _check_own(item: h5py.Dataset, where: str) -> None:
    if item.is_virtual or item.external:
        raise DataError(
            f"The values of {where} lie in other files (virtual or external storage), and r2no "
            "reads only the file it was given. Copy them into one file (`h5repack`)."
        )


def _declared(item: h5py.Dataset) -> int:
    """Bytes of the whole, or of one chunk if that is larger: chunks are read as a whole."""
    shape = item.shape or ()
    result: int = item.dtype.itemsize * max(
        prod(map(int, shape)), prod(map(int, item.chunks or (0,)))
    )
    return result
