"""One pair of the mini study, and its commands, on a pretend accelerator."""

import json

import pytest
from tests.support import pretend
from typer.testing import CliRunner

from r2no.cli.main import app
from r2no.errors import DeviceError
from r2no.realpdebench import write_tiny
from r2no.realpdebench.study.config import BenchConfig
from r2no.realpdebench.study.run import run_bench


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("data"), ["cylinder"])


def results(data, out, device):
    config = BenchConfig.of(
        preset="mini",
        data=data,
        out=out,
        systems=("cylinder",),
        backbones=("fno",),
        sources=("pretrained",),
        members=1,
        device=device,
    )
    assert [(each.state, each.error) for each in run_bench(config)] == [("done", "")]
    (found,) = (out / "results").glob("*.json")
    return json.loads(found.read_text())


@pytest.fixture(scope="module")
def on_cpu(data, tmp_path_factory):
    return results(data, tmp_path_factory.mktemp("cpu"), "cpu")


@pytest.mark.parametrize("wide", [True, False], ids=["cuda", "mps"])
def test_a_pair_on_the_device_gives_the_numbers_of_the_cpu(data, on_cpu, tmp_path, wide):
    with pretend.accelerator(wide=wide):
        found = results(data, tmp_path, "pretend")
    assert (on_cpu["device"], found["device"]) == ("cpu", "pretend:0")
    for name, scores in on_cpu["readouts"].items():
        # weights of near-collinear columns enlarge rounding
        close = 1e-6 if name in ("source", "irno_final") else 1e-5
        assert found["readouts"][name]["rmse"] == pytest.approx(scores["rmse"], rel=close), name
        assert found["readouts"][name] == pytest.approx(scores, rel=1e-3, abs=1e-5, nan_ok=True)
    change = on_cpu["diagnostic"]["change"]
    for ours, theirs in zip(found["diagnostic"]["change"], change, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4)


def test_commands_of_the_benchmark_take_a_device(data, tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, ["bench", *map(str, arguments), "--device", "pretend"])

    train = ["train", "--system", "cylinder", "--backbone", "fno", "--data", data, "--small"]
    absent = run(*train, "--out", tmp_path / "none")
    assert isinstance(absent.exception, DeviceError)
    study = run("run", "--preset", "mini", "--out", tmp_path / "none")
    assert isinstance(study.exception, DeviceError)
    assert not (tmp_path / "none").exists()
    with pretend.accelerator():
        few = ["--updates", 2, "--batch-size", 2, "--validations", 1]
        trained = run(*train, *few, "--out", tmp_path / "run")
        assert trained.exit_code == 0, trained.output
        path = tmp_path / "run" / "checkpoint.safetensors"
        scored = run("evaluate", path, "--data", data)
        assert scored.exit_code == 0, scored.output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["device"] == "pretend:0"
