"""Stop a run on one machine and go on with it on another, with the data copied anew.

    python -m validation.attacks.elsewhere [--settings 3]

The other machine is this one with other instructions (``ATEN_CPU_CAPABILITY``, ``MKL_CBWR``) and
another number of threads. Runs must go on; a forecast is kept when only dates have changed, and
refused when a value has, though size and date are the same.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from validation.attacks.common import (
    Tally,
    command,
    ended,
    environment,
    run_script,
    toy_model,
    wave,
    write_npz,
)
from validation.attacks.processes import bench_arguments, own_workspace

HERE_AND_THERE = (
    ({"ATEN_CPU_CAPABILITY": "default"}, {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"}),
    ({"MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "2"}, {"MKL_CBWR": "COMPATIBLE"}),
    ({}, {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2"}),
)


def stop_when(arguments: list[object], here: dict[str, str], mark: tuple[Path, str]) -> bool:
    """Start a command and kill it once a file of this pattern is there; False if it ended first."""
    folder, pattern = mark
    process = subprocess.Popen(
        command(*arguments),
        env=environment(**here),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None:
        if any(folder.glob(pattern)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)  # so that it goes on for a while
                return False
            process.kill()
            process.wait()
            return True
        time.sleep(0.01)
    return False


def copied_anew(*paths: Path) -> None:
    """Copy files and folders over themselves with other dates."""
    for path in paths:
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        for file in files:
            copy = file.with_name(file.name + ".copy")
            shutil.copyfile(file, copy)
            copy.replace(file)
            os.utime(file, ns=(1, 1))


def go_on(
    tally: Tally,
    arguments: list[object],
    settings: tuple[dict[str, str], dict[str, str]],
    mark: tuple[Path, str],
    *data: Path,
) -> None:
    """Stop here, copy the data, go on there."""
    here, there = settings
    detail = f"{arguments[0]} from {here} to {there}"
    if not stop_when(arguments, here, mark):
        tally.add("raw", f"{detail}: it was not stopped")
        return
    copied_anew(*data)
    run = subprocess.run(
        command(*arguments), env=environment(**there), capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        tally.add("wrong", f"{detail} did not go on: {run.stderr.strip()[-400:]}")
    else:
        tally.add("right")


def commands(work: Path) -> list[tuple[list[object], tuple[Path, str], list[Path]]]:
    """Commands, the sign that they are in the middle of it, and the data they read."""
    config = own_workspace(work, epochs=3)
    artifact = toy_model().save(work / "model.r2no")
    data = work / "data.npz"
    write_npz(data, frames=400)
    bench, train = work / "bench", work / "train"
    tiny = work / "bench" / "data"
    rest = ["--small", "--updates", 40, "--batch-size", 4, "--validations", 12, "--lr", 1e-3]
    system = ["--system", "cylinder", "--backbone", "fno", "--data", tiny, "--paradigm", "real"]
    forecast = ["predict", artifact, data, "--out", work / "f.nc", "--stride", 1]
    return [
        (
            ["adapt", config],
            (work / "run" / "work", "repair-*/state.safetensors"),
            [work / "piv.nc"],
        ),
        (forecast, (work, "f.nc.part.json"), [data]),
        (bench_arguments(bench), (bench / "sources", "*/run/state.safetensors"), [tiny]),
        (
            ["bench", "train", *system, *rest, "--out", train],
            (train / "run", "state.safetensors"),
            [tiny],
        ),
    ]


def forecasts(tally: Tally, work: Path) -> None:
    """A finished forecast against other dates and other values of the data."""
    artifact = toy_model().save(work / "small.r2no")
    data, out = work / "small.npz", work / "small.nc"
    values = {str(number): wave(31, 60).numpy()[..., number] for number in range(2)}
    np.savez(data, **values)
    arguments = command("predict", artifact, data, "--out", out)

    def predict() -> "subprocess.CompletedProcess[str]":
        env = environment()
        return subprocess.run(arguments, env=env, capture_output=True, text=True, check=False)

    if not ended(tally, predict(), "the first forecast"):
        return
    before, stamp = out.read_bytes(), data.stat()
    os.utime(data, ns=(5, 5))
    again = predict()
    kept = again.returncode == 0 and out.read_bytes() == before
    tally.add("right" if kept else "wrong", f"another date: {again.stderr[-300:]}")
    values["0"][-1, 0, 0] += 1
    np.savez(data, **values)
    os.utime(data, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert data.stat().st_size == stamp.st_size
    changed = predict()
    if ended(tally, changed, "same size and date, another value"):
        tally.add("wrong", "a forecast of other data was kept")


def attack(options: argparse.Namespace) -> list[Tally]:
    """Every command under every change of machine."""
    tallies = [
        Tally(f"gone on elsewhere: {name}") for name in ("adapt", "predict", "bench", "train")
    ]
    for settings in HERE_AND_THERE[: options.settings]:
        with tempfile.TemporaryDirectory() as folder:
            for tally, (arguments, mark, data) in zip(tallies, commands(Path(folder)), strict=True):
                go_on(tally, arguments, settings, mark, *data)
    tallies.append(Tally("forecast of data with other dates, of data with another value"))
    with tempfile.TemporaryDirectory() as folder:
        forecasts(tallies[-1], Path(folder))
    return tallies


if __name__ == "__main__":
    run_script(attack, settings=3)
