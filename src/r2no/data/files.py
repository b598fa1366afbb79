"""Files and arrays as xarray data sets, one per recording, read on demand."""

import glob
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
from torch import Tensor
from xarray.core import indexing

from r2no.data.lazy import SlicedArray, lazily
from r2no.data.mapped import read_npz
from r2no.data.names import role_of_name
from r2no.errors import ConfigError, DataError, ShapeError

#: What `open` takes: paths, patterns, xarray objects, arrays, mappings of arrays, lists of these.
Source = Any

_SUFFIXES = {
    "netcdf": (".nc", ".nc4", ".netcdf", ".cdf"),
    "zarr": (".zarr",),
    "hdf5": (".h5", ".hdf5", ".hdf", ".he5"),
    "npz": (".npz",),
    "npy": (".npy",),
}
_SPACE_NAMES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}
_FEW = 8  # a last axis this short is taken for channels


def read_all(
    source: Source, axes: Sequence[str] | None, labels: Sequence[str] | None = None
) -> list[tuple[str, xr.Dataset]]:
    """(name, data set) of every recording in ``source``; values are not read.

    Args:
        source: See :func:`r2no.data.open`.
        axes: Names of the axes of arrays that have none.
        labels: Names for the channel axis of such an array.
    """
    if isinstance(source, (str, Path)):
        return [(str(path), _read_file(path, axes, labels)) for path in _paths(str(source))]
    if isinstance(source, xr.Dataset):
        return [(str(source.attrs.get("title", "data set")), source)]
    if isinstance(source, xr.DataArray):
        name = source.name or "field"
        return [(str(name), _positional(source.rename(name)).to_dataset(promote_attrs=False))]
    if isinstance(source, Mapping):
        return [("arrays", _from_named(source, axes, "arrays"))]
    if isinstance(source, Tensor):
        source = source.detach().cpu().numpy()
    if hasattr(source, "shape") and hasattr(source, "dtype"):
        return [("array", _from_array(source, axes, labels))]
    if isinstance(source, Sequence):
        return _numbered([found for item in source for found in read_all(item, axes, labels)])
    raise ConfigError(
        "`source` must be a path, a pattern, an xarray object, an array, a mapping of arrays or a "
        f"list of these, but got {type(source).__name__}."
    )


def _numbered(found: list[tuple[str, xr.Dataset]]) -> list[tuple[str, xr.Dataset]]:
    names = [name for name, _ in found]
    return [
        (f"{name} {number}" if names.count(name) > 1 else name, data)
        for number, (name, data) in enumerate(found)
    ]


def _paths(source: str) -> list[Path]:
    if glob.has_magic(source) and not Path(source).exists():
        found = [Path(name) for name in sorted(glob.glob(source, recursive=True))]
    else:
        found = [Path(source)] if Path(source).exists() else []
    if not found:
        raise DataError(f"There is no file that matches `{source}`. Check the path or pattern.")
    return found


def _read_file(path: Path, axes: Sequence[str] | None, labels: Sequence[str] | None) -> xr.Dataset:
    kind = _kind(path)
    try:
        if kind == "netcdf":
            return _open_xarray(path, "netcdf4", "netcdf")
        if kind == "zarr":
            data = _open_xarray(path, "zarr", "zarr", consolidated=False)
            return data[sorted(map(str, data.data_vars))]  # a folder has no order of its own
        if kind == "hdf5":
            return _from_hdf5(path, axes)
        if kind == "npy":
            return _from_array(np.load(path, mmap_mode="r"), axes, labels)
        return _from_named(read_npz(path), axes, f"`{path}`")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, (DataError, ShapeError, ConfigError)):
            raise
        raise DataError(
            f"Could not read `{path}` as {kind}: {error}. It is damaged, still being written, or "
            "of another format than its name says."
        ) from error


def is_data(path: Path) -> bool:
    """Whether a path looks like measured data, by its name or as a Zarr folder."""
    return _guess_kind(path) is not None


def _guess_kind(path: Path) -> str | None:
    for kind, suffixes in _SUFFIXES.items():
        if path.suffix.lower() in suffixes:
            return kind
    return "zarr" if any((path / name).exists() for name in ("zarr.json", ".zgroup")) else None


def _kind(path: Path) -> str:
    if (kind := _guess_kind(path)) is not None:
        return kind
    known = ", ".join(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
    raise DataError(f"`{path}` is of no known format. Its name must end in one of {known}.")


def _open_xarray(path: Path, engine: str, extra: str, **options: Any) -> xr.Dataset:
    if engine not in xr.backends.list_engines():
        raise DataError(
            f"Reading `{path}` needs a package that is not installed. "
            f"Run `pip install 'r2no[{extra}]'`."
        )
    return xr.open_dataset(path, engine=engine, cache=False, chunks=None, **options)  # type: ignore[arg-type]


def _from_hdf5(path: Path, axes: Sequence[str] | None) -> xr.Dataset:
    """Every data set of the file by its path; each read opens the file anew."""
    arrays: dict[str, Any] = {}
    attributes: dict[str, dict[str, Any]] = {}
    labels: dict[str, tuple[str, ...]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "biuf":
            read = SlicedArray(item.shape, item.dtype, partial(_hdf5_slice, str(path), name))
            arrays[name] = indexing.LazilyIndexedArray(read) if item.ndim > 1 else item[()]
            attributes[name] = _hdf5_attributes(item)
            labels[name] = tuple(_hdf5_label(item, axis) for axis in range(item.ndim))

    with h5py.File(path) as file:
        file.visititems(visit)
        whole = _hdf5_attributes(file)
    scaled = [name for name, found in labels.items() if all(found)]
    if axes is None and any(arrays[name].ndim > 1 for name in scaled):
        variables = {name: (labels[name], arrays[name], attributes[name]) for name in scaled}
        return xr.decode_cf(xr.Dataset(variables, attrs=whole))
    data = _from_named(arrays, axes, f"`{path}`")
    for name, found in attributes.items():
        short = name.rsplit("/", 1)[-1]  # coordinates lose the path of their group
        kept = next((one for one in (name, short) if one in data.variables), None)
        if kept is not None:
            data.variables[kept].attrs.update(found)
    return xr.decode_cf(data.assign_attrs(whole))


def _hdf5_slice(path: str, name: str, key: tuple) -> np.ndarray:
    with h5py.File(path) as file:
        return file[name][key]


def _hdf5_label(item: h5py.Dataset, axis: int) -> str:
    if item.is_scale and item.ndim == 1:
        return str(item.name).rsplit("/", 1)[-1]
    scales = item.dims[axis]
    if len(scales):
        return str(scales[0].name).rsplit("/", 1)[-1]
    return str(scales.label)


def _hdf5_attributes(item: Any) -> dict[str, Any]:
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


def _from_array(array: Any, axes: Sequence[str] | None, labels: Sequence[str] | None) -> xr.Dataset:
    """One array without names: (time, space..., channel), unless ``axes`` says otherwise."""
    ndim = len(array.shape)
    if axes is None:
        if not 3 <= ndim <= 5:
            raise ShapeError(
                "An array must be (time, space..., channel) with one to three spatial axes, but "
                f"has shape {tuple(array.shape)}. Reshape it, or name its axes with `axes`, as in "
                'axes=("time", "y").'
            )
        axes = ("time", *_SPACE_NAMES[ndim - 2], "channel")
    _check_axes(axes, ndim, "the array", array.shape)
    data = xr.Dataset({"field": xr.Variable(tuple(axes), lazily(array))})
    along = next((name for name in axes if role_of_name(name) == "channel"), None)
    if labels is None or along is None:
        return data
    if len(labels) != data.sizes[along]:
        raise ShapeError(
            f"`variables` must name the {data.sizes[along]} channels of an array of shape "
            f"{tuple(array.shape)}, but got {tuple(labels)}."
        )
    return data.assign_coords({along: list(labels)})


def _from_named(arrays: Mapping[str, Any], axes: Sequence[str] | None, where: str) -> xr.Dataset:
    """Arrays with names but without dimensions; 1-D ones with a usual name are coordinates."""
    usable = {name: lazily(a) for name, a in arrays.items() if a.dtype.kind in "biufM"}
    lengths = {
        name: len(array)
        for name, array in usable.items()
        if array.ndim == 1 and role_of_name(name) is not None
    }
    variables: dict[str, Any] = {}
    for name, array in usable.items():
        if array.ndim == 0:
            variables[name] = ((), array)
        elif name in lengths:
            variables[name] = ((name.rsplit("/", 1)[-1],), array)
        elif array.ndim > 1:
            found = axes if axes is not None else _axes_of(name, array.shape, lengths, where)
            if axes is not None and len(axes) != array.ndim:
                continue  # such as a static mask; `axes` speaks of the fields
            variables[name] = (tuple(found), array)
    if not any(len(dims) > 1 for dims, _ in variables.values()):
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        raise DataError(
            f"No array of {where} is a field: `axes` is {axes} and the arrays have shapes {shapes}."
        )
    dims = {name for found, _ in variables.values() for name in found}
    kept = {n: v for n, v in variables.items() if n not in lengths or v[0][0] in dims}
    return xr.Dataset({n.rsplit("/", 1)[-1] if n in lengths else n: v for n, v in kept.items()})


def _axes_of(
    name: str, shape: tuple[int, ...], lengths: Mapping[str, int], where: str
) -> tuple[str, ...]:
    """Names of an array's axes: by the lengths of the coordinates, else by the usual order."""
    matches = [[n for n, length in lengths.items() if length == size] for size in shape]
    if all(len(found) == 1 for found in matches):
        named = [found[0] for found in matches]
        if len(set(named)) == len(named):
            return tuple(one.rsplit("/", 1)[-1] for one in named)
    by_role = {role_of_name(one): one.rsplit("/", 1)[-1] for one in lengths}
    fields = len(shape)
    if fields == 4 and shape[-1] <= _FEW:
        usual: tuple[str, ...] = ("time", "y", "x", "channel")
    elif fields in (2, 3):
        usual = ("time", *_SPACE_NAMES[fields - 1])
    else:
        raise DataError(
            f"Array {name!r} of {where} has {fields} axes, {shape}, and nothing says what they "
            'are. Name them with `axes`, as in axes=("run", "time", "y", "x").'
        )
    named_axes = tuple(by_role.get(role_of_name(one), one) for one in usual)
    for axis, size in zip(named_axes, shape, strict=True):
        if lengths.get(axis, size) != size:
            raise DataError(
                f"Array {name!r} of {where} has shape {shape}, which read as {named_axes} does not "
                f"fit coordinate {axis!r} of length {lengths[axis]}. Name its axes with `axes`."
            )
    return named_axes


def _positional(array: xr.DataArray) -> xr.DataArray:
    """Names for the dimensions of an array that was made without any (dim_0, dim_1, ...)."""
    default = tuple(f"dim_{number}" for number in range(array.ndim))
    if array.dims != default or array.ndim not in (2, 3):
        return array
    return array.rename(dict(zip(default, ("time", *_SPACE_NAMES[array.ndim - 1]), strict=True)))


def _check_axes(axes: Sequence[str], ndim: int, where: str, shape: Any) -> None:
    if len(axes) != ndim:
        raise ShapeError(
            f"`axes` must name the {ndim} axes of {where}, shape {tuple(shape)}, but got "
            f"{tuple(axes)}."
        )
