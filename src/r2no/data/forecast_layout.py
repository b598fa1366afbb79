"""Coordinates of a forecast: when each was made, for when, and where on the data's own grid."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from r2no.data.coordinates import Axis
from r2no.data.measurements import Measurements
from r2no.errors import ConfigError

#: Dimensions of a forecast before those of space.
ORIGIN, LEAD = "origin", "lead"
RECORDING = "recording"
COVERAGE, FAMILIAR = "coverage", "familiar"
AUXILIARY = ("forecast_reference_time", "valid_time", "trajectory", "frame")

#: Dimensions and attributes of a variable.
Room = tuple[tuple[str, ...], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class ForecastPlan:
    """What goes into a file: coordinates, variables by name, and origins written together."""

    layout: xr.Dataset
    variables: Mapping[str, Room]
    rows: int

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a variable, its origins first."""
        return tuple(self.layout.sizes[dim] for dim in self.variables[name][0])

    def row_bytes(self, name: str) -> int:
        """Of a variable's values at one origin."""
        return 4 * math.prod(self.shape(name)[1:])

    @property
    def origins(self) -> int:
        """How many there are, the same for every variable."""
        (number,) = {self.shape(name)[0] for name in self.variables}
        return number

    @property
    def nbytes(self) -> int:
        """Of all values and coordinates."""
        row = sum(self.row_bytes(name) for name in self.variables)
        return self.origins * row + self.layout.nbytes


def forecast_layout(
    data: Measurements, origins: Sequence[tuple[int, int]], horizon: int
) -> xr.Dataset:
    """Coordinates of forecasts made from ``data``.

    Args:
        data: What the forecasts are made from.
        origins: For each forecast: number of the trajectory, last frame that is known.
        horizon: Frames ahead.

    Returns:
        A data set with dimensions origin, lead and the data's own spatial ones; the time of the
        last known frame, of every forecast frame, the trajectory and the frame as coordinates.
        ``recording`` names the trajectories.
    """
    first = data.recordings[0].time
    leads = np.arange(1, horizon + 1) * first.step
    reference, valid = _times(data, origins, leads)
    numbers, frames = np.array(origins, dtype=np.int64).T
    names = np.array([recording.name for recording in data.recordings], dtype=str)
    attributes = _time_attributes(first)
    layout = xr.Dataset(
        coords={
            LEAD: (LEAD, leads, _lead_attributes(first)),
            AUXILIARY[0]: (ORIGIN, reference, {**attributes, "standard_name": AUXILIARY[0]}),
            AUXILIARY[1]: ((ORIGIN, LEAD), valid, {**attributes, "standard_name": "time"}),
            AUXILIARY[2]: (ORIGIN, numbers, {"long_name": "number of the recording"}),
            AUXILIARY[3]: (ORIGIN, frames, {"long_name": "last known frame of the recording"}),
            RECORDING: (RECORDING, names),
            **{name: _plain(found) for name, found in data.recordings[0].coordinates.items()},
        }
    )
    missing = {axis.name: axis.size for axis in data.space if axis.name not in layout.sizes}
    return layout.assign_coords({name: np.arange(size) for name, size in missing.items()})


def forecast_variables(data: Measurements) -> dict[str, dict[str, Any]]:
    """Names of the forecast variables with units and whatever CF names the data give."""
    values, found = data.recordings[0].values, {}
    single = all(part.channel is None for part in values.parts)
    for number, (name, units) in enumerate(zip(data.channels, data.units, strict=True)):
        attributes: dict[str, Any] = {"units": units} if units else {}
        for key in ("long_name", "standard_name") if single else ():
            if key in values.parts[number].variable.attrs:
                attributes[key] = str(values.parts[number].variable.attrs[key])
        found[name.replace("/", "_")] = {**attributes, "coordinates": " ".join(AUXILIARY)}
    return found


def bound_names(name: str) -> tuple[str, str]:
    """Variables of the bounds of a forecast variable."""
    return f"{name}_lower", f"{name}_upper"


def forecast_rooms(
    variables: Mapping[str, Mapping[str, Any]], space: Sequence[str], *, bounds: bool, alarm: bool
) -> dict[str, Room]:
    """Dimensions and attributes of all variables of a forecast, with bounds if there are any.

    Raises:
        ConfigError: if a channel has the name of another one's bound.
    """
    rooms: dict[str, Room] = {}
    for name, attributes in variables.items():
        own = {"ancillary_variables": " ".join(bound_names(name))} if bounds else {}
        rooms[name] = ((ORIGIN, LEAD, *space), {**attributes, **own})
    for name, attributes in variables.items() if bounds else ():
        kept = {key: attributes[key] for key in ("units", "coordinates") if key in attributes}
        for bound, side in zip(bound_names(name), ("lower", "upper"), strict=True):
            said = {"long_name": f"{side} bound of the band around {name}", **kept}
            _add(rooms, bound, ((ORIGIN, COVERAGE, LEAD, *space), said))
    if alarm:
        said = {"long_name": "p-value: does a window of the fit look like this one", "units": "1"}
        _add(rooms, FAMILIAR, ((ORIGIN,), said))
    return rooms


def _add(rooms: dict[str, Room], name: str, room: Room) -> None:
    if name in rooms:
        raise ConfigError(
            f"A channel is called {name!r}, as what r2no writes beside it. Rename the channel with "
            "`variables` when opening the data."
        )
    rooms[name] = room


def with_coverages(layout: xr.Dataset, coverages: Sequence[float]) -> xr.Dataset:
    """A layout with the coverages of bounds as a coordinate."""
    said = {"long_name": "probability that a measured value lies in the band", "units": "1"}
    return layout.assign_coords({COVERAGE: (COVERAGE, list(coverages), said)})


def _times(
    data: Measurements, origins: Sequence[tuple[int, int]], leads: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    axes = [recording.time for recording in data.recordings]
    reference = [axes[number].values(np.array([frame])) for number, frame in origins]
    valid = [axes[number].later(frame, leads) for number, frame in origins]
    return np.concatenate(reference), np.stack(valid)


def _time_attributes(time: Axis) -> dict[str, Any]:
    if time.variable is None:
        return {"units": "frames"}
    kept = ("units", "calendar")
    return {k: str(v) for k, v in time.variable.attrs.items() if k in kept}


def _lead_attributes(time: Axis) -> dict[str, str]:
    units = time.units if time.variable is not None else "frames"
    return {"standard_name": "forecast_period", **({"units": units} if units else {})}


def _plain(variable: xr.Variable) -> xr.Variable:
    """A coordinate without what belonged to the file it was read from."""
    attributes = {key: value for key, value in variable.attrs.items() if key != "bounds"}
    return xr.Variable(variable.dims, variable.values, attributes)
