"""Files as PIV programs write them: meshgrids beside u and v, flags, millimetres, one per frame."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
from scipy.io import savemat

#: Frames, rows, columns: all different, so that no mix-up of axes goes unnoticed.
SHAPE = (24, 9, 13)
SPACING, TIME_STEP = (0.8, 0.5), 0.02
X, Y = 4.0 + SPACING[1] * np.arange(SHAPE[2]), 20.0 - SPACING[0] * np.arange(SHAPE[1])


def flow(seed: int = 0, frames: int = SHAPE[0]) -> np.ndarray:
    """(time, y, x, channel), in mm/s: a wave that moves, with a little noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(frames)[:, None, None]
    phase = 0.3 * time - 2 * np.pi * np.arange(SHAPE[2]) / SHAPE[2] + seed
    u = 400 + 90 * np.sin(phase) + 9 * np.cos(np.arange(SHAPE[1]))[:, None]
    v = 60 * np.cos(phase + 0.5) * np.ones(SHAPE[1])[:, None]
    noise = 6 * rng.normal(size=(2, frames, *SHAPE[1:]))
    return np.stack([u + noise[0], v + noise[1]], -1)


def typevector(seed: int = 0, frames: int = SHAPE[0]) -> np.ndarray:
    """PIVlab's flags: 0 masked, 1 good, 2 an outlier that was interpolated."""
    draws = np.random.default_rng(100 + seed).random((frames, *SHAPE[1:]))
    flags = np.where(draws < 0.05, 2, 1)
    flags[:, :2, :3] = 0
    return flags.astype(np.uint8)


def arrays(seed: int = 0, frames: int = SHAPE[0]) -> dict[str, np.ndarray]:
    """The content of such a file, frames first."""
    x, y = np.meshgrid(X, Y)
    values = flow(seed, frames)
    return {
        "x": x,
        "y": y,
        "u": values[..., 0],
        "v": values[..., 1],
        "typevector": typevector(seed, frames),
        "units": np.array("mm/s"),
    }


def last(found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with frames last, as in MATLAB's cat(3, ...)."""
    return {n: np.moveaxis(a, 0, -1) if a.ndim == 3 else a for n, a in found.items()}


def per_frame(found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with the meshgrids repeated for every frame."""
    frames = len(found["u"])
    return {n: np.stack([a] * frames) if n in ("x", "y") else a for n, a in found.items()}


def write_npz(path: Path, found: Mapping[str, np.ndarray]) -> Path:
    np.savez(path, **found)
    return path


def write_hdf5(path: Path, found: Mapping[str, np.ndarray]) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in found.items():
            file[name] = str(array) if array.dtype.kind == "U" else array
    return path


def cells(found: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """PIVlab's export: a cell with one field per frame for each of x, y, u, v and the flags."""
    frames = len(found["u"])
    names = {"u": "u_filtered", "v": "v_filtered", "typevector": "typevector_filtered"}
    content: dict[str, Any] = {"units": "[mm] respectively [mm/s]"}
    for name in ("x", "y", "u", "v", "typevector"):
        array = found[name]
        content[names.get(name, name)] = [
            array if array.ndim == 2 else array[n] for n in range(frames)
        ]
    content["u_original"] = [1.01 * array for array in content["u_filtered"]]
    content["v_original"] = [1.01 * array for array in content["v_filtered"]]
    content["u_smoothed"] = [np.zeros((0, 0))] * frames
    return content


def write_mat5(path: Path, found: Mapping[str, Any]) -> Path:
    """A version 5 file; lists become cell arrays."""
    content = {}
    for name, value in found.items():
        content[name] = value
        if isinstance(value, list):
            content[name] = np.empty((len(value), 1), dtype=object)
            for number, frame in enumerate(value):
                content[name][number, 0] = frame
        elif isinstance(value, np.ndarray) and value.dtype.kind == "U":
            content[name] = str(value)
    savemat(path, content)
    return path


def write_mat73(path: Path, found: Mapping[str, Any]) -> Path:
    """A version 7.3 file: HDF5 after 512 bytes, axes reversed, cells as references."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in found.items():
            if isinstance(value, list):
                places = []
                for number, frame in enumerate(value):
                    places.append(f"#refs#/{name}{number}")
                    _write73(file, places[-1], frame)
                item = file.create_dataset(name, (1, len(places)), h5py.ref_dtype)
                item[0, :] = [file[place].ref for place in places]
                item.attrs["MATLAB_class"] = np.bytes_("cell")
            else:
                _write73(file, name, value)
    with path.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return path


def _write73(file: h5py.File, name: str, value: Any) -> None:
    if isinstance(value, str) or value.dtype.kind == "U":
        codes = np.array([[ord(letter)] for letter in str(value)], dtype=np.uint16)
        file[name] = codes
        file[name].attrs["MATLAB_class"] = np.bytes_("char")
    elif value.size == 0:
        file[name] = np.array(value.shape, dtype=np.uint64)
        file[name].attrs["MATLAB_class"] = np.bytes_("double")
        file[name].attrs["MATLAB_empty"] = np.uint8(1)
    else:
        file[name] = np.atleast_2d(value).T
        file[name].attrs["MATLAB_class"] = np.bytes_(
            "double" if value.dtype.kind == "f" else str(value.dtype)
        )


def davis(seed: int = 0, frames: int = SHAPE[0]) -> xr.Dataset:
    """A recording of DaVis: units, coordinates, a correlation value, valid flags, gaps."""
    values = flow(seed, frames) / 1000
    lost = np.random.default_rng(200 + seed).random(values.shape[:-1]) < 0.03
    values[lost] = np.nan
    dims = ("time", "y", "x")
    data = {
        "Vx": (dims, values[..., 0], {"units": "m/s"}),
        "Vy": (dims, values[..., 1], {"units": "m/s"}),
        "corr": (dims, np.full(values.shape[:-1], 0.7)),
        "isValid": (dims, (~lost).astype(np.int8)),
    }
    coords = {
        "time": ("time", TIME_STEP * np.arange(frames), {"units": "s"}),
        "y": ("y", Y, {"units": "mm"}),
        "x": ("x", X, {"units": "mm"}),
    }
    return xr.Dataset(data, coords)
