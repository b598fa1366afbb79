"""The benchmark's own evaluation of a closed-form toy network, and properties of the roll-out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from r2no import metrics
from r2no.data.normalise import Normaliser
from r2no.data.window import Window, batches, collate
from r2no.errors import ConfigError, DataError, EmptySplitError, GridMismatchError, ShapeError
from r2no.realpdebench import RealPDEBench, write_tiny
from r2no.realpdebench.protocol.evaluation import (
    MeasuredChannels,
    Protocol,
    roll_out,
    score_operators,
)
from r2no.realpdebench.protocol.inputs import check_operator
from r2no.realpdebench.systems import Body
from r2no.training import PhysicalOperator

GOLDEN = Path(__file__).parents[1] / "golden" / "realpdebench"
CASES = json.loads((GOLDEN / "evaluation.json").read_text())["cases"]
NAMES = {"f_error": "frmse"} | {
    f"{relative}{band}_f_error": f"{relative}frmse_{band}"
    for relative in ("", "rel_")
    for band in ("low", "mid", "high")
}


class Toy(nn.Module):
    """0.9 flip_time(z) + 0.05 mean_time(z) - 0.02 x_last, z the field's channels of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        z = x[..., : self.channels]
        return 0.9 * z.flip(1) + 0.05 * z.mean(1, keepdim=True) - 0.02 * x[..., -1:]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"), layouts=["arrow"])


def statistics(system: str, method: str) -> tuple[Normaliser, Normaliser]:
    stored = json.loads((GOLDEN / f"{system}.json").read_text())
    values = stored["normalizer"]["numerical|mask0|batch512"]
    found = []
    for side in ("inputs", "targets"):
        mean, std, peak = (torch.tensor(values[f"{k}_{side}"]) for k in ("mean", "std", "max"))
        if method == "none":
            found.append(Normaliser.identity(len(mean)))
        else:
            found.append(
                Normaliser(mean, std) if method == "gaussian" else Normaliser(0 * peak, peak)
            )
    return found[0], found[1]


def setup(root: Path, case: str) -> tuple[PhysicalOperator, RealPDEBench, dict[str, Any]]:
    system, method, blocks = case.split("|")
    stored = CASES[case]
    windows = RealPDEBench(
        root,
        system,
        "real",
        "test",
        autoregressive=int(blocks.removeprefix("N")),
        frames=stored["n_sim_frame"],
    )
    toy = Toy(len(windows.fields.channels))
    return PhysicalOperator(toy, *statistics(system, method)), windows, stored


@pytest.mark.parametrize("case", CASES)
def test_evaluation_agrees_with_the_benchmark(case: str, root: Path) -> None:
    operator, windows, stored = setup(root, case)
    normalisers = operator.history_normaliser, operator.target_normaliser
    protocol = Protocol(4, "benchmark", normalisers)
    scores = score_operators({"toy": operator}, windows, protocol)["toy"]
    assert len(windows) == stored["n_windows"]
    assert len(windows.fields.measured) == stored["measured_c"]
    metric_batch = protocol.metric_batch(windows.autoregressive) or len(windows)
    assert metric_batch == stored["metric_batch_size"]
    assert scores["normalised_mse"] == pytest.approx(stored["normalized_mse_5dec"], abs=6e-6)
    for name, expected in stored["metrics"].items():
        assert scores[NAMES.get(name, name)] == pytest.approx(
            float(expected), rel=1e-4, abs=0, nan_ok=True
        ), name


@pytest.mark.parametrize("compat", [None, "benchmark"])
def test_probe_errors_of_a_set_are_those_of_its_batches(
    compat: Literal["benchmark"] | None, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in CASES if case.startswith("cylinder|gaussian|N1"))
    operator, windows, _ = setup(root, case)
    body = Body(2, (4, windows.fields.grid[0] // 2))  # the small grid does not hold the real one
    monkeypatch.setattr(windows, "system", replace(windows.system, body=body, stride=(1, 2)))
    normalisers = operator.history_normaliser, operator.target_normaliser
    size = len(windows) // 2 + 1  # two batches of different size
    protocol = Protocol(size, compat, normalisers, probes=True)
    scores = score_operators({"toy": operator}, windows, protocol)["toy"]
    channels = 3 if compat else 2
    stations = [
        metrics.probe_error(
            protocol.scored(operator(window.history))[..., :channels],
            window.target[..., :channels],
            diameter=body.diameter,
            center=body.center,
            compat=compat,
        ).mean()
        for _, window in batches(windows, size if compat else len(windows))
    ]
    assert scores["mvpe"] == pytest.approx(float(sum(stations) / len(stations)), rel=1e-6)
    by_station = [scores[f"mvpe_station{number}"] for number in (1, 2, 3, 4)]
    assert sum(by_station) / 4 == pytest.approx(scores["mvpe"])


def test_probes_need_a_body_that_the_grid_holds(root: Path) -> None:
    windows = RealPDEBench(root, "combustion", "real", "test")
    with pytest.raises(ConfigError, match="`combustion` has none"):
        score_operators({"toy": lambda x: x}, windows, Protocol(probes=True))
    small = RealPDEBench(root, "cylinder", "real", "test")
    with pytest.raises(GridMismatchError, match="must lie in the grid"):
        score_operators({"toy": lambda x: x}, small, Protocol(probes=True))


@pytest.mark.parametrize("case", [case for case in CASES if "gaussian" in case])
def test_scored_forecast_agrees_with_the_benchmark(case: str, root: Path) -> None:
    operator, windows, _ = setup(root, case)
    protocol = Protocol(4, "benchmark", (operator.history_normaliser, operator.target_normaliser))
    _, window = next(iter(batches(windows, 1)))
    forecast = roll_out(
        operator,
        window.history,
        blocks=windows.autoregressive,
        channels=window.target.shape[-1],
    )
    with np.load(GOLDEN / "evaluation.npz") as arrays:
        key = case.replace("|", ".")
        for name, found in (("pred0", protocol.scored(forecast)), ("target0", window.target)):
            expected = torch.from_numpy(arrays[f"{key}/{name}"])
            cut = found[0, ::5, ::2, ::2, :3]
            torch.testing.assert_close(cut, expected, rtol=1e-5, atol=1e-5)


def test_clean_value_is_the_forecast_itself(root: Path) -> None:
    operator, windows, stored = setup(root, "controlled_cylinder|gaussian|N1")
    scores = score_operators({"toy": operator}, windows, Protocol(4))["toy"]
    assert scores["rmse"] != pytest.approx(stored["metrics"]["rmse"], rel=1e-7)
    assert scores["rmse"] == pytest.approx(stored["metrics"]["rmse"], rel=1e-2)
    shared = operator.history_normaliser, operator.history_normaliser
    same = PhysicalOperator(operator.network, *shared)
    clean = score_operators({"toy": same}, windows, Protocol(4))["toy"]
    quirk = score_operators({"toy": same}, windows, Protocol(4, "benchmark", shared))["toy"]
    assert quirk["rmse"] == pytest.approx(clean["rmse"], rel=1e-5)


def test_scores_do_not_depend_on_the_batch_size(root: Path) -> None:
    operator, windows, _ = setup(root, "controlled_cylinder|gaussian|N2")
    few, many = (
        score_operators({"toy": operator}, windows, Protocol(size))["toy"] for size in (1, 7)
    )
    assert few == pytest.approx(many, rel=1e-6)


def test_roll_out_appends_the_conditioning_again() -> None:
    history = torch.randn(2, 3, 4, 5, 4)

    def operator(x: Tensor) -> Tensor:
        return x[..., :2] + x[..., 2:]

    found = roll_out(operator, history, blocks=3, channels=2)
    for block in range(3):
        expected = history[..., :2] + (block + 1) * history[..., 2:]
        torch.testing.assert_close(found[:, 3 * block : 3 * block + 3], expected)


def test_roll_out_needs_blocks_as_long_as_the_history() -> None:
    with pytest.raises(ShapeError, match="as long as the history"):
        roll_out(lambda x: x[:, :1], torch.zeros(1, 3, 4, 4, 2), blocks=2, channels=2)


def test_compat_needs_normalisers() -> None:
    with pytest.raises(ShapeError, match="normalisers"):
        Protocol(4, "benchmark")


def seen(windows: RealPDEBench, channels: list[int]) -> MeasuredChannels:
    """After a batch in which these channels are not zero."""
    found = MeasuredChannels(windows)
    history, target, mask = collate([windows[0]])
    target = torch.zeros_like(target)
    target[..., 0, 0, :] = torch.tensor(channels, dtype=target.dtype)
    found.begin(range(1), Window(history, target, mask))
    return found


def test_declared_channels_are_held_against_the_data(root: Path) -> None:
    windows = RealPDEBench(root, "fsi", "real", "test")
    seen(windows, [1, 1, 0]).check()
    with pytest.raises(DataError, match="measures v, but"):
        seen(windows, [1, 0, 0]).check()
    with pytest.raises(DataError, match="does not measure p"):
        seen(windows, [1, 1, 1]).check()
    seen(RealPDEBench(root, "fsi", "numerical", "train"), [1, 1, 1]).check()


def test_split_without_windows_is_named(root: Path) -> None:
    windows = RealPDEBench(root, "cylinder", "real", "test", autoregressive=2)
    toy = PhysicalOperator(Toy(3), *statistics("cylinder", "gaussian"))
    with pytest.raises(EmptySplitError, match="no window of 60 frames"):
        check_operator(toy, windows)
    other = PhysicalOperator(Toy(3), *statistics("combustion", "gaussian"))
    with pytest.raises(ShapeError, match="16 history and 16 target"):
        check_operator(other, RealPDEBench(root, "cylinder", "real", "test"))
