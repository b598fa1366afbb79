"""Make toy files for the pages: `python toy.py` writes piv.nc, simulation.nc and weights.pt.

The waves in piv.nc play the measurement: they drift faster than those of the simulation, hold a
second wave the simulation lacks, and a tenth of the vectors is missing. The network learns the
simulation only. Everything is made up, in seconds.
"""

from pathlib import Path

import numpy as np
import torch
import xarray
from mynet import Forecaster

RUNS, FRAMES, HEIGHT, WIDTH = 9, 40, 12, 16


def waves(*, speed: float, second: float, seed: int) -> np.ndarray:
    """Trajectories (run, frame, y, x, channel) of travelling waves, u and v."""
    phase = 2 * np.pi * np.random.default_rng(seed).random((RUNS, 1, 1, 1))
    time = np.arange(FRAMES)[:, None, None]
    y = 2 * np.pi * np.arange(HEIGHT)[:, None] / HEIGHT
    x = 2 * np.pi * np.arange(WIDTH) / WIDTH
    u = np.sin(x - speed * time + phase) + second * np.sin(2 * y + 3 * x - 0.4 * time + 2 * phase)
    v = 0.5 * np.cos(x - speed * time + phase) * np.cos(y)
    return np.stack([u, v], -1)


def as_dataset(values: np.ndarray) -> xarray.Dataset:
    """With the names, units and coordinates that a PIV file has."""
    dims = ("run", "time", "y", "x")
    fields = {name: (dims, values[..., n], {"units": "m/s"}) for n, name in enumerate("uv")}
    coords = {
        "time": ("time", 0.01 * np.arange(FRAMES), {"units": "s"}),
        "y": ("y", 0.5 * np.arange(HEIGHT), {"units": "mm"}),
        "x": ("x", 0.5 * np.arange(WIDTH), {"units": "mm"}),
    }
    return xarray.Dataset(fields, coords)


def pretrain(values: np.ndarray, updates: int = 150) -> Forecaster:
    """Train the network on windows of the simulation."""
    torch.manual_seed(0)
    network, fields = Forecaster(), torch.tensor(values, dtype=torch.float32)
    windows = fields.unfold(1, 8, 1)  # (run, start, y, x, channel, frame)
    packed = windows.flatten(0, 1).permute(0, 4, 3, 1, 2).flatten(1, 2)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(updates):
        chosen = packed[torch.randint(len(packed), (16,))]
        loss = (network(chosen[:, :8]) - chosen[:, 8:]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def main(folder: Path = Path()) -> None:
    """Write the three files."""
    random = np.random.default_rng(1)
    measured = waves(speed=0.35, second=0.3, seed=2)
    measured += 0.03 * random.standard_normal(measured.shape)
    measured[random.random(measured.shape[:-1]) < 0.1] = np.nan  # lost vectors
    simulated = waves(speed=0.3, second=0.0, seed=2)
    as_dataset(measured).to_netcdf(folder / "piv.nc")
    as_dataset(simulated).rename(run="trajectory").to_netcdf(folder / "simulation.nc")
    torch.save(pretrain(simulated).state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    main()
