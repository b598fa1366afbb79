"""The commands as two processes: what one writes, once; killed and started again, the same bits."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray
import yaml
from tests.support.processes import ROOT, ended, start
from tests.support.waves import travelling_wave

from r2no import storage

TRAIN = {"epochs": None, "updates": 40, "batch_size": 6, "lr": 5e-3, "validations": 10}
REPAIR = {"width": 4, "depth": 2, "steps": 2, "train": TRAIN}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measurements, weights and a config, adapted by two processes."""
    folder = tmp_path_factory.mktemp("ranks")
    waves = np.stack([travelling_wave(seed).numpy() for seed in range(9)])
    waves[..., 1] = 2 + 0.5 * np.roll(waves[..., 0], 2, axis=-1)
    dims = ("trajectory", "time", "y", "x")
    data = {name: (dims, waves[..., i], {"units": "m/s"}) for i, name in enumerate("uv")}
    xarray.Dataset(data).to_netcdf(folder / "piv.nc")
    torch.save({"weight": 0.3 * torch.eye(8)}, folder / "weights.pt")
    content = {
        "data": {"path": str(folder / "piv.nc"), "history": 4, "horizon": 4, "stride": 3},
        "source": {
            "python": "tests.support.networks:FrameMix",
            "checkpoint": str(folder / "weights.pt"),
            "layout": "B (T C) H W",
        },
        "adapt": {"members": 1, "repair": REPAIR, "ensemble": {"radial": 4, "angular": 4}},
    }
    for name in ("two", "killed-0", "killed-1"):
        text = yaml.safe_dump({**content, "out": str(folder / name)})
        (folder / f"{name}.yaml").write_text(text)
    outputs = commanded(2, "adapt", folder / "two.yaml")
    assert "Wrote" in outputs[0]
    assert outputs[1] == ""
    return folder


def commanded(number: int, *arguments: object) -> list[str]:
    """What each process of a command prints."""
    found = ended(start(["r2no", *map(str, arguments)], number=number))
    assert [code for code, _, _ in found] == [0] * number, found
    assert all(err == "" for _, _, err in found[1:])
    return [out for _, out, _ in found]


def test_scores_and_forecasts_are_those_of_one_process(place: Path, tmp_path: Path) -> None:
    artifact = place / "two" / "model.r2no"
    scores = []
    for number in (1, 2):
        out = commanded(number, "evaluate", artifact, "--trust-source")[0]
        scores.append(json.loads(out)["scores"])
        forecast = tmp_path / f"{number}.nc"
        options = ["--out", forecast, "--trust-source", "--batch-size", 3]
        commanded(number, "predict", artifact, place / "piv.nc", *options)
    for name, values in scores[0].items():  # what is not finite is a text in JSON
        one, two = ({key: float(value) for key, value in found[name].items()} for found in scores)
        assert one.keys() == values.keys()
        assert two == pytest.approx(one, rel=1e-9, nan_ok=True), name
    assert storage.file_sha256(tmp_path / "1.nc") == storage.file_sha256(tmp_path / "2.nc")


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_processes_are_started_again_and_end_in_the_same_bits(
    place: Path, victim: int
) -> None:
    launch = ["torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", "--standalone"]
    path, run = os.pathsep.join([str(ROOT / "src"), str(ROOT)]), f"killed-{victim}"
    process = subprocess.Popen(
        [sys.executable, "-m", *launch, "-m", "r2no", "adapt", str(place / f"{run}.yaml")],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with _ended(process):
        _wait_for_training(place / run, process)
        os.kill(_workers(process.pid)[victim], signal.SIGKILL)
        _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    for name in ("repair-0.safetensors", "ensemble.safetensors"):
        files = [place / each / "model.r2no" / name for each in ("two", run)]
        assert files[0].read_bytes() == files[1].read_bytes()


@contextlib.contextmanager
def _ended(process: subprocess.Popen) -> Iterator[None]:
    """Whatever happens, neither the process nor those that it started stay behind."""
    try:
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _wait_for_training(out: Path, process: subprocess.Popen) -> None:
    """Until the state of an update is stored."""
    state = out / "work" / "repair-42" / "state.safetensors"
    while process.poll() is None:
        if state.exists() and storage.load_tensors(state)[1]["update"] > 0:
            return
        time.sleep(0.005)
    raise AssertionError(process.communicate()[1])


def _workers(launcher: int) -> list[int]:
    """Processes of a launcher, by rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    ranks = {}
    for child in children:
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        for one in variables:
            if one.startswith(b"RANK="):
                ranks[int(one[5:])] = int(child)
    return [ranks[rank] for rank in sorted(ranks)]
