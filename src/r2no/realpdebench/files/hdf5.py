"""HDF5 layout: one file per trajectory, opened when first used, read frame range by frame range."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from r2no.data.hdf5 import check_hdf5
from r2no.errors import DataError, FileDamagedError
from r2no.realpdebench.files.folder import Folder
from r2no.realpdebench.files.trajectories import Shape, Stamp, Trajectories, damage_named
from r2no.realpdebench.systems import Column, System


class _Place(NamedTuple):
    """Which file of a trajectory, and which data set in it, holds an array."""

    folder: Path
    dataset: str


class HDF5Trajectories(Trajectories):
    """Trajectories in ``{kind}/*.h5``, for simulated combustion together with ``surrogate/``."""

    def __init__(self, folder: Folder, system: System, kind: str) -> None:
        super().__init__(system, kind)
        self._places = _places(folder, system, kind)
        self.names = tuple(sorted(path.name for path in folder.raw(kind).glob("*.h5")))
        self._shapes: dict[str, Shape] = {}
        self._stamps: dict[Path, Stamp] = {}

    def shape(self, name: str) -> Shape:
        """Frames, height and width; on first use checks every array of the trajectory."""
        if name not in self._shapes:
            self._shapes[name] = self._checked_shape(name)
        return self._shapes[name]

    def stamps(self, name: str) -> tuple[Stamp, ...]:
        """The files of the trajectory."""
        paths = dict.fromkeys(place.folder / name for place in self._places.values())
        return tuple(self._stamp(path) for path in paths)

    @contextmanager
    def _block(
        self, name: str, column: Column, start: int, stop: int
    ) -> Iterator[NDArray[Any] | None]:
        """Frames of a column, read from the file's array."""
        array = self._array(name, column)
        if array is None:
            yield None
            return
        try:
            with np.errstate(over="ignore"):  # too large becomes infinite, and is reported as such
                block = array[start:stop].astype(np.float32, copy=False)
        except OSError as error:
            raise FileDamagedError(
                f"Frames {start} to {stop} of `{array.name}` in `{array.file.filename}` cannot be "
                f"read ({error}). Fetch the file again."
            ) from error
        yield block.reshape(*block.shape[:3], len(column.channels))

    def _checked_shape(self, name: str) -> Shape:
        """Frames and grid of a trajectory, the same in all its arrays."""
        shape: Shape | None = None
        for column in self.system.columns:
            array = self._array(name, column)
            if array is None:
                continue
            found = tuple(array.shape)
            shape = shape or (found[0], found[1], found[2])
            full = shape if len(column.channels) == 1 else (*shape, len(column.channels))
            if found != full or array.dtype.kind not in "fiu":
                raise DataError(
                    f"`{array.name}` in `{array.file.filename}` must hold real numbers of shape "
                    f"{full}, but has {array.dtype} of shape {found}. Convert the file again."
                )
        if shape is None:
            raise DataError(f"`{name}` holds no field. Convert or fetch the file again.")
        return shape

    def _array(self, name: str, column: Column) -> h5py.Dataset | None:
        """The array of a column; ``None`` where the kind does not hold it."""
        place = self._places.get(column.name)
        if place is None:
            return None
        archive = self._handle(self._stamp(place.folder / name), _open)
        array = archive.get(place.dataset)
        if isinstance(array, h5py.Dataset) and array.ndim >= 3:
            return array
        if column.measured:
            raise DataError(
                f"`{place.folder / name}` has no array `{place.dataset}` over time, height and "
                f"width, only {sorted(archive)}. Convert or fetch the file again."
            )
        return None

    def _stamp(self, path: Path) -> Stamp:
        if path not in self._stamps:
            if not path.is_file():
                raise DataError(
                    f"There is no file `{path}`, which this trajectory needs. Fetch it, or leave "
                    f"the trajectory out with `exclude=('{path.name}',)`."
                )
            self._stamps[path] = Stamp.of(path)
        return self._stamps[path]


def _places(folder: Folder, system: System, kind: str) -> dict[str, _Place]:
    if system.name != "combustion":
        keys = ("u", "v") if kind == "real" else ("u", "v", "p")
        return {key: _Place(folder.raw(kind), f"measured_data/{key}") for key in keys}
    if kind == "real":
        return {"observed": _Place(folder.raw("real"), "trajectory")}
    return {
        "observed": _Place(folder.raw("surrogate"), "measured_data"),
        "numerical": _Place(folder.raw("numerical"), "measured_data"),
    }


def _open(path: Path) -> h5py.File:
    with damage_named(path, "an HDF5 file", "it"):
        check_hdf5(path, soft_links=False)
        return h5py.File(path, "r")
