"""PIV files through the commands, with options that the errors name."""

import json
import signal
import sys

import numpy as np
import pytest
import torch
import xarray as xr
from tests.support import piv

import r2no as library
from r2no import __version__, backbones
from r2no.adaptation import AdaptSettings
from r2no.cli import main
from r2no.data.normalise import fit_normalisers
from r2no.errors import ConfigError, DataError, FileMissingError, GridMismatchError
from r2no.training import PhysicalOperator

SETTINGS = AdaptSettings(
    members=1,
    repair={"width": 4, "depth": 2, "steps": 2, "train": {"epochs": 1}},
    ensemble={"radial": 4, "angular": 4},
)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory):
    """A model adapted to recordings of DaVis, with units and coordinates."""
    folder = tmp_path_factory.mktemp("davis")
    for number, frames in enumerate((20, 24, 31, 18, 22, 27, 40, 19)):
        piv.davis(number, frames).to_netcdf(folder / f"run{number}.nc")
    splits = library.data.open(folder, variables=("Vx", "Vy")).split(3, 3, stride=3)
    shape = (3, *piv.SHAPE[1:], 2)
    torch.manual_seed(0)
    network = backbones.build(
        "fno", config=backbones.small_config("fno", shape_in=shape, shape_out=shape)
    )
    source = PhysicalOperator(network, *fit_normalisers(splits.train)).eval()
    model = library.adapt(source, splits.train, splits.fit, settings=SETTINGS)
    return model.save(folder / "davis.r2no")


def bare(**changes: np.ndarray) -> dict[str, np.ndarray]:
    found = piv.flow(3) / 1000
    return {"Vx": found[..., 0], "Vy": found[..., 1], **changes}


def test_inspect_takes_what_open_takes(tmp_path, r2no) -> None:
    path = piv.write_mat5(
        tmp_path / "a.mat", {n: piv.arrays()[n] for n in ("u", "v", "typevector")}
    )
    with pytest.raises(DataError, match="`axes`"):
        r2no("inspect", path)
    found = json.loads(
        r2no(
            *("inspect", path, "--axes", "time,y,x", "--mask", "typevector=1", "--units", "mm/s"),
            *("--spacing", "0.8,0.5", "--time-step", "0.02", "--json"),
        )
    )
    assert found["units"] == ["mm/s", "mm/s"]
    assert (found["spacing"], found["time_step"]) == ([0.8, 0.5], 0.02)
    assert found["missing"]["u"] == pytest.approx((piv.typevector() != 1).mean())
    with pytest.raises(ConfigError, match="--mask typevector=1"):
        r2no("inspect", path, "--axes", "time,y,x", "--mask", "typevector")
    with pytest.raises(ConfigError, match="`--spacing` takes numbers"):
        r2no("inspect", path, "--axes", "time,y,x", "--spacing", "wide")


def test_inspect_takes_folders_patterns_and_several_files(tmp_path, r2no) -> None:
    paths = [tmp_path / f"run{number}.nc" for number in range(3)]
    for number, path in enumerate(paths):
        piv.davis(number).to_netcdf(path)
    for source in ([tmp_path], [tmp_path / "*.nc"], paths):
        found = json.loads(r2no("inspect", *source, "--json"))
        assert (found["trajectories"], found["channels"]) == (3, ["Vx", "Vy"])
        assert set(found["left_out"]) == {"corr", "isValid"}


def test_predict_takes_steps_of_the_artifact_where_data_have_none(artifact, tmp_path, r2no) -> None:
    np.savez(tmp_path / "new.npz", **bare())
    out = tmp_path / "forecast.nc"
    shown = r2no("predict", artifact, tmp_path / "new.npz", "--units", "m/s", "--out", out)
    assert "time step   0.02 s" in shown
    with xr.open_dataset(out) as found:
        np.testing.assert_allclose(found["lead"], [0.02, 0.04, 0.06])
        assert found["lead"].attrs["units"] == "s"
        np.testing.assert_allclose(np.diff(found["y"]), -piv.SPACING[0])
        assert found["Vx"].attrs["units"] == "m/s"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda d: d.isel(y=slice(None, None, -1)), GridMismatchError, "'y' of `data` grows"),
        (lambda d: d.assign_coords(x=2 * d["x"]), GridMismatchError, "Along 'x', .* spacing of 1,"),
        (lambda d: d["time"].attrs.update(units="ms"), DataError, "time of `data` is in 'ms'"),
        (lambda d: d["x"].attrs.update(units="m"), DataError, "'x' of `data` is in 'm'"),
    ],
)
def test_predict_compares_the_axes(artifact, tmp_path, r2no, change, error, message) -> None:
    data = piv.davis(9)
    data = change(data) or data
    data.to_netcdf(tmp_path / "new.nc")
    run = ("predict", artifact, tmp_path / "new.nc", "--out", tmp_path / "forecast.nc")
    with pytest.raises(error, match=message):
        r2no(*run)


def test_predict_takes_data_like_those_of_the_model(artifact, tmp_path, r2no) -> None:
    piv.davis(9).to_netcdf(tmp_path / "new.nc")
    out = tmp_path / "forecast.nc"
    r2no("predict", artifact, tmp_path / "new.nc", "--mask", "isValid", "--out", out)
    assert out.exists()


def test_what_is_missing_is_called_missing(tmp_path, r2no) -> None:
    for command in ("evaluate", "report"):
        with pytest.raises(FileMissingError, match=r"There is no .*nosuch\.r2no"):
            r2no(command, tmp_path / "nosuch.r2no")
    with pytest.raises(FileMissingError, match="There is no artifact"):
        r2no("predict", tmp_path / "nosuch.r2no", "data.nc")


def test_version_is_told(r2no) -> None:
    assert r2no("--version").strip() == f"r2no {__version__}"


@pytest.mark.parametrize(("command", "told"), [("adapt", True), ("inspect", False)])
def test_interrupted_run_says_how_to_go_on(command, told, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["r2no", command])

    def stopped() -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(main, "app", stopped)
    with pytest.raises(KeyboardInterrupt):
        main.main()
    assert ("Run the same command again to go on" in capsys.readouterr().err) == told
