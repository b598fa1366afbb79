"""Files of precomputed forecasts: NetCDF, HDF5 and Zarr through xarray, npz and npy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray

from r2no._types import PathLike
from r2no.errors import DataError

_TRAJECTORY, _START, _LEAD = "trajectory", "start", "lead"
Opened = tuple[list[Any], list[list[int]] | None]


class Stacked:
    """Variables of one trajectory as one array with the channels last, read when indexed."""

    def __init__(self, arrays: Sequence[xarray.DataArray]) -> None:
        self._arrays = list(arrays)
        self.shape = (*arrays[0].shape, len(arrays))
        self.ndim = len(self.shape)

    def __getitem__(self, key: int | slice) -> np.ndarray:
        return np.stack([array[key].values for array in self._arrays], -1)


def open_forecasts(path: PathLike, names: tuple[str, ...], dimensions: int) -> Opened:
    """Arrays by trajectory, and their starts if the file has them."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"There is no file of forecasts `{path}`.")
    if path.suffix == ".npy":
        return [np.load(path, mmap_mode="r", allow_pickle=False)], None
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return [archive[name] for name in archive.files], None
    try:
        data = xarray.open_zarr(path) if path.suffix == ".zarr" else xarray.open_dataset(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"`{path}` could not be opened as NetCDF, HDF5 or Zarr: {error}. Install the extra "
            "`netcdf` or `zarr`, or write the forecasts as npz."
        ) from error
    arrays = [_variable(data, name, path) for name in names]
    first = _ordered(arrays[0], dimensions, path)
    ordered = [array.transpose(*first) for array in arrays]
    starts = None
    if _START in first and _START in data.coords:
        starts = [int(value) for value in data[_START].values]
    if first[0] != _TRAJECTORY:
        return [Stacked(ordered)], None if starts is None else [starts]
    number = data.sizes[_TRAJECTORY]
    values = [Stacked([array[index] for array in ordered]) for index in range(number)]
    return values, None if starts is None else [starts] * number


def _variable(data: xarray.Dataset, name: str, path: Path) -> xarray.DataArray:
    if name not in data.data_vars:
        raise DataError(
            f"`{path}` has no variable {name!r}; it has {', '.join(map(str, data.data_vars))}. "
            "Give `variables` in the order of the channels."
        )
    return data[name]


def _ordered(array: xarray.DataArray, dimensions: int, path: Path) -> tuple[str, ...]:
    """Dimensions as ([trajectory], time) or ([trajectory], start, lead), then space as it is."""
    names = [str(name) for name in array.dims]
    lead = [name for name in (_TRAJECTORY, _START, _LEAD) if name in names]
    rest = [name for name in names if name not in lead]
    issued = _START in lead and _LEAD in lead
    if len(rest) != dimensions + (0 if issued else 1) or (not issued and len(lead) > 1):
        raise DataError(
            f"The forecasts in `{path}` have dimensions {names}, but ([trajectory], time, "
            f"{dimensions} of space) or ([trajectory], start, lead, {dimensions} of space) is "
            "needed. Rename them with `ds.rename`."
        )
    return (*lead, *rest)
