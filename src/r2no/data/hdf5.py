"""HDF5 files of unknown origin: what they declare and where it lies, then their arrays.

A file of a kilobyte can declare terabytes that are not in it, and a data set can lie in any other
file of the machine: external storage, virtual data sets, links. Headers tell before a value is
read.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

from r2no.data.lazy import LINE, check_filled, on_demand
from r2no.data.piv import flatten_meshgrids
from r2no.data.unnamed import from_named
from r2no.errors import DataError, FileDamagedError

_MOST_OBJECTS = 20_000
_DEEPEST = 32  # groups in groups


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
                check_filled(where, size, item.id.get_storage_size(), small=LINE)
            declared += size
    if not allow_sparse:
        check_filled(f"`{path}`", declared, held)


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


def read_hdf5(path: Path, axes: Sequence[str] | None, wanted: Sequence[str] | None) -> xr.Dataset:
    """Every data set of the file by its path; each read opens the file anew."""
    arrays: dict[str, Any] = {}
    attributes: dict[str, dict[str, Any]] = {}
    labels: dict[str, tuple[str, ...]] = {}
    encodings: dict[str, dict[str, Any]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and _is_bare(item):
            return
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "biuf":
            read = partial(_slice, str(path), name)
            arrays[name] = on_demand(item.shape, item.dtype, read) if item.ndim > 1 else item[()]
            attributes[name] = _attributes(item)
            labels[name] = tuple(_label(item, axis) for axis in range(item.ndim))
            encodings[name] = {"source": str(path), "chunksizes": item.chunks}
        elif isinstance(item, h5py.Dataset) and (text := _text(item)) is not None:
            arrays[name] = np.array(text)

    with h5py.File(path) as file:
        file.visititems(visit)
        whole = _attributes(file)
    scaled = [name for name, found in labels.items() if all(found)]
    if axes is None and any(arrays[name].ndim > 1 for name in scaled):
        variables = {
            name: (labels[name], arrays[name], attributes[name], encodings[name]) for name in scaled
        }
        return flatten_meshgrids(xr.decode_cf(xr.Dataset(variables, attrs=whole)))
    data = from_named(arrays, axes, f"`{path}`", wanted=wanted)
    left_out = data.encoding
    for name, found in attributes.items():
        short = name.rsplit("/", 1)[-1]  # coordinates lose the path of their group
        kept = next((one for one in (name, short) if one in data.variables), None)
        if kept is not None:
            data.variables[kept].attrs.update(found)
            data.variables[kept].encoding.update(encodings[name])
    data = xr.decode_cf(data.assign_attrs({**data.attrs, **whole}))
    data.encoding.update(left_out)
    return data


def _is_bare(item: h5py.Dataset) -> bool:
    """Whether it stands for a NetCDF dimension that has no coordinate."""
    name = item.attrs.get("NAME", b"")
    return isinstance(name, bytes) and name.startswith(b"This is a netCDF dimension but not")


def _text(item: h5py.Dataset) -> str | None:
    """The text of a data set that holds one."""
    if item.shape not in ((), (1,)) or item.dtype.kind not in "SO":
        return None
    value = item[()]
    value = value.reshape(-1)[0] if isinstance(value, np.ndarray) else value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None


def _slice(path: str, name: str, key: tuple[Any, ...]) -> np.ndarray:
    with h5py.File(path) as file:
        result: np.ndarray = file[name][key]
        return result


def _label(item: h5py.Dataset, axis: int) -> str:
    if item.is_scale and item.ndim == 1:
        return str(item.name).rsplit("/", 1)[-1]
    scales = item.dims[axis]
    if len(scales):
        return str(scales[0].name).rsplit("/", 1)[-1]
    return str(scales.label)


def _attributes(item: Any) -> dict[str, Any]:
    """Attributes that say something about the data, not about the file's structure."""
    hidden = ("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS")
    found = {}
    for name, value in item.attrs.items():
        if name in hidden or name.startswith("_Netcdf4") or name == "_NCProperties":
            continue
        found[name] = value.decode() if isinstance(value, bytes) else value
        if isinstance(value, np.ndarray) and value.size == 1:
            found[name] = value.reshape(-1)[0].item()
    return found
