"""Stored forecasts as a source: found by history, whatever the order of windows."""

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray

import r2no
from r2no.data import ArrayWindows
from r2no.data.forecast_layout import forecast_layout
from r2no.errors import (
    ConfigError,
    DataError,
    FingerprintError,
    GridMismatchError,
    ShapeError,
    UnknownNameError,
)
from r2no.operators import Forecasts
from r2no.training import operator_fingerprint
from tests.support.adapting import SETTINGS
from tests.support.waves import travelling_wave

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


def simulated_set(seed: int, **coords: object) -> xarray.Dataset:
    values = {n: (("time", "y", "x"), simulation(seed)[..., c]) for c, n in enumerate("up")}
    return xarray.Dataset(values, coords)


def measured_set(seed: int) -> xarray.Dataset:
    wave = travelling_wave(seed).numpy()
    values = {n: (("time", "y", "x"), wave[..., c]) for c, n in enumerate("up")}
    return xarray.Dataset(values, {"y": 0.5 * np.arange(8), "x": 0.25 * np.arange(12)})


@pytest.mark.parametrize("kind", ["pattern", "folder", "list", "hdf5", "npz by name"])
def test_forecasts_come_one_file_per_recording(
    kind: str, tmp_path: Path, alongside: Forecasts
) -> None:
    paths = []
    for seed in SEEDS:
        paths.append(tmp_path / f"run{seed}.nc")
        if kind == "hdf5":
            paths[-1] = tmp_path / f"run{seed}.h5"
        if kind == "npz by name":
            paths[-1] = tmp_path / f"run{seed}.npz"
            np.savez(paths[-1], **{n: a.values for n, a in simulated_set(seed).items()})
        else:
            simulated_set(seed).to_netcdf(paths[-1])
    source = {"pattern": str(tmp_path / "run*"), "folder": tmp_path}.get(kind, paths)
    found = Forecasts.open(source, cut(SEEDS))
    history = torch.stack([cut(SEEDS)[number].history for number in (0, 50, 230)])
    assert torch.equal(found(history), alongside(history))


def test_file_of_predictions_is_understood(tmp_path: Path) -> None:
    """The order (origin, lead) of `write_predictions`, with its recordings and last frames."""
    data = r2no.data.open([measured_set(seed) for seed in range(3)])
    rows = [(n, start + 3) for n in range(3) for start in range(0, 33, 2)]
    layout = forecast_layout(data, rows, 4)
    for channel, name in enumerate("up"):
        cuts = [simulation(n)[last + 1 : last + 5, ..., channel] for n, last in rows]
        layout[name] = (("origin", "lead", "y", "x"), np.stack(cuts))
    layout.transpose("lead", "x", "origin", "y", "recording").to_netcdf(tmp_path / "forecast.nc")
    windows = data.windows(4, 4, stride=2)
    found = Forecasts.open(tmp_path / "forecast.nc", windows)
    for number in (0, 20, 45):
        trajectory, start = windows.origins[number].tolist()
        expected = simulation(trajectory)[start + 4 : start + 8]
        assert np.array_equal(found(windows[number].history[None])[0].numpy(), expected)
    bare = layout.drop_vars(["frame", "trajectory"])
    bare.to_netcdf(tmp_path / "bare.nc")
    with pytest.raises(DataError, match=r"which window each place along 'origin' belongs to"):
        Forecasts.open(tmp_path / "bare.nc", windows)


def test_forecasts_the_other_way_round_or_on_another_grid_are_refused(tmp_path: Path) -> None:
    windows = r2no.data.open(measured_set(0)).windows(4, 4)
    grid = {"y": 0.5 * np.arange(8), "x": 0.25 * np.arange(12)}
    path = tmp_path / "run.nc"
    for coords, message in (
        ({**grid, "y": grid["y"][::-1]}, "'y' of the forecasts .* falls, but it grows in the data"),
        (
            {**grid, "x": 2 * grid["x"]},
            "Along 'x', the forecasts .* spacing of 0.5, but the data 0.25",
        ),
    ):
        simulated_set(0, **coords).to_netcdf(path)
        with pytest.raises(GridMismatchError, match=message):
            Forecasts.open(path, windows)
    simulated_set(0).rename(x="y", y="x").to_netcdf(path)
    with pytest.raises(GridMismatchError, match=r"grid of the data, \(8, 12\)"):
        Forecasts.open(path, windows)
    simulated_set(0, **grid).to_netcdf(path)
    assert Forecasts.open(path, windows)(windows[0].history[None]).shape == (1, 4, 8, 12, 2)


def test_dimensions_of_forecasts_can_be_named(tmp_path: Path, alongside: Forecasts) -> None:
    path = tmp_path / "run.nc"
    simulated_set(0).rename(time="n", y="j", x="i").to_netcdf(path)
    windows = cut([0])
    with pytest.raises(DataError, match=r"'n' of the forecasts in .* no known kind.*`?dims="):
        Forecasts.open(path, windows)
    dims = {"time": "n", "height": "j", "width": "i"}
    for options in ({"dims": dims}, {"like": {**dims, "trajectory": "case"}}):
        found = Forecasts.open(path, windows, **options)
        assert torch.equal(found(windows[0].history[None]), alongside(cut([0])[0].history[None]))
    with pytest.raises(UnknownNameError, match="Did you mean 'n'"):
        Forecasts.open(path, windows, dims={"time": "nn"})
