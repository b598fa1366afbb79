"""From measured files and an artifact to a forecast file, through the command."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import xarray as xr
from tests.support.waves import travelling_wave

import r2no as library
from r2no import backbones
from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairSettings
from r2no.data.normalise import fit_normalisers
from r2no.errors import ConfigError, UnknownNameError
from r2no.training import PhysicalOperator, TrainSettings, save_operator


def recording(seed: int) -> xr.Dataset:
    """Gappy fields under names that have to be explained."""
    wave = travelling_wave(seed).numpy()
    wave[np.random.default_rng(seed).random(wave.shape) < 0.1] = np.nan
    values = {name: (("n", "row", "lon"), wave[..., c]) for c, name in enumerate(("u", "v"))}
    return xr.Dataset(values, {"n": 0.1 * np.arange(40), "lon": np.arange(12.0)})


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory):
    """A folder with recordings and an artifact that brings its source."""
    folder = tmp_path_factory.mktemp("predict")
    for seed in range(5):
        recording(seed).to_netcdf(folder / f"run{seed}.nc")
    data = library.data.open(str(folder / "run*.nc"), dims={"time": "n"})
    parts = data.split(4, 4, stride=4, measured=("u",))
    shape = (4, 8, 12, 2)
    config = backbones.small_config("fno", shape_in=shape, shape_out=shape)
    torch.manual_seed(0)
    network = backbones.build("fno", config=config)
    source = PhysicalOperator(network, *fit_normalisers(parts.train)).eval()
    settings = AdaptSettings(
        members=1,
        repair=RepairSettings(width=4, depth=2, steps=2, train=TrainSettings(epochs=1)),
        ensemble=EnsembleSettings(radial=4, angular=4),
    )
    model = library.adapt(source, parts.train, parts.fit, settings=settings)
    save_operator(source, model.save(folder / "wave.r2no") / "source.safetensors", backbone="fno")
    return folder, model


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_command_writes_what_the_model_predicts(artifact, suffix, tmp_path, r2no) -> None:
    folder, model = artifact
    out = tmp_path / f"forecast{suffix}"
    files = [folder / "run3.nc", folder / "run4.nc"]
    shown = r2no("predict", folder / "wave.r2no", *files, "--out", out, "--dims", "time=n")
    assert "time = n, height = row, width = lon" in shown
    assert str(out) in shown
    options = {"engine": "zarr"} if suffix == ".zarr" else {}
    data = library.data.open(files, dims={"time": "n"})
    with xr.open_dataset(out, **options) as found:
        assert found["u"].dims == ("origin", "lead", "row", "lon")
        assert found["recording"].values[found["trajectory"].values[-1]] == str(files[1])
        np.testing.assert_allclose(found["valid_time"][-1], [4.0, 4.1, 4.2, 4.3])
        windows = data.windows(4, 4, stride=4, measured=("u",))
        size = model.settings.batch_size  # rounded as the command's batches are
        histories = [windows[number].history for number in range(min(size, len(windows)))]
        expected = model.predict(torch.stack(histories))[5, ..., 0]
        np.testing.assert_allclose(found["u"][5], expected, rtol=1e-4, atol=1e-5)


def test_command_forecasts_from_the_last_frames_only(artifact, tmp_path, r2no) -> None:
    folder, _ = artifact
    out = tmp_path / "forecast.nc"
    arguments = [folder / "wave.r2no", folder / "run*.nc", "--out", out, "--dims", "time=n"]
    r2no("predict", *arguments, "--origins", "last")
    with xr.open_dataset(out) as found:
        assert found["frame"].values.tolist() == [39] * 5


def test_command_names_what_is_wrong(artifact, tmp_path, r2no) -> None:
    folder, _ = artifact
    run = [folder / "wave.r2no", folder / "run0.nc", "--out", tmp_path / "a.nc"]
    with pytest.raises(ConfigError, match="`--origins` cannot be 'first'"):
        r2no("predict", *run, "--origins", "first")
    with pytest.raises(ConfigError, match="role=name"):
        r2no("predict", *run, "--dims", "time")
    with pytest.raises(UnknownNameError, match="Did you mean 'n'"):
        r2no("predict", *run, "--dims", "time=nn")
    command = [sys.executable, "-m", "r2no.cli.main", "predict", *map(str, run)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 1
    assert "DataError" in done.stderr
    assert "Traceback" not in done.stderr


def test_inspect_shows_how_a_data_file_is_understood(tmp_path, r2no) -> None:
    recording(0).rename(n="t").to_zarr(tmp_path / "a.zarr", consolidated=False)
    found = json.loads(r2no("inspect", tmp_path / "a.zarr", "--json"))
    assert found["dimensions"] == {"time": "t", "height": "row", "width": "lon"}
    assert (found["grid"], found["frames"]) == ([8, 12], [40])
    assert found["missing"]["u"] == pytest.approx(0.1, abs=0.02)
