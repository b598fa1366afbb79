"""Twenty gigabytes through `predict`: the peak of the process's memory.

    python validation/stream_20gb.py [--gigabytes 20] [--out FOLDER]

The data set is made where it is sliced (256 x 512 points, two channels, one frame a megabyte) and
never exists as a whole. Every frame is read once as history: windows of 20 + 2 frames, one forecast
every 20 frames. Source: persistence; repair: one tiny module, two steps.

Exits with 1 unless the peak resident memory stays below 2 GB.
"""

import argparse
import datetime
import platform
import resource
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
import xarray as xr

import r2no
from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairSettings, write_predictions
from r2no.progress import Reporter
from r2no.training import Persistence, TrainSettings

GRID, HISTORY, HORIZON = (256, 512), 20, 2


class Virtual:
    """A travelling wave, computed for the frames that are asked for."""

    def __init__(self, frames):
        self.shape, self.dtype = (frames, *GRID, 2), np.dtype(np.float32)
        y, x = np.meshgrid(*(np.linspace(0, 2 * np.pi, n, endpoint=False) for n in GRID))
        base = np.stack([np.sin(x + 2 * y), np.cos(x + 2 * y)], -1).transpose(1, 0, 2)
        self._real, self._imaginary = base.astype(np.float32), base[..., ::-1].astype(np.float32)

    def __getitem__(self, key):
        angle = 0.05 * np.arange(self.shape[0])[key[0]].astype(np.float64)
        c, s = (f(angle).astype(np.float32)[:, None, None, None] for f in (np.cos, np.sin))
        return (c * self._real + s * self._imaginary)[(slice(None), *key[1:])]


def adapted():
    data = r2no.data.open([Virtual(60), Virtual(50), Virtual(40)], variables=("u", "v"))
    parts = data.split(HISTORY, HORIZON, stride=10)
    repair = RepairSettings(width=2, depth=1, steps=2, train=TrainSettings(epochs=1, batch_size=2))
    ensemble = EnsembleSettings(cells="published", radial=4, angular=2, ridge=1e-4)
    settings = AdaptSettings(members=1, batch_size=2, repair=repair, ensemble=ensemble)
    return r2no.adapt(Persistence(HORIZON, 2), parts.train, parts.fit, settings=settings)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # GB


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=Path("out/stream"))
    arguments = parser.parse_args()
    model = adapted()
    before = peak()
    frames = round(arguments.gigabytes * 2**30 / (np.prod(GRID) * 2 * 4))
    data = r2no.data.open(Virtual(frames), variables=("u", "v"), time_step=0.1)
    print(data)
    start = time.monotonic()
    shutil.rmtree(arguments.out, ignore_errors=True)
    path = arguments.out / "forecast.nc"
    write_predictions(model, data, path, stride=HISTORY, reporter=Reporter())
    seconds = time.monotonic() - start
    with xr.open_dataset(path) as found:
        print(found)
        last = np.stack([found[name][-1].values for name in ("u", "v")], -1)
    history = data.windows(HISTORY, HORIZON, stride=frames, beyond=True)[1].history[None]
    agrees = np.allclose(last, model.predict(history)[0], rtol=1e-4, atol=1e-5)
    written = path.stat().st_size / 2**30
    print(f"\n{datetime.date.today()}, {platform.machine()}, torch {torch.__version__},")
    print(f"{torch.get_num_threads()} threads")
    print("| data, GB | written, GB | seconds | peak memory before, GB | peak memory, GB |")
    print("|---|---|---|---|---|")
    size = data.nbytes / 2**30
    print(f"| {size:.1f} | {written:.2f} | {seconds:.0f} | {before:.2f} | {peak():.2f} |")
    print(f"\nlast forecast agrees with the model's: {agrees}; below 2 GB: {peak() < 2}")
    sys.exit(not (agrees and peak() < 2))


if __name__ == "__main__":
    main()
