"""Stored forecasts as a source: found by history, whatever the order of windows."""

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray

import r2no
from r2no.data import ArrayWindows
from r2no.errors import ConfigError, DataError, FingerprintError, ShapeError
from r2no.operators import Forecasts
from r2no.training import operator_fingerprint
from tests.conftest import travelling_wave
from tests.support.adapting import SETTINGS

SEEDS = range(7)


def cut(seeds: range | list[int], stride: int = 1) -> ArrayWindows:
    return ArrayWindows(
        [travelling_wave(s) for s in seeds], 4, 4, stride=stride, channels=("u", "p"), measured=(0,)
    )


def simulation(seed: int) -> np.ndarray:
    """A run alongside the measurement: the wave without noise, weaker and shifted."""
    return (0.8 * travelling_wave(seed).roll(1, 2)).numpy()


@pytest.fixture(scope="module")
def alongside() -> Forecasts:
    return Forecasts(cut(SEEDS), [simulation(seed) for seed in SEEDS])


def test_forecasts_belong_to_the_frames_after_the_history(alongside: Forecasts) -> None:
    whole = cut(SEEDS)
    for number in (0, 40, 200):
        trajectory, start = whole.origins[number].tolist()
        expected = simulation(trajectory)[start + 4 : start + 8]
        assert np.array_equal(alongside(whole[number].history[None])[0].numpy(), expected)


def test_splits_find_their_forecasts_although_they_number_trajectories_anew(
    alongside: Forecasts,
) -> None:
    part = cut([5, 2], stride=3)
    number = len(part) // 2 + 1  # in trajectory 1 of the part, which is 2 of the whole
    start = int(part.origins[number, 1])
    found = alongside(torch.stack([part[number].history, part[0].history]))
    assert np.array_equal(found[0].numpy(), simulation(2)[start + 4 : start + 8])
    assert np.array_equal(found[1].numpy(), simulation(5)[4:8])


def test_issued_forecasts_equal_the_run_alongside(alongside: Forecasts) -> None:
    starts = [range(0, 33, 3)] * len(SEEDS)
    issued = [
        np.stack([simulation(s)[start + 4 : start + 9] for start in starts[0]]) for s in SEEDS
    ]
    windows = cut(SEEDS, stride=3)
    found = Forecasts(windows, issued, starts=starts)
    history = torch.stack([windows[number].history for number in (0, 3, 15)])
    assert torch.equal(found(history), alongside(history))


@pytest.mark.parametrize("kind", ["alongside", "issued", "npz"])
def test_files_hold_the_same_forecasts(kind: str, tmp_path: Path, alongside: Forecasts) -> None:
    path = tmp_path / ("run.npz" if kind == "npz" else "run.nc")
    runs = np.stack([simulation(seed) for seed in SEEDS])
    if kind == "npz":
        np.savez(path, *runs)
    elif kind == "alongside":
        data = {n: (("trajectory", "time", "y", "x"), runs[..., i]) for i, n in enumerate("up")}
        xarray.Dataset(data).to_netcdf(path)
    else:
        starts = np.arange(33)[::-1]
        cuts = np.stack([runs[:, start + 4 : start + 8] for start in starts], 1)
        dims = ("y", "lead", "trajectory", "start", "x")
        data = {n: (dims, cuts[..., i].transpose(3, 2, 0, 1, 4)) for i, n in enumerate("up")}
        xarray.Dataset(data, coords={"start": starts}).to_netcdf(path)
    found = Forecasts.open(path, cut(SEEDS))
    history = torch.stack([cut(SEEDS)[number].history for number in (0, 50, 230)])
    assert torch.equal(found(history), alongside(history))


def test_forecasts_can_be_adapted_scored_saved_and_loaded(
    alongside: Forecasts, tmp_path: Path
) -> None:
    whole = cut(SEEDS, stride=3)
    train, fit, test = (whole.subset(part) for part in ([0, 1, 2], [3, 4], [5, 6]))
    model = r2no.adapt(alongside, train, fit, members=1, settings=SETTINGS)
    before = r2no.metrics.Accumulator(measured=(0,))
    for window in test:
        before.update(alongside(window.history[None]), window.target[None], None)
    assert model.evaluate(test)["rmse"] < before.compute()["rmse"]
    path = model.save(tmp_path / "model.r2no")
    again = r2no.load(path, source=Forecasts(cut(SEEDS), [simulation(s) for s in SEEDS]))
    history = test[0].history[None]
    assert torch.equal(again.predict(history), model.predict(history))
    with pytest.raises(ConfigError, match=r"does not bring its source.*`Forecasts`"):
        r2no.load(path)
    runs = [simulation(s) for s in SEEDS]
    runs[6] = runs[6] + 1  # not what the probe is of
    with pytest.raises(FingerprintError, match="not the operator"):
        r2no.load(path, source=Forecasts(cut(SEEDS), runs))
    with pytest.raises(ConfigError, match="source_input=True"):
        model.export(tmp_path / "model.pt2")
    program = torch.export.load(model.export(tmp_path / "repair.pt2", source_input=True)).module()
    torch.testing.assert_close(program(history, alongside(history)), model.predict(history))


def test_changed_forecasts_change_the_fingerprint() -> None:
    windows, runs = cut(range(2)), [simulation(seed) for seed in range(2)]
    probe = windows[0].history[None]
    before = operator_fingerprint(Forecasts(windows, runs), probe)
    runs[1] = runs[1].copy()
    runs[1][30, 2, 2, 0] += 1  # far from the probe
    assert operator_fingerprint(Forecasts(windows, runs), probe) != before


def test_new_histories_and_missing_forecasts_are_refused(alongside: Forecasts) -> None:
    with pytest.raises(DataError, match="No forecast is stored"):
        alongside(cut(range(30, 31))[0].history[None])
    with pytest.raises(DataError, match="trajectory 0 that starts at frame 23"):
        Forecasts(cut(range(1)), [simulation(0)[:30]])
    with pytest.raises(ShapeError, match="each of the 2 trajectories"):
        Forecasts(cut(range(2)), [simulation(0)])
    with pytest.raises(ShapeError, match=r"has shape \(40, 8, 11, 2\)"):
        Forecasts(cut(range(1)), [simulation(0)[:, :, :11]])


def test_equal_histories_with_different_forecasts_are_refused() -> None:
    still = torch.zeros(12, 8, 12, 2)
    windows = ArrayWindows([still], 4, 4, measured=(0,))
    same = Forecasts(windows, [np.zeros((12, 8, 12, 2))])
    assert float(same(windows[3].history[None]).abs().max()) == 0
    drift = np.arange(12.0)[:, None, None, None] * np.ones((12, 8, 12, 2))
    with pytest.raises(DataError, match="equal histories but different forecasts"):
        Forecasts(windows, [drift])


def test_renamed_variables_and_dimensions_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.nc"
    data = {name: (("t", "y", "x", "z"), np.zeros((40, 8, 12, 2))) for name in ("vx", "p")}
    xarray.Dataset(data).to_netcdf(path)
    with pytest.raises(DataError, match=r"no variable 'u'; it has vx, p\. Give `variables`"):
        Forecasts.open(path, cut(range(1)))
    with pytest.raises(DataError, match=r"\['t', 'y', 'x', 'z'\]"):
        Forecasts.open(path, cut(range(1)), variables=("vx", "p"))
