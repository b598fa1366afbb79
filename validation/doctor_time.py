"""How long `r2no adapt` takes, against what `r2no doctor` says before.

    python -m validation.doctor_time [--sizes 3] [--repeat 1]

Writes travelling waves and a small FNO, and runs both commands, each as a process of its own, for
configs of three sizes. Exits with 1 if an estimate is off by more than a factor of 2.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
import yaml

from r2no import backbones
from r2no.data import Normaliser
from r2no.training import PhysicalOperator, save_operator

FRAMES = 6  # of history, and of horizon


class Size(NamedTuple):
    """A run: grid, frames of each recording, and how much is trained."""

    grid: tuple[int, int]
    frames: int
    members: int
    width: int
    epochs: int


SIZES = (
    Size((16, 32), 40, members=1, width=8, epochs=12),
    Size((32, 64), 40, members=2, width=8, epochs=4),
    Size((64, 128), 28, members=1, width=16, epochs=3),
)
SECONDS = {"s": 1, "min": 60, "h": 3600}


def wave(seed: int, size: Size) -> np.ndarray:
    """A wave of random phase that travels, with noise, (time, height, width)."""
    rng = np.random.default_rng(seed)
    t, y, x = np.meshgrid(*(np.arange(n) / n for n in (size.frames, *size.grid)), indexing="ij")
    smooth = np.sin(2 * np.pi * (3 * x - 4 * t + rng.random())) + 0.3 * np.cos(4 * np.pi * (y + t))
    return (smooth + 0.1 * rng.standard_normal(smooth.shape)).astype(np.float32)


def write_config(folder: Path, size: Size) -> Path:
    """Nine recordings of two channels, a network, and the YAML that adapts one to the other."""
    fields = np.stack([wave(seed, size) for seed in range(9)])
    dims = ("trajectory", "time", "y", "x")
    data = {"u": (dims, fields), "v": (dims, np.roll(fields, size.grid[1] // 4, -1))}
    xr.Dataset(data).to_netcdf(folder / "waves.nc")
    shape = (FRAMES, *size.grid, 2)
    torch.manual_seed(0)
    network = backbones.build(
        "fno", config=backbones.small_config("fno", shape_in=shape, shape_out=shape)
    )
    save_operator(
        PhysicalOperator(network, Normaliser.identity(2), Normaliser.identity(2)),
        folder / "fno.safetensors",
        backbone="fno",
    )
    train = {"epochs": size.epochs, "batch_size": 8}
    content = {
        "data": {
            "path": str(folder / "waves.nc"),
            "history": FRAMES,
            "horizon": FRAMES,
            "stride": 4,
        },
        "source": {"backbone": "fno", "checkpoint": str(folder / "fno.safetensors")},
        "adapt": {
            "members": size.members,
            "repair": {"width": size.width, "depth": 3, "steps": 6, "train": train},
        },
        "out": str(folder / "run"),
    }
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def run(*arguments: object) -> tuple[str, float, float]:
    """A command of r2no: what it printed, its seconds from start to end, and of the processor."""
    command = [sys.executable, "-m", "r2no", *map(str, arguments)]
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    begun, before = time.perf_counter(), os.times()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    after = os.times()
    busy = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return done.stdout, time.perf_counter() - begun, busy


def estimated(config: Path) -> float:
    """Seconds that the doctor expects."""
    rows: list[dict[str, Any]] = json.loads(run("doctor", config, "--json")[0])
    (message,) = (row["message"] for row in rows if row["check"] == "time")
    found = re.match(r"About ([\d.]+) (s|min|h) ", message)
    assert found is not None, message
    return float(found[1]) * SECONDS[found[2]]


def main() -> None:
    """A row per size and repeat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, default=len(SIZES))
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    print("| grid | members | width | doctor, s | adapt, s | of these busy | ratio |")
    print("|---|---|---|---|---|---|---|")
    ratios = []
    for size in SIZES[: options.sizes] * options.repeat:
        with tempfile.TemporaryDirectory() as folder:
            config = write_config(Path(folder), size)
            expected, (_, taken, busy) = estimated(config), run("adapt", config)
        ratios.append(taken / expected)
        grid = f"{size.grid[0]} x {size.grid[1]}"
        row = (grid, size.members, size.width, f"{expected:.0f}", f"{taken:.1f}", f"{busy:.1f}")
        print(f"| {' | '.join(map(str, row))} | {ratios[-1]:.2f} |", flush=True)
    sys.exit(not all(0.5 <= ratio <= 2 for ratio in ratios))


if __name__ == "__main__":
    main()
