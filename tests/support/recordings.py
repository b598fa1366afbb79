"""A recording with coordinates and units, as a file of measurements has them."""

import numpy as np
import xarray as xr

from tests.support.waves import travelling_wave

HISTORY, HORIZON = 4, 4
START = np.datetime64("2024-03-01", "ns")


def recording(seed: int, frames: int = 40, dates: bool = False) -> xr.Dataset:
    """Speed and pressure on a grid of latitudes and longitudes, with times or dates."""
    wave = travelling_wave(seed, frames).numpy()
    time = 0.25 * np.arange(frames)
    return xr.Dataset(
        {
            "u": (("time", "lat", "lon"), wave[..., 0], {"units": "m/s", "long_name": "speed"}),
            "p": (("time", "lat", "lon"), wave[..., 1], {"units": "Pa"}),
        },
        {
            "time": START + (time * 1e9).astype("timedelta64[ns]") if dates else time,
            "lat": ("lat", 50.0 - np.arange(8) * 0.5, {"units": "degrees_north"}),
            "lon": ("lon", 5.0 + np.arange(12), {"units": "degrees_east"}),
        },
    )
