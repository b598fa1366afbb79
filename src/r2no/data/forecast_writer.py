"""Forecast files: NetCDF or Zarr, written block by block, and gone on with after a kill.

Everything is written under ``<name>.part`` and takes the name at the end, so a file under its own
name is complete, and an older one stays until then. A NetCDF file is laid out first, with its
coordinates and room for the values; then only raw bytes are put where the values belong, and no
kill can damage its structure. ``<name>.part.json`` notes how far the part goes and a checksum of
that much, so only what was written is gone on with. One process writes a forecast at a time; a
second one waits for it.
"""

import importlib
import os
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

from r2no import replacing, storage
from r2no._types import PathLike
from r2no.data.forecast_layout import ForecastPlan, Room
from r2no.errors import ConfigError
from r2no.locks import sole_writer

KEY = "r2no_key"
_LAYOUT_BYTES = 2**16  # of headers and attributes
_SUFFIXES = (".nc", ".zarr")


class ForecastFile:
    """A forecast on its way to disk; a context manager, which closes what is open.

    Args:
        path: Ends in ``.nc`` or ``.zarr``.
        layout: Coordinates and attributes; values of its variables are not used.
        variables: By name, dimensions and attributes; the first dimension is the origin, and its
            sizes are those of the layout.
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
        variables: Mapping[str, Room],
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
        self._plan = ForecastPlan(layout, variables, rows)
        self._overwrite = overwrite
        self._sink: _NetCDF | _Zarr | None = None
        self._details: dict[str, Any] = {}
        self._checks = dict.fromkeys(variables, 0)
        self._sole = ExitStack()
        self.rows = self._plan.origins
        self.done = 0

    def __enter__(self) -> "ForecastFile":
        with ExitStack() as stack:
            stack.enter_context(sole_writer(self.path))
            replacing.settle(self.path)
            storage.remove_temporaries(self.path.parent, f"{self.path.name}.part*")
            self._open()
            self._sole = stack.pop_all()
        return self

    def _open(self) -> None:
        if self._is_finished():
            self.done = self.rows
            self._forget_part()
        elif not self._went_on():
            self._begin()

    def __exit__(self, *_: object) -> None:
        with self._sole:
            if self._sink is not None:
                self._sink.close()

    def write(self, values: Mapping[str, np.ndarray]) -> None:
        """Write the next rows."""
        assert self._sink is not None
        plain = {name: np.ascontiguousarray(rows, "<f4") for name, rows in values.items()}
        with self._writing():
            self._sink.write(self.done, plain)
        for name, rows in plain.items():
            self._checks[name] = zlib.crc32(rows.tobytes(), self._checks[name])
        self.done += len(next(iter(plain.values())))

    def save(self) -> None:
        """Make sure that what has been written survives, and note how far it goes."""
        assert self._sink is not None
        with self._writing():
            self._sink.sync()
        noted = {"key": self._key, "rows": self.done, "checks": self._checks, **self._details}
        storage.write_json(self._note, noted)

    def finish(self) -> Path:
        """Give the file its name; all rows must have been written."""
        if self._sink is not None:
            with self._writing():
                self._sink.sync()
                self._sink.complete()
                self._sink.close()
                replacing.take_place(self._part, self.path)
            self._sink = None
            self._forget_part()
        return self.path

    def _is_finished(self) -> bool:
        """Whether the complete file is there, of the same key."""
        if not self.path.exists():
            return False
        if _stored_key(self.path) == self._key:
            return True
        if not self._overwrite:
            raise ConfigError(
                f"`{self.path}` exists and was made from another model, data or choice of "
                "origins. Choose another name, or pass `overwrite`."
            )
        return False

    def _went_on(self) -> bool:
        """Open the part of the same key, if there is one as it was noted."""
        if not (self._part.exists() and self._note.exists()):
            return False
        try:
            note = storage.read_json(self._note)
            if note["key"] != self._key or not 0 <= note["rows"] <= self.rows:
                return False
            self._details = {name: note[name] for name in self._kind.details}
            self._sink = self._kind(self._part, self._details, self._plan)
            checks = {
                name: _checksum(self._sink, name, note["rows"], self._plan.rows)
                for name in self._plan.variables
            }
            sound = bool(checks == note["checks"])
        except (OSError, LookupError, TypeError, ValueError):
            sound = False
        if not sound:  # no part that can be gone on with
            if self._sink is not None:
                self._sink.close()
            return False
        self._checks, self.done = checks, note["rows"]
        return True

    def _forget_part(self) -> None:
        self._note.unlink(missing_ok=True)
        replacing.remove(self._part)

    @property
    def _kind(self) -> "type[_NetCDF] | type[_Zarr]":
        return _NetCDF if self.path.suffix == ".nc" else _Zarr

    def _begin(self) -> None:
        """Lay out a new part with room for all rows, after a look at the free space."""
        with self._writing():
            self._forget_part()
            storage.check_space(self._part, self._plan.nbytes + _LAYOUT_BYTES)
            plan = replace(self._plan, layout=self._plan.layout.assign_attrs({KEY: self._key}))
            self._details = self._kind.create(self._part, plan)
            self._sink = self._kind(self._part, self._details, plan)
        self.save()

    def _writing(self) -> AbstractContextManager[None]:
        """Errors of writing by name; HDF5 reports a full disk as a ``RuntimeError``."""
        return storage.writing(self._part, storage.GOES_ON, also=RuntimeError)


class _NetCDF:
    """Values as raw bytes at their place in a NetCDF-4 file."""

    details = ("offsets",)

    def __init__(self, part: Path, note: dict[str, Any], plan: ForecastPlan) -> None:
        self._offsets, self._row_bytes = note["offsets"], plan.row_bytes
        self._file = part.open("r+b", buffering=0)  # so that a full disk is met in `write`

    @staticmethod
    def create(part: Path, plan: ForecastPlan) -> dict[str, Any]:
        """Lay out the file; returns where the values of each variable begin."""
        netcdf = _package("netCDF4", "netcdf")
        plan.layout.to_netcdf(part, engine="netcdf4", format="NETCDF4")
        with netcdf.Dataset(part, "a") as file:
            for name, (dims, attributes) in plan.variables.items():
                for dim in (dim for dim in dims if dim not in file.dimensions):
                    file.createDimension(dim, plan.layout.sizes[dim])
                room = file.createVariable(
                    name, "f4", dims, contiguous=True, fill_value=False, endian="little"
                )
                room.setncatts(dict(attributes))
                room[(0,) * len(dims)] = 0.0  # the library makes room at the first write
        with h5py.File(part) as file:
            return {"offsets": {name: file[name].id.get_offset() for name in plan.variables}}

    def write(self, start: int, values: Mapping[str, np.ndarray]) -> None:
        for name, rows in values.items():
            self._file.seek(self._offsets[name] + start * self._row_bytes(name))
            left = memoryview(rows.tobytes())
            while left:
                left = left[self._file.write(left) :]

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        self._file.seek(self._offsets[name] + start * self._row_bytes(name))
        return np.frombuffer(self._file.read((stop - start) * self._row_bytes(name)), np.uint8)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def complete(self) -> None:
        return

    def close(self) -> None:
        self._file.close()


class _Zarr:
    """A chunk per block of rows; each is a file of its own."""

    details = ()

    def __init__(self, part: Path, note: dict[str, Any], plan: ForecastPlan) -> None:
        self._package, self._part = _package("zarr", "zarr"), part
        group = self._package.open_group(part, mode="r+", zarr_format=2)
        self._arrays = {name: group[name] for name in plan.variables}

    @staticmethod
    def create(part: Path, plan: ForecastPlan) -> dict[str, Any]:
        """Lay out the store."""
        package = _package("zarr", "zarr")
        plan.layout.to_zarr(part, mode="w", zarr_format=2, consolidated=False)
        group = package.open_group(part, mode="r+", zarr_format=2)
        for name, (dims, attributes) in plan.variables.items():
            shape = plan.shape(name)
            array = group.create_array(
                name,
                shape=shape,
                chunks=(min(plan.rows, shape[0]), *shape[1:]),
                dtype="f4",
                compressors=None,
                fill_value=float("nan"),
            )
            array.attrs.update({"_ARRAY_DIMENSIONS": list(dims), **attributes})
        return {}

    def write(self, start: int, values: Mapping[str, np.ndarray]) -> None:
        for name, rows in values.items():
            self._arrays[name][start : start + len(rows)] = rows

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        return np.ascontiguousarray(self._arrays[name][start:stop], "<f4")

    def sync(self) -> None:
        return  # every chunk is a complete file when it is written

    def complete(self) -> None:
        for leftover in self._part.rglob("*.partial"):  # of a killed process
            leftover.unlink()
        self._package.consolidate_metadata(self._part, zarr_format=2)

    def close(self) -> None:
        return


def _checksum(sink: "_NetCDF | _Zarr", name: str, rows: int, together: int) -> int:
    """Of the first rows of a variable, as far as they are there."""
    check = 0
    for start in range(0, rows, together):
        check = zlib.crc32(sink.read(name, start, min(start + together, rows)).tobytes(), check)
    return check


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"Writing this file needs the package {name}. Run `pip install 'r2no[{extra}]'`."
        ) from error


def _stored_key(path: Path) -> str | None:
    """The key of a complete forecast; ``None`` for a file that merely has this name."""
    options: dict[str, Any] = {"engine": "netcdf4"}
    if path.suffix == ".zarr":
        options = {"engine": "zarr", "consolidated": False}
    try:
        with xr.open_dataset(path, **options) as data:
            return data.attrs.get(KEY)
    except (OSError, LookupError, RuntimeError, TypeError, ValueError):  # something else
        return None
