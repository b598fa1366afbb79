"""Forecast files: NetCDF or Zarr, written block by block, and gone on with after a kill.

Everything is written under ``<name>.part`` and takes the name at the end, so a file under its own
name is complete, and an older one stays until then. A NetCDF file is laid out first, with its
coordinates and room for the values; then only raw bytes are put where the values belong, and no
kill can damage its structure. One process writes a forecast at a time; a second one waits for it.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
import xarray as xr

from r2no import storage
from r2no._types import PathLike
from r2no.errors import ConfigError, StorageError
from r2no.locks import sole_writer

KEY = "r2no_key"
_SUFFIXES = (".nc", ".zarr")


class _Sink(Protocol):
    """Where values go; rows are forecast origins."""

    def write(self, start: int, values: Mapping[str, np.ndarray]) -> None: ...

    def sync(self) -> None: ...

    def complete(self) -> None: ...

    def close(self) -> None: ...


class ForecastFile:
    """A forecast on its way to disk; a context manager, which closes what is open.

    Args:
        path: Ends in ``.nc`` or ``.zarr``.
        layout: Coordinates and attributes; values of its variables are not used.
        variables: Names of the forecast variables with their attributes; each has dimensions
            origin, lead and space, those of ``dims``.
        dims: Names of the dimensions; the first is the origin.
        key: Identifies model and data. A part with another key is begun anew.
        rows: Origins that are written together.
        overwrite: Whether a complete file of another key may be replaced.

    Raises:
        ConfigError: if a complete file with another key is there, or the suffix is unknown.
    """

    def __init__(
        self,
        path: PathLike,
        layout: xr.Dataset,
        variables: Mapping[str, Mapping[str, Any]],
        dims: tuple[str, ...],
        *,
        key: str,
        rows: int,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        if self.path.suffix not in _SUFFIXES:
            raise ConfigError(
                f"`path` must end in {' or '.join(_SUFFIXES)}, but got `{self.path}`."
            )
        self._part = self.path.with_name(self.path.name + ".part")
        self._note = self.path.with_name(self.path.name + ".part.json")
        self._key = key
        self._plan = (layout, variables, dims, rows)
        self._overwrite = overwrite
        self._sink: _Sink | None = None
        self._sole = ExitStack()
        self.rows = layout.sizes[dims[0]]
        self.done = 0

    def __enter__(self) -> "ForecastFile":
        with ExitStack() as stack:
            stack.enter_context(sole_writer(self.path))
            self._open()
            self._sole = stack.pop_all()
        return self

    def _open(self) -> None:
        layout, variables, dims, rows = self._plan
        self.done = self._find_done(self._overwrite)
        if self.done < self.rows:
            kind = _NetCDF if self.path.suffix == ".nc" else _Zarr
            if self.done == 0:
                self._begin(kind, layout, variables, dims, rows)
            self._sink = kind(self._part, tuple(variables), storage.read_json(self._note))

    def __exit__(self, *_: object) -> None:
        with self._sole:
            if self._sink is not None:
                self._sink.close()

    def write(self, values: Mapping[str, np.ndarray]) -> None:
        """Write the next rows."""
        assert self._sink is not None
        count = len(next(iter(values.values())))
        try:
            self._sink.write(self.done, values)
        except OSError as error:
            raise self._storage_error(error) from error
        self.done += count

    def save(self) -> None:
        """Make sure that what has been written survives, and note how far it goes."""
        assert self._sink is not None
        try:
            self._sink.sync()
        except OSError as error:
            raise self._storage_error(error) from error
        note = storage.read_json(self._note)
        storage.write_json(self._note, {**note, "rows": self.done})

    def finish(self) -> Path:
        """Give the file its name; all rows must have been written."""
        if self._sink is not None:
            try:
                self._sink.sync()
                self._sink.complete()
                self._sink.close()
                storage.take_place(self._part, self.path)
            except OSError as error:
                raise self._storage_error(error) from error
            self._sink = None
        self._note.unlink(missing_ok=True)
        return self.path

    def _find_done(self, overwrite: bool) -> int:
        """Rows that are complete: of the finished file, or of a part with the same key."""
        if self.path.exists():
            if _stored_key(self.path) == self._key:
                return self.rows
            if not overwrite:
                raise ConfigError(
                    f"`{self.path}` exists and was made from another model, data or choice of "
                    "origins. Choose another name, or pass `overwrite`."
                )
        if not (self._part.exists() and self._note.exists()):
            return 0
        note = storage.read_json(self._note)
        return int(note["rows"]) if note.get("key") == self._key else 0

    def _begin(
        self,
        kind: "type[_NetCDF] | type[_Zarr]",
        layout: xr.Dataset,
        variables: Mapping[str, Mapping[str, Any]],
        dims: tuple[str, ...],
        rows: int,
    ) -> None:
        try:
            self._note.unlink(missing_ok=True)
            storage.remove(self._part)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            layout = layout.assign_attrs({KEY: self._key})
            details = kind.create(self._part, layout, variables, dims, rows)
        except (OSError, RuntimeError) as error:  # HDF5 reports a full disk as the latter
            raise self._storage_error(error) from error
        storage.write_json(self._note, {"key": self._key, "rows": 0, **details})

    def _storage_error(self, error: Exception) -> StorageError:
        return StorageError(
            f"Could not write `{self._part}`: {error}. Free some space or choose a writable "
            "folder, then run the same command again: it goes on where it stopped."
        )


class _NetCDF:
    """Values as raw bytes at their place in a NetCDF-4 file."""

    def __init__(self, part: Path, names: tuple[str, ...], note: dict[str, Any]) -> None:
        self._offsets = note["offsets"]
        self._file = part.open("r+b", buffering=0)  # so that a full disk is met in `write`

    @staticmethod
    def create(
        part: Path,
        layout: xr.Dataset,
        variables: Mapping[str, Mapping[str, Any]],
        dims: tuple[str, ...],
        rows: int,
    ) -> dict[str, Any]:
        """Lay out the file; returns where the values of each variable begin."""
        netcdf = _package("netCDF4", "netcdf")
        layout.to_netcdf(part, engine="netcdf4", format="NETCDF4")
        with netcdf.Dataset(part, "a") as file:
            for name in (dim for dim in dims if dim not in file.dimensions):
                file.createDimension(name, layout.sizes[name])
            for name, attributes in variables.items():
                room = file.createVariable(
                    name, "f4", dims, contiguous=True, fill_value=False, endian="little"
                )
                room.setncatts(dict(attributes))
                room[(0,) * len(dims)] = 0.0  # the library makes room at the first write
        with h5py.File(part) as file:
            return {"offsets": {name: file[name].id.get_offset() for name in variables}}

    def write(self, start: int, values: Mapping[str, np.ndarray]) -> None:
        for name, rows in values.items():
            content = np.ascontiguousarray(rows, dtype="<f4")
            self._file.seek(self._offsets[name] + start * content[0].nbytes)
            left = memoryview(content.tobytes())
            while left:
                left = left[self._file.write(left) :]

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def complete(self) -> None:
        return

    def close(self) -> None:
        self._file.close()


class _Zarr:
    """A chunk per block of rows; each is a file of its own."""

    def __init__(self, part: Path, names: tuple[str, ...], note: dict[str, Any]) -> None:
        self._package, self._part = _package("zarr", "zarr"), part
        group = self._package.open_group(part, mode="r+", zarr_format=2)
        self._arrays = {name: group[name] for name in names}

    @staticmethod
    def create(
        part: Path,
        layout: xr.Dataset,
        variables: Mapping[str, Mapping[str, Any]],
        dims: tuple[str, ...],
        rows: int,
    ) -> dict[str, Any]:
        """Lay out the store."""
        package = _package("zarr", "zarr")
        layout.to_zarr(part, mode="w", zarr_format=2, consolidated=False)
        group = package.open_group(part, mode="r+", zarr_format=2)
        shape = tuple(layout.sizes[name] for name in dims)
        for name, attributes in variables.items():
            array = group.create_array(
                name,
                shape=shape,
                chunks=(min(rows, shape[0]), *shape[1:]),
                dtype="f4",
                compressors=None,
                fill_value=float("nan"),
            )
            array.attrs.update({"_ARRAY_DIMENSIONS": list(dims), **attributes})
        return {}

    def write(self, start: int, values: Mapping[str, np.ndarray]) -> None:
        for name, rows in values.items():
            self._arrays[name][start : start + len(rows)] = rows

    def sync(self) -> None:
        return  # every chunk is a complete file when it is written

    def complete(self) -> None:
        self._package.consolidate_metadata(self._part, zarr_format=2)

    def close(self) -> None:
        return


def _package(name: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"Writing this file needs the package {name}. Run `pip install 'r2no[{extra}]'`."
        ) from error


def _stored_key(path: Path) -> str | None:
    options: dict[str, Any] = {"engine": "netcdf4"}
    if path.suffix == ".zarr":
        options = {"engine": "zarr", "consolidated": False}
    try:
        with xr.open_dataset(path, **options) as data:
            return data.attrs.get(KEY)
    except (OSError, ValueError):  # something else that merely has this name
        return None
