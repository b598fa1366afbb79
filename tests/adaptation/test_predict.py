import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import xarray as xr
from tests.support.adapting import SETTINGS, Source
from tests.support.memory import Virtual, memory_for_no_more_than
from tests.support.recordings import HISTORY, HORIZON, START, recording
from tests.support.waves import travelling_wave
from torch import nn

import r2no
from r2no.adaptation import write_predictions
from r2no.data import collate
from r2no.errors import (
    ConfigError,
    DataError,
    EmptySplitError,
    GridMismatchError,
    NonFiniteError,
    UnknownNameError,
)


@pytest.fixture(scope="module")
def model():
    data = r2no.data.open([recording(seed) for seed in range(7)])
    found = data.split(HISTORY, HORIZON, stride=3, measured=("u",))
    return r2no.adapt(Source(), found.train, found.fit, settings=SETTINGS)


def opened(path):
    options = {"engine": "zarr"} if path.suffix == ".zarr" else {}
    with xr.open_dataset(path, **options) as data:
        return data.load()


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_file_holds_the_predictions_with_the_coordinates_of_the_data(model, suffix, tmp_path):
    data = [recording(20, dates=True), recording(21, 30, dates=True)]
    path = write_predictions(model, r2no.data.open(data), tmp_path / f"forecast{suffix}")
    found = opened(path)
    assert found["u"].dims == ("origin", "lead", "lat", "lon")
    for name in ("lat", "lon"):
        np.testing.assert_array_equal(found[name], data[0][name])
        assert found[name].attrs["units"] == data[0][name].attrs["units"]
    assert found["u"].attrs == {"units": "m/s", "long_name": "speed"}
    assert found["p"].attrs["units"] == "Pa"
    np.testing.assert_allclose(found["lead"], [0.25, 0.5, 0.75, 1.0])
    assert found["lead"].attrs["units"] == "s"
    # every 4 frames while a history is there, and from the last frame of each trajectory
    last = [*range(3, 40, 4), *range(3, 30, 4), 29]
    assert found["frame"].values.tolist() == last
    numbers = [0] * 10 + [1] * 8
    for row, (number, frame) in enumerate(zip(numbers, last, strict=True)):
        known = data[number].isel(time=slice(frame - 3, frame + 1))
        assert found["forecast_reference_time"].values[row] == known["time"].values[-1]
        history = torch.from_numpy(np.stack([known["u"], known["p"]], -1))[None]
        expected = model.predict(history)[0]
        np.testing.assert_allclose(found["u"][row], expected[..., 0], rtol=1e-5, atol=1e-5)
    beyond = found["valid_time"].values[9]
    np.testing.assert_array_equal(
        beyond, START + np.array([10000, 10250, 10500, 10750]).astype("m8[ms]")
    )
    assert found["trajectory"].values.tolist() == numbers
    assert found["recording"].values.tolist() == ["data set 0", "data set 1"]
    assert found.attrs["r2no_source"] == model.provenance["source"]
    assert os.listdir(tmp_path) == [path.name]


def test_forecast_of_the_past_can_be_compared_with_what_was_measured(model, tmp_path):
    """The file's own coordinates find the target frames in the data."""
    data = recording(20)
    measurements = r2no.data.open(data)
    found = opened(write_predictions(model, measurements, tmp_path / "a.nc")).isel(
        origin=slice(0, 9)
    )
    truth = data["u"].sel(time=found["valid_time"])
    error = float(np.sqrt(((found["u"] - truth) ** 2).mean()))
    windows = measurements.windows(HISTORY, HORIZON, stride=HORIZON, measured=("u",))
    assert error == pytest.approx(model.evaluate(windows)["rmse"], rel=1e-4)


def test_last_origin_needs_the_history_only(model, tmp_path):
    data = recording(20)
    whole = opened(write_predictions(model, r2no.data.open(data), tmp_path / "a.nc"))
    short = r2no.data.open(data.isel(time=slice(-HISTORY, None)))
    for number, (source, options) in enumerate(
        [(r2no.data.open(data), {"origins": "last"}), (short, {})]
    ):
        last = opened(write_predictions(model, source, tmp_path / f"{number}.nc", **options))
        assert last.sizes["origin"] == 1
        assert last["forecast_reference_time"].item() == data["time"].values[-1]
        np.testing.assert_allclose(last["u"][0], whole["u"][-1], rtol=1e-5, atol=1e-6)


def test_numbers_without_coordinates_become_frames(model, tmp_path):
    array = travelling_wave(20).numpy()
    data = r2no.data.open(array, variables=("u", "p"))
    found = opened(write_predictions(model, data, tmp_path / "a.nc", origins="last"))
    assert found["valid_time"].values.tolist() == [[40, 41, 42, 43]]
    assert found["lead"].attrs["units"] == "frames"
    assert found["u"].dims == ("origin", "lead", "y", "x")


class Stops(nn.Module):
    """A source that is interrupted after some calls."""

    def __init__(self, source: nn.Module, calls: int) -> None:
        super().__init__()
        self.source, self.calls = source, calls

    def forward(self, history):
        if self.calls == 0:
            raise KeyboardInterrupt
        self.calls -= 1
        return self.source(history)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_stopped_run_goes_on_and_equals_an_undisturbed_one(model, suffix, tmp_path, monkeypatch):
    from dataclasses import replace

    monkeypatch.setattr("r2no.adaptation.predict._SAVE_EVERY", 1)
    data = r2no.data.open([recording(20), recording(21)])
    options = {"stride": 1, "batch_size": 7}
    batches = -(-2 * 37 // 7)
    plain = write_predictions(model, data, tmp_path / f"plain{suffix}", **options)
    path = tmp_path / f"stopped{suffix}"
    with pytest.raises(KeyboardInterrupt):
        write_predictions(replace(model, source=Stops(model.source, 6)), data, path, **options)
    assert not path.exists()
    assert path.with_name(path.name + ".part").exists()
    rest = Stops(model.source, 1000)
    again = write_predictions(replace(model, source=rest), data, path, **options)
    assert 1000 - rest.calls == batches - 6
    xr.testing.assert_identical(opened(again), opened(plain))
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, plain.name])
    finished = Stops(model.source, 0)  # nothing is left to do
    write_predictions(replace(model, source=finished), data, path, **options)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_killed_process_leaves_a_part_that_goes_on(model, suffix, tmp_path):
    """SIGKILL at some moment in the middle of writing, in a real process."""
    recording(20, 60).to_netcdf(tmp_path / "data.nc")
    model.save(tmp_path / "a.r2no")
    script = textwrap.dedent(
        f"""
        import signal, sys
        import torch
        torch.set_num_threads(1)
        import r2no, r2no.adaptation.predict as predict
        from tests.support.adapting import Source
        predict._SAVE_EVERY = 1
        model = r2no.load({str(tmp_path / "a.r2no")!r}, Source())
        advance = model.predict
        batches = iter(range(12))
        def until_killed(history):
            print("batch", flush=True)
            if next(batches) == 11:
                signal.pause()
            return advance(history)
        if sys.argv[1] == "killed":
            model.predict = until_killed
        data = r2no.data.open({str(tmp_path / "data.nc")!r})
        path = {str(tmp_path / "forecast")!r} + {suffix!r}
        predict.write_predictions(model, data, path, stride=1, batch_size=3)
        """
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen([*command, "killed"], stdout=subprocess.PIPE, text=True) as process:
        for _ in range(5):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    path = tmp_path / f"forecast{suffix}"
    assert not path.exists()
    assert r2no.storage.read_json(tmp_path / f"forecast{suffix}.part.json")["rows"] >= 9
    subprocess.run([*command, "whole"], check=True)
    data = r2no.data.open(tmp_path / "data.nc")
    plain = write_predictions(model, data, tmp_path / f"plain{suffix}", stride=1, batch_size=3)
    xr.testing.assert_identical(opened(path), opened(plain))


def test_part_of_another_model_or_data_is_begun_anew(model, tmp_path, monkeypatch):
    from dataclasses import replace

    monkeypatch.setattr("r2no.adaptation.predict._SAVE_EVERY", 1)
    path, options = tmp_path / "a.nc", {"stride": 1, "batch_size": 7}
    stops = replace(model, source=Stops(model.source, 2))
    with pytest.raises(KeyboardInterrupt):
        write_predictions(stops, r2no.data.open(recording(20)), path, **options)
    other = r2no.data.open(recording(22))
    write_predictions(model, other, path, **options)
    expected = write_predictions(model, other, tmp_path / "b.nc", **options)
    xr.testing.assert_identical(opened(path), opened(expected))
    with pytest.raises(ConfigError, match="overwrite"):
        write_predictions(model, r2no.data.open(recording(20)), path, **options)
    write_predictions(model, r2no.data.open(recording(20)), path, overwrite=True, **options)
    assert not opened(path).equals(opened(expected))


def test_values_under_the_mask_change_no_bit_of_fit_and_forecast(tmp_path):
    def gappy(seed, hidden):
        data = recording(seed, 40)
        valid = np.random.default_rng(seed).random(data["u"].shape) > 0.2
        data["valid"] = (data["u"].dims, valid)
        data["u"] = data["u"].where(data["valid"], np.float32(hidden))
        return data

    found = []
    for hidden in (0.0, 1e6, np.nan):
        data = r2no.data.open([gappy(seed, hidden) for seed in range(3)], mask="valid")
        parts = data.split(HISTORY, HORIZON, stride=3, measured=("u",))
        model = r2no.adapt(Source(), parts.train, parts.fit, members=1, settings=SETTINGS)
        path = write_predictions(model, data, tmp_path / f"{hidden}.nc")
        forecast = opened(path)
        del forecast.attrs["r2no_key"]  # tells files apart
        found.append((model.ensemble.weights, forecast))
    for weights, forecast in found[1:]:
        assert torch.equal(weights, found[0][0])
        xr.testing.assert_identical(forecast, found[0][1])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda d: d.rename(u="U"), UnknownNameError, "Did you mean 'U'"),
        (lambda d: d.isel(lon=slice(0, 10)), GridMismatchError, "model's grid"),
        (lambda d: d.assign_coords(time=d["time"] * 3), DataError, "time step"),
        (lambda d: d.assign_coords(lat=d["lat"] * 3), GridMismatchError, "spacing"),
        (lambda d: d.isel(time=slice(0, 3)), EmptySplitError, "gives 3 frames"),
        (lambda d: d.assign(u=d["u"].assign_attrs(units="knots")), DataError, "'knots'"),
    ],
)
def test_data_that_do_not_fit_the_model_are_named(model, change, error, message, tmp_path):
    with pytest.raises(error, match=message):
        write_predictions(model, r2no.data.open(change(recording(20))), tmp_path / "a.nc")
    assert not os.listdir(tmp_path)


def test_bad_paths_and_broken_models_are_named(model, tmp_path):
    from dataclasses import replace

    data = r2no.data.open(recording(20))
    with pytest.raises(ConfigError, match=r"\.nc or \.zarr"):
        write_predictions(model, data, tmp_path / "a.csv")
    broken = replace(model, source=lambda history: model.source(history) * float("nan"))
    with pytest.raises(NonFiniteError, match="origin 0"):
        write_predictions(broken, data, tmp_path / "a.nc")
    assert not (tmp_path / "a.nc").exists()


def test_forecast_streams_from_data_larger_than_memory(model, tmp_path, monkeypatch):
    """192 MB that exist only where they are sliced, and room for a third of them."""
    monkeypatch.setattr("r2no.data.lazy._PIECE_BYTES", 2**20)
    monkeypatch.setattr("r2no.data.arrays._PIECE", 2**18)
    frames = 192 * 2**20 // (8 * 12 * 2 * 4)
    virtual = Virtual((frames, 8, 12, 2))
    data = r2no.data.open(virtual, variables=("u", "p"))
    assert data.nbytes == 192 * 2**20
    write_predictions(model, r2no.data.open(recording(20)), tmp_path / "first.nc")  # imports
    with memory_for_no_more_than(64):
        path = write_predictions(model, data, tmp_path / "a.nc", stride=frames // 50)
    found = opened(path)
    assert found["frame"].values[-1] == frames - 1
    history = virtual[slice(frames - HISTORY, frames), slice(0, 8), slice(0, 12), slice(0, 2)]
    history = collate([r2no.data.Window(torch.from_numpy(history), torch.zeros(1, 1))]).history
    np.testing.assert_allclose(
        found["u"][-1], model.predict(history)[0, ..., 0], rtol=1e-4, atol=1e-5
    )
    assert virtual.largest <= 2**20
