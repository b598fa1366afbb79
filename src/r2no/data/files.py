"""Files and arrays as xarray data sets, one per recording, read on demand."""

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
from torch import Tensor

from r2no._repr import first_line
from r2no.data.hdf5 import check_hdf5, read_hdf5
from r2no.data.lazy import check_filled, lazily
from r2no.data.mapped import check_npy, check_npz, read_npz
from r2no.data.matlab import declared_by_old_mat, read_mat
from r2no.data.names import role_of_name
from r2no.data.piv import flatten_meshgrids, join_frames, natural
from r2no.data.unnamed import SPACE_NAMES, from_named
from r2no.data.zarr_checks import check_zarr
from r2no.errors import ConfigError, DataError, R2NOError, ShapeError
from r2no.reading import RATIO, regular_file

#: What `open` takes: paths, patterns, xarray objects, arrays, mappings of arrays, lists of these.
Source = Any

_SUFFIXES = {
    "netcdf": (".nc", ".nc4", ".netcdf", ".cdf"),
    "zarr": (".zarr",),
    "hdf5": (".h5", ".hdf5", ".hdf", ".he5"),
    "npz": (".npz",),
    "npy": (".npy",),
    "mat": (".mat",),
}
_MANIFEST = "manifest.json"  # of an artifact, which is a folder too


def read_all(
    source: Source,
    axes: Sequence[str] | None,
    labels: Sequence[str] | None = None,
    time: str | None = None,
    *,
    allow_sparse: bool = False,
) -> list[tuple[str, xr.Dataset]]:
    """(name, data set) of every recording in ``source``; values are not read.

    Args:
        source: See :func:`r2no.data.open`.
        axes: Names of the axes of arrays that have none.
        labels: Names for the channel axis of such an array, or of the variables that are wanted.
        time: The dimension of time, if the user named it.
        allow_sparse: Whether files may declare values that are not in them.
    """
    if isinstance(source, (str, Path)):
        source = [source]
    if isinstance(source, (list, tuple)) and all(isinstance(one, (str, Path)) for one in source):
        paths = [path for one in source for path in find_files(str(one))]
        found = [(str(p), read_file(p, axes, labels, allow_sparse=allow_sparse)) for p in paths]
        return _numbered(join_frames(found, time))
    if isinstance(source, xr.Dataset):
        data = flatten_meshgrids(source)
        return [(str(source.attrs.get("title", "data set")), data)]
    if isinstance(source, xr.DataArray):
        name = source.name or "field"
        return [(str(name), _positional(source.rename(name)).to_dataset(promote_attrs=False))]
    if isinstance(source, Mapping):
        arrays = {str(name): _as_array(value) for name, value in source.items()}
        return [("arrays", from_named(arrays, axes, "arrays", wanted=labels))]
    if isinstance(source, Tensor):
        source = source.detach().cpu().numpy()
    if hasattr(source, "shape") and hasattr(source, "dtype"):
        return [("array", _from_array(source, axes, labels))]
    if isinstance(source, Sequence):
        return _numbered(
            [
                one
                for item in source
                for one in read_all(item, axes, labels, time, allow_sparse=allow_sparse)
            ]
        )
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


def _as_array(value: Any) -> Any:
    """An entry of a mapping as something with a shape and a dtype."""
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    return value if hasattr(value, "shape") and hasattr(value, "dtype") else np.asarray(value)


def find_files(source: str) -> list[Path]:
    """The files of a path, a pattern or a folder, in natural order.

    Raises:
        DataError: if there is none, or a folder holds several kinds.
    """
    if glob.has_magic(source) and not Path(source).exists():
        found = sorted(map(Path, glob.glob(source, recursive=True)), key=natural)
    else:
        found = [Path(source)] if Path(source).exists() else []
    if not found:
        raise DataError(f"There is no file that matches `{source}`. Check the path or pattern.")
    return [file for path in found for file in _files_of(path)]


def _files_of(path: Path) -> list[Path]:
    """A file, or the data files of a folder; of its folders, if it holds no file itself."""
    if not path.is_dir() or is_data_file(path):
        return [path]
    inside = sorted((one for one in path.iterdir() if one.name[0] != "."), key=natural)
    files = [one for one in inside if is_data_file(one)]
    if not files and not (path / _MANIFEST).exists():
        files = [f for one in inside if one.is_dir() for f in _files_of(one)]
    if not files:
        raise DataError(
            f"The folder `{path}` holds no data files (ending in {_known()}). Give the folder or "
            "the pattern of the recordings."
        )
    kinds = sorted({file.suffix.lower() for file in files})
    if len({_kind(file) for file in files}) > 1:
        raise DataError(
            f"The folder `{path}` holds files of several kinds, {', '.join(kinds)}, perhaps the "
            f"same data twice. Give a pattern, as in `{path}/*{kinds[0]}`."
        )
    return files


def read_file(
    path: Path,
    axes: Sequence[str] | None,
    labels: Sequence[str] | None,
    *,
    allow_sparse: bool = False,
) -> xr.Dataset:
    """One data file as a data set; arguments as those of :func:`read_all`."""
    kind = _kind(path)
    check_file(path, kind, allow_sparse=allow_sparse)
    with reading_file(path, kind):
        if kind == "netcdf":
            return flatten_meshgrids(_open_xarray(path, "netcdf4", "netcdf"))
        if kind == "zarr":
            data = _open_xarray(path, "zarr", "zarr", consolidated=False)
            ordered = data[sorted(map(str, data.data_vars))]  # a folder has no order of its own
            return flatten_meshgrids(ordered)
        if kind == "hdf5":
            return read_hdf5(path, axes, labels)
        if kind == "mat":
            arrays, unsure = read_mat(path)
            return from_named(arrays, axes, f"`{path}`", wanted=labels, unsure=unsure)
        if kind == "npy":
            return _from_array(np.lib.format.open_memmap(path, mode="r"), axes, labels)
        return from_named(read_npz(path), axes, f"`{path}`", wanted=labels)


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
    with reading_file(path, kind):
        if kind == "zarr":
            check_zarr(path, allow_sparse=allow_sparse)
            return
        regular_file(path)
        if kind in ("netcdf", "hdf5", "mat") and h5py.is_hdf5(path):
            check_hdf5(path, allow_sparse=allow_sparse, soft_links=kind != "netcdf")
        elif kind == "npy":
            check_npy(path)
        elif kind in _DECLARED:
            declared, ratio = _DECLARED[kind](path), 2 if kind == "netcdf" else RATIO
            if not allow_sparse:
                check_filled(f"`{path}`", declared, path.stat().st_size, ratio=ratio)


def _declared_by_classic(path: Path) -> int:
    """Bytes that a file of NetCDF before version 4 declares."""
    try:
        import netCDF4
    except ImportError:
        return 0  # said where the file is opened
    with netCDF4.Dataset(path) as file:
        return sum(
            np.dtype(one.dtype).itemsize * prod(map(int, one.shape))
            for one in file.variables.values()
        )


_DECLARED = {"netcdf": _declared_by_classic, "npz": check_npz, "mat": declared_by_old_mat}


@contextmanager
def reading_file(path: Path, kind: str) -> Iterator[None]:
    """Name the file in whatever its reader raises."""
    try:
        yield
    except R2NOError:
        raise
    except PermissionError as error:
        raise DataError(
            f"`{path}` must be readable, but this user has no permission. Allow it, or copy "
            "the file to where you may read it."
        ) from error
    except Exception as error:  # readers raise anything for what is no such file, or damaged
        raise DataError(
            f"Could not read `{path}` as {kind}: {first_line(error)}. It is damaged, still being "
            "written, or of another format than its name says."
        ) from error


def is_data(source: str) -> bool:
    """Whether a path or pattern looks like measured data: by name, or a folder of such files."""
    path = Path(source)
    if path.is_dir() and not is_data_file(path):
        inside = [*path.iterdir(), *path.glob("*/*")]
        return not (path / _MANIFEST).exists() and any(map(is_data_file, inside))
    return is_data_file(path) or (glob.has_magic(source) and not path.exists())


def is_data_file(path: Path) -> bool:
    """Whether a path looks like one data file, by its name or as a Zarr folder."""
    return _guess_kind(path) is not None


def _guess_kind(path: Path) -> str | None:
    for kind, suffixes in _SUFFIXES.items():
        if path.suffix.lower() in suffixes:
            return kind
    return "zarr" if any((path / name).exists() for name in ("zarr.json", ".zgroup")) else None


def _kind(path: Path) -> str:
    if (kind := _guess_kind(path)) is not None:
        return kind
    raise DataError(f"`{path}` is of no known format. Its name must end in one of {_known()}.")


def _known() -> str:
    return ", ".join(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)


def _open_xarray(path: Path, engine: str, extra: str, **options: Any) -> xr.Dataset:
    if engine not in xr.backends.list_engines():
        raise DataError(
            f"Reading `{path}` needs a package that is not installed. "
            f"Run `pip install 'r2no[{extra}]'`."
        )
    return xr.open_dataset(path, engine=engine, cache=False, chunks=None, **options)


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
        axes = ("time", *SPACE_NAMES[ndim - 2], "channel")
    if len(axes) != ndim:
        raise ShapeError(
            f"`axes` must name the {ndim} axes of the array, shape {tuple(array.shape)}, but got "
            f"{tuple(axes)}."
        )
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


def _positional(array: xr.DataArray) -> xr.DataArray:
    """Names for the dimensions of an array that was made without any (dim_0, dim_1, ...)."""
    default = tuple(f"dim_{number}" for number in range(array.ndim))
    if array.dims != default or array.ndim not in (2, 3):
        return array
    return array.rename(dict(zip(default, ("time", *SPACE_NAMES[array.ndim - 1]), strict=True)))
