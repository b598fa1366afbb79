"""MATLAB files: version 5 through scipy, version 7.3 through HDF5; axes in MATLAB's order.

Cell arrays with one field per frame, as PIVlab writes them, become arrays (frame, rows, columns).
"""

from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from r2no.data.lazy import on_demand
from r2no.errors import DataError, GridMismatchError

_HIDDEN = ("#refs#", "#subsystem#")


def read_mat(path: Path) -> tuple[dict[str, Any], set[str]]:
    """Arrays by name, and the names of those whose axes are MATLAB's own (not cells of frames)."""
    arrays: dict[str, Any] = {}
    cells: set[str] = set()
    if h5py.is_hdf5(path):
        with h5py.File(path) as file:
            _walk(str(path), file, "", arrays, cells)
    else:
        for name, value in _load_old(path).items():
            if not name.startswith("__"):
                _unpack(name, value, arrays, cells, str(path))
    return arrays, {name for name in arrays if name not in cells}


def declared_by_old_mat(path: Path) -> int:
    """Bytes that a file before version 7.3 declares; variables may be compressed."""
    try:
        from scipy.io import whosmat
    except ImportError:
        return 0  # the reader names the extra
    return sum(8 * prod(map(int, shape)) for _, shape, _ in whosmat(path))


def _load_old(path: Path) -> Mapping[str, Any]:
    """The variables of a file before v7.3, which needs SciPy."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError(
            f"Reading `{path}` needs a package that is not installed. Run `pip install "
            "'r2no[mat]'`, or save it in MATLAB with -v7.3."
        ) from error
    result: Mapping[str, Any] = loadmat(path, chars_as_strings=True)
    return result


def _unpack(name: str, value: Any, arrays: dict[str, Any], cells: set[str], path: str) -> None:
    """A value of scipy's reader: numbers, text, a cell of frames, or a structure of these."""
    if not isinstance(value, np.ndarray) or value.size == 0:
        return
    if value.dtype.names is not None:
        if value.size == 1:
            for key in value.dtype.names:
                _unpack(f"{name}/{key}", value.reshape(-1)[0][key], arrays, cells, path)
    elif value.dtype.kind != "O":
        arrays[name] = _squeezed(value)
    elif (frames := _frames(list(value.T.reshape(-1)), name, path)) is not None:
        shapes = next(tuple(frame.shape) for frame in frames if frame is not None)
        empty = np.full(shapes, np.nan)
        arrays[name] = np.stack([empty if frame is None else frame for frame in frames])
        cells.add(name)
    elif value.size == 1:
        _unpack(name, value.reshape(-1)[0], arrays, cells, path)


def _frames(values: list[Any], name: str, path: str) -> list[Any] | None:
    """The fields of a cell array, None for an empty one; None if they are no fields."""
    frames = [value if getattr(value, "size", 0) else None for value in values]
    known = [frame for frame in frames if frame is not None]
    if not known or not all(one.ndim == 2 and one.dtype.kind in "biuf" for one in known):
        return None
    if min(known[0].shape) < 2:
        return None
    for number, frame in enumerate(frames):
        if frame is not None and frame.shape != known[0].shape:
            raise GridMismatchError(
                f"Frames of {name!r} in `{path}` must share one grid, but there are "
                f"{tuple(known[0].shape)} and, at frame {number}, {tuple(frame.shape)}. Evaluate "
                "all images on one grid."
            )
    return frames


def _squeezed(array: Any) -> Any:
    """MATLAB has no arrays of fewer than two axes: numbers and vectors as what they are."""
    if array.ndim == 2 and 1 in array.shape:
        return np.asarray(array).reshape(() if array.size == 1 else (-1,))
    return array


def _walk(path: str, group: Any, place: str, arrays: dict[str, Any], cells: set[str]) -> None:
    """Collect the arrays of a v7.3 file by their paths; MATLAB stores axes reversed."""
    for key, item in group.items():
        name = f"{place}{key}"
        if key in _HIDDEN or (isinstance(item, h5py.Dataset) and "MATLAB_empty" in item.attrs):
            continue
        if isinstance(item, h5py.Group):
            _walk(path, item, f"{name}/", arrays, cells)
        elif item.attrs.get("MATLAB_class") == b"char":
            arrays[name] = _text(item)
        elif item.dtype == h5py.ref_dtype:
            _cell(path, item, name, arrays, cells)
        elif item.dtype.kind in "biuf" and item.ndim == 2 and 1 in item.shape:
            arrays[name] = _squeezed(item[()])
        elif item.dtype.kind in "biuf":
            read = partial(_reversed, path, item.name)
            arrays[name] = on_demand(item.shape[::-1], item.dtype, read)


def _cell(path: str, item: Any, name: str, arrays: dict[str, Any], cells: set[str]) -> None:
    """A cell array: fields that are read frame by frame, or a single text."""
    targets = [item.file[reference] for reference in item[()].reshape(-1)]
    if len(targets) == 1 and targets[0].attrs.get("MATLAB_class") == b"char":
        arrays[name] = _text(targets[0])
        return
    full = [
        target if isinstance(target, h5py.Dataset) and "MATLAB_empty" not in target.attrs else None
        for target in targets
    ]
    frames = _frames(full, name, path)
    if frames is None:
        return
    first = next(frame for frame in frames if frame is not None)
    dtype = first.dtype if None not in frames else np.result_type(first.dtype, np.float32)
    places = [None if frame is None else str(frame.name) for frame in frames]
    read = partial(_frame_slice, path, places, first.shape)
    arrays[name] = on_demand((len(frames), *first.shape[::-1]), dtype, read)
    cells.add(name)


def _text(item: Any) -> np.ndarray:
    return np.array("".join(chr(int(code)) for code in item[()].T.reshape(-1)))


def _reversed(path: str, name: str, key: tuple[Any, ...]) -> np.ndarray:
    """HDF5 holds MATLAB's axes in reverse."""
    with h5py.File(path) as file:
        return np.asarray(file[name][key[::-1]]).T


def _frame_slice(
    path: str, places: list[str | None], shape: tuple[int, ...], key: tuple[Any, ...]
) -> np.ndarray:
    """Frames of a cell array, ``shape`` each as HDF5 holds them; an empty cell is NaN."""
    wanted = range(len(places))[key[0]]
    chosen = [places[n] for n in (wanted if isinstance(wanted, range) else [wanted])]
    empty = np.full(shape[::-1], np.nan)[key[1:]]
    with h5py.File(path) as file:
        found = [empty if p is None else np.asarray(file[p][key[:0:-1]]).T for p in chosen]
    return np.reshape(found, (len(found), *empty.shape)) if isinstance(wanted, range) else found[0]
