"""Measurements run from a fresh clone, briefly too; what they measured is not tested here."""

import importlib
import subprocess
import sys
from pathlib import Path

import benchmarks
import numpy as np
import pytest
import torch
from benchmarks import gpu, rollout, split_sums
from benchmarks.__main__ import names

from tests.support import pretend

ROOT = Path(__file__).parents[1]


def test_every_module_of_the_folder_is_run() -> None:
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert set(names()) == files - {"__init__", "__main__"}


@pytest.mark.parametrize("name", names())
def test_every_benchmark_can_be_brief(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(f"benchmarks.{name}").main()
    assert "--brief" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ensemble", "fit", "gpu", "metrics", "readouts", "split_sums"])
def test_brief_run_says_that_it_is_no_result(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--brief"])
    importlib.import_module(f"benchmarks.{name}").main()
    assert "The numbers are no result." in capsys.readouterr().out


@pytest.mark.parametrize("wide", [True, False], ids=["cuda", "mps"])
def test_the_kit_for_devices_compares_them_with_the_cpu(wide: bool) -> None:
    with pretend.accelerator(wide=wide):
        found = gpu.report(pretend.DEVICE, True, 1)
    assert (found["schema"], found["device"]) == (gpu.SCHEMA, "pretend:0")
    assert set(found["stages"]) == {"training_step", "rollout", "gram_sums", "metrics"}
    assert all(row["difference"] < 1e-6 for row in found["stages"].values())


@pytest.mark.parametrize("observations", [64, 65, 640])
def test_slices_are_as_exact_as_products_in_float64(observations: int) -> None:
    values = split_sums.columns(3, 5, observations)
    values[0, 1] = 0
    values[1] *= torch.logspace(-30, 30, observations, dtype=torch.float64)
    found = split_sums.split(values)
    assert not found[0, 1].any()
    reached = [(one / _norms(values)) for one in (found, split_sums.plain(values))]
    torch.testing.assert_close(*reached, atol=1e-14, rtol=0, equal_nan=True)


def _norms(values: torch.Tensor) -> torch.Tensor:
    norms = values.norm(dim=-1)
    return norms[:, :, None] * norms[:, None]


def test_memory_that_does_not_grow_is_no_divisor(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = dict.fromkeys(rollout.KINDS, rollout.Seconds(1.0, 1.0))
    rollout.print_table(seconds, seconds, dict.fromkeys(rollout.KINDS, 0.0))
    assert "| its peak memory, MB | 0 | 0 | - | <= 0.35 |" in capsys.readouterr().out


def test_peak_of_a_process_is_not_that_of_the_one_that_started_it() -> None:
    held = np.ones(64 * 2**20, np.uint8)
    code = "from benchmarks import peak_megabytes; print(peak_megabytes())"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    assert float(child.stdout) + held.nbytes / 2**20 < benchmarks.peak_megabytes()
