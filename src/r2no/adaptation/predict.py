"""write_predictions(): forecasts of a data set as a NetCDF or Zarr file, in bounded memory."""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr
from torch import Tensor

from r2no import checks, ranks, storage
from r2no._types import Number, PathLike
from r2no.adaptation.histories import coverages
from r2no.adaptation.model import AdaptedModel, versions
from r2no.data.arrays import ArrayWindows
from r2no.data.coordinates import check_axes, conversion
from r2no.data.forecast_layout import (
    FAMILIAR,
    Room,
    bound_names,
    forecast_layout,
    forecast_rooms,
    forecast_variables,
    with_coverages,
)
from r2no.data.forecast_writer import ForecastFile
from r2no.data.measurements import Measurements
from r2no.data.window import Fields, gather
from r2no.errors import DataError, GridMismatchError, NonFiniteError
from r2no.progress import SILENT, Reporter

Origins = Literal["all", "last"]
_SAVE_EVERY = 8  # batches between two notes of how far the file is filled


def write_predictions(
    model: AdaptedModel,
    data: Measurements,
    path: PathLike,
    *,
    origins: Origins = "all",
    stride: int | None = None,
    coverage: Number | Sequence[Number] | None = None,
    batch_size: int | None = None,
    overwrite: bool = False,
    reporter: Reporter = SILENT,
) -> Path:
    """Forecast from measurements and write the result with their coordinates and units.

    One batch of windows is in memory at a time. A run that is killed leaves ``<path>.part``; the
    same call goes on from there and ends with the bits of an undisturbed run. If the model knows
    the windows it was fitted to, ``familiar`` says of each forecast how much its window looks like
    them: a p-value, small for one unlike all of them.

    Args:
        model: The adapted model.
        data: Measurements with the model's channels, grid and time step.
        path: Ends in ``.nc`` or ``.zarr``.
        origins: "all": a forecast every ``stride`` frames and one from the last frames of each
            trajectory, which reaches beyond the data; "last": the latter only.
        stride: Frames between two forecasts; default the horizon.
        coverage: Write bands that hold the measured value so often, such as 0.9 or (0.5, 0.9):
            variables ``<channel>_lower`` and ``<channel>_upper`` along ``coverage``.
        batch_size: Windows per batch; default as in the model's settings.
        overwrite: Whether to replace a file made from another model or data.
        reporter: Where progress is shown.

    Raises:
        UnknownNameError: if a channel of the model is missing in ``data``.
        GridMismatchError: if ``data`` has another grid or spacing.
        DataError: if units or time step are others than the model's.
        NonFiniteError: if the model forecasts NaN or infinity.
        NotFittedError: if bands are asked for and the model has none.
    """
    asked = () if coverage is None else coverages(coverage)
    if asked:
        model.half_widths(asked)  # what cannot be is said before the work
    data = data.select(model.fields.channels)
    _check_fits(model.fields, data)
    batch_size = batch_size or model.settings.batch_size
    windows, known = _windows(model.fields, data, origins, stride)
    file = ForecastFile(
        path,
        *_contents(model, data, known, asked),
        key=_key(model, data, known, batch_size, asked),
        rows=batch_size,
        overwrite=overwrite,
    )

    def forecast(start: int) -> dict[str, np.ndarray]:
        numbers = range(start, min(start + batch_size, len(windows)))
        return _by_name(model, gather(windows, numbers).history, start, data, asked)

    _fill(file, forecast, len(windows), batch_size, reporter)
    return file.path


def _contents(
    model: AdaptedModel,
    data: Measurements,
    known: list[tuple[int, int]],
    asked: tuple[float, ...],
) -> tuple[xr.Dataset, dict[str, Room]]:
    """Coordinates of the file, and dimensions and attributes of its variables."""
    layout = forecast_layout(data, known, model.fields.horizon_frames)
    layout = layout.assign_attrs(_provenance(model))
    rooms = forecast_rooms(
        forecast_variables(data),
        [axis.name for axis in data.space],
        bounds=bool(asked),
        alarm=model.calibration is not None,
    )
    return with_coverages(layout, asked) if asked else layout, rooms


def _fill(
    file: ForecastFile,
    forecast: Callable[[int], dict[str, np.ndarray]],
    number: int,
    batch_size: int,
    reporter: Reporter,
) -> None:
    """Write the forecasts that the file still lacks, in order; processes take turns at them."""
    with ExitStack() as stack:
        if ranks.is_main():
            stack.enter_context(file)
        starts = range(ranks.agreed(file.done), number, batch_size)
        step = stack.enter_context(reporter.step("forecasting", number))
        step.advance(file.done)
        for count, rows in enumerate(ranks.in_order(starts, forecast), 1):
            file.write(rows)
            if count % _SAVE_EVERY == 0:
                file.save()
            step.advance(len(next(iter(rows.values()))))
        if ranks.is_main():
            file.finish()
        ranks.barrier()


def unfamiliar(path: PathLike, *, level: float = 0.05) -> list[str]:
    """Forecasts of a file whose windows look unlike those of the fit, by recording and frame.

    Args:
        path: What :func:`write_predictions` wrote.
        level: Of windows like those of the fit, about this share is named too.
    """
    engine = "zarr" if Path(path).suffix == ".zarr" else "netcdf4"
    with xr.open_dataset(path, engine=engine, decode_times=False) as data:
        if FAMILIAR not in data:
            return []
        values, names = data[FAMILIAR].values, data["recording"].values
        places = zip(data["trajectory"].values, data["frame"].values, values, strict=True)
        return [f"{names[n]}, frame {f}: p = {p:.3f}" for n, f, p in places if p <= level]


def _windows(
    fields: Fields, data: Measurements, origins: Origins, stride: int | None
) -> tuple[ArrayWindows, list[tuple[int, int]]]:
    """Windows to forecast from, and of each its trajectory and last known frame."""
    checks.choice("origins", origins, get_args(Origins))
    history = fields.history_frames
    first = [max(n - history, 0) if origins == "last" else 0 for n in data.frames]
    windows = data.windows(
        history,
        fields.horizon_frames,
        stride=fields.horizon_frames if stride is None else checks.whole("stride", stride),
        measured=fields.measured,
        frames=[slice(start, None) for start in first],
        beyond=True,
    )
    known = [(n, first[n] + start + history - 1) for n, start in windows.origins.tolist()]
    return windows, known


def _by_name(
    model: AdaptedModel,
    history: Tensor,
    start: int,
    data: Measurements,
    asked: tuple[float, ...],
) -> dict[str, np.ndarray]:
    """The values of each variable, bounds and p-values included where there are any."""
    try:
        forecast: Tensor = model.predict(history)
    except NonFiniteError as error:
        raise NonFiniteError(f"Among the forecasts from origin {start} on: {error}") from error
    values = forecast.float().cpu().numpy()
    names = list(forecast_variables(data))
    found = {name: values[..., channel] for channel, name in enumerate(names)}
    if asked:
        middle, half_widths = forecast[:, None], model.half_widths(asked, forecast).movedim(0, 1)
        for number, bound in enumerate((middle - half_widths, middle + half_widths)):
            for channel, name in enumerate(names):
                found[bound_names(name)[number]] = bound[..., channel].float().numpy()
    if model.calibration is not None:
        found[FAMILIAR] = model.familiar(history).numpy()
    return found


def _check_fits(fields: Fields, data: Measurements) -> None:
    """Refuse data of another grid, other units, another time step or other constants."""
    if data.grid != fields.grid:
        raise GridMismatchError(
            f"`data` must be on the model's grid, {fields.grid}, but is on {data.grid}. "
            "Interpolate the data to it."
        )
    check_axes(fields, data.recordings[0].time, data.space, "`data`")
    if data.conditioning != fields.conditioning:
        raise DataError(
            f"The model's constants are {fields.conditioning}, but `data` has {data.conditioning}. "
            "Name them with `conditioning` when opening the data."
        )
    pairs = zip(fields.channels, fields.units, data.units, strict=bool(fields.units))
    for name, mine, theirs in pairs:
        change = conversion(theirs, mine, what=f"Channel {name!r}")
        if not change.trivial:
            more = f" and add {change.offset:g}" if change.offset else ""
            raise DataError(
                f"Channel {name!r} is in {theirs!r}, but the model was adapted in {mine!r}. "
                f"Convert the data: multiply by {change.factor:.6g}{more}."
            )


def _provenance(model: AdaptedModel) -> dict[str, str]:
    prints = {f"r2no_{name}": str(model.provenance[name]) for name in ("source", "train", "fit")}
    return {
        "Conventions": "CF-1.8",
        "title": "Forecast of an adapted neural operator",
        "source": f"r2no {versions()['r2no']}",
        "r2no_versions": json.dumps(versions()),
        **prints,
    }


def _key(
    model: AdaptedModel,
    data: Measurements,
    known: list[tuple[int, int]],
    batch_size: int,
    asked: tuple[float, ...],
) -> str:
    """What the bits of the file depend on."""
    tensors, settings = model.ensemble.state()
    parts: tuple[Any, ...] = (model.identity, tensors, settings, versions(), data.identity)
    if model.calibration is not None:
        parts = (*parts, asked, *model.calibration.state())
    return storage.fingerprint(*parts, np.array(known), batch_size)
