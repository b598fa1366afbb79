"""One YAML from a NetCDF file and an operator of one's own to an artifact; and its doctor."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray
import yaml
from neuralop.models import FNO
from tests.support import piv, pretend
from tests.support.adapting import exported, own_operator
from tests.support.networks import FrameMix
from tests.support.waves import travelling_wave
from typer.testing import CliRunner

import r2no as library
from r2no import storage
from r2no.cli.app import MovedError
from r2no.cli.main import app
from r2no.errors import ConfigError, DeviceError, FingerprintError, StorageError
from r2no.locks import sole_writer
from r2no.runs import Finding, doctor, examine, open_task, read_own_config
from r2no.training import save_operator

REPAIR = {"width": 4, "depth": 2, "steps": 2, "train": {"epochs": 2, "batch_size": 6, "lr": 5e-3}}
ADAPT = {"members": 1, "repair": REPAIR, "ensemble": {"radial": 4, "angular": 4}}


def rotation() -> torch.Tensor:
    """Good weights of FrameMix: persistence with a little decay, for 4 frames of u and v."""
    matrix = torch.zeros(4, 2, 4, 2)
    matrix[:, 0, 3, 0] = matrix[:, 1, 3, 1] = 0.95
    return matrix.reshape(8, 8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A NetCDF file of nine trajectories, a checkpoint, and the working folder."""
    waves = np.stack([travelling_wave(seed).numpy() for seed in range(9)])
    waves[..., 1] = 2 + 0.5 * np.roll(waves[..., 0], 2, axis=-1)
    dims = ("trajectory", "time", "y", "x")
    data = {name: (dims, waves[..., i], {"units": "m/s"}) for i, name in enumerate("uv")}
    xarray.Dataset(data).to_netcdf(tmp_path / "piv.nc")
    torch.save({"weight": rotation()}, tmp_path / "weights.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(folder: Path, *, data: Any = None, source: Any = None, **rest: Any) -> Path:
    content = {
        "data": {"path": "piv.nc", "history": 4, "horizon": 4, "stride": 3, **(data or {})},
        "source": {
            "python": "tests.support.networks:FrameMix",
            "checkpoint": "weights.pt",
            "layout": "B (T C) H W",
            **(source or {}),
        },
        "adapt": ADAPT,
        "out": "run",
        **rest,
    }
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(item) for item in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def findings(path: Path) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(read_own_config(path))}


def failure(path: Path) -> Finding:
    found = list(examine(read_own_config(path)))
    assert [finding.level for finding in found].count("fail") == 1
    return next(finding for finding in found if finding.level == "fail")


def test_config_leads_to_an_artifact_with_scores_and_a_forecast(folder: Path) -> None:
    run("doctor", config(folder))
    said = run("adapt", config(folder))
    assert "r2no predict run/model.r2no" in said
    summary = storage.read_json(folder / "run" / "run.json")
    scores = {name: row["rmse"] for name, row in summary["scores"].items()}
    assert scores["r2no"] < scores["source"]
    assert set(scores) == {"persistence", "source", "r2no"}
    model = library.load("run/model.r2no", trust_source=True)
    assert model.verdict is not None
    assert model.verdict.decision == "deploy"
    assert model.verdict.gain > 0.1
    assert summary["verdict"] == str(model.verdict)
    assert str(model.verdict) in " ".join(said.split())
    assert "What helped?" in said
    assert {part["group"] for part in summary["contributions"]} >= {"repair", "recall", "mean"}
    assert model.fields.channels == ("u", "v")
    assert model.fields.units == ("m/s", "m/s")
    with pytest.raises(ConfigError, match="trust_source"):
        library.load("run/model.r2no")
    run("predict", "run/model.r2no", "piv.nc", "--out", "forecast.nc", "--trust-source")
    with xarray.open_dataset("forecast.nc") as forecast:
        assert set(forecast.data_vars) >= {"u", "v"}
    run("evaluate", "run/model.r2no", "--trust-source", "--output", "scores.json")
    found = storage.read_json(folder / "scores.json")
    assert found["same_data"]
    assert found["scores"]["r2no"]["rmse"] == pytest.approx(scores["r2no"])
    with pytest.raises(MovedError, match=r"bench evaluate run/model\.r2no --system cylinder"):
        run("evaluate", "run/model.r2no", "--system", "cylinder")
    with pytest.raises(ConfigError, match="`split` cannot be 'val'"):
        run("evaluate", "run/model.r2no", "--split", "val")


@pytest.mark.parametrize("kind", ["exported", "forecasts", "backbone"])
def test_other_kinds_of_sources_are_adapted_too(folder: Path, kind: str) -> None:
    network = FrameMix()
    network.weight.data = rotation()
    none = {"python": None, "checkpoint": None, "layout": None}
    if kind == "exported":
        exported(Path("net.pt2"), network)
        source = {**none, "exported": "net.pt2", "layout": "B (T C) H W"}
        assert "trust: true" in failure(config(folder, source=source)).message
        source["trust"] = True
    elif kind == "forecasts":
        with xarray.open_dataset("piv.nc") as measured:
            (0.8 * measured).to_netcdf("simulated.nc")
        source = {**none, "forecasts": "simulated.nc"}
    else:
        save_operator(own_operator(), "fno.safetensors", backbone="fno")
        source = {**none, "backbone": "fno", "checkpoint": "fno.safetensors"}
    path = config(folder, source=source)
    assert not [f for f in examine(read_own_config(path)) if f.level == "fail"]
    run("adapt", path, "--out", "elsewhere")
    scores = storage.read_json(folder / "elsewhere" / "run.json")["scores"]
    assert scores["r2no"]["rmse"] < scores["source"]["rmse"]


def test_gappy_file_and_an_fno_of_neuraloperator_need_one_file_and_one_command(
    folder: Path,
) -> None:
    with xarray.open_dataset("piv.nc") as data:
        gaps = np.random.default_rng(0).random(data["u"].shape) < 0.2
        data.where(~gaps).to_netcdf("gappy.nc")
    torch.manual_seed(0)
    arguments = {"n_modes": [4, 4], "in_channels": 8, "out_channels": 8, "hidden_channels": 6}
    network = FNO(**arguments, n_layers=2)
    network.save_checkpoint(folder / "theirs", "fno")
    source = {
        "python": "neuralop.models:FNO",
        "checkpoint": "theirs/fno_state_dict.pt",
        "kwargs": {**arguments, "n_layers": 2},
        "normaliser": {"history": {"shift": [0, 2], "scale": [0.7, 0.4]}},
    }
    path = config(folder, data={"path": "gappy.nc"}, source=source)
    run("doctor", path)
    run("adapt", path)
    scores = storage.read_json(folder / "run" / "run.json")["scores"]
    assert scores["r2no"]["rmse"] < scores["source"]["rmse"]
    run("predict", "run/model.r2no", "gappy.nc", "--out", "forecast.nc", "--trust-source")
    with xarray.open_dataset("forecast.nc") as forecast, xarray.open_dataset("gappy.nc") as data:
        assert bool(np.isfinite(forecast["u"]).all())
        for axis in ("x", "y"):
            np.testing.assert_array_equal(forecast[axis], data[axis])
    model = library.load("run/model.r2no", trust_source=True)
    assert model.verdict is not None
    said = {"deploy": "Deploy the adapted model", "keep the source": "Keep the source"}
    assert model.verdict.decision in said
    (other,) = set(said) - {model.verdict.decision}
    run("report", "run/model.r2no", "--out", "again.html")
    for page in (folder / "run" / "report.html", Path("again.html")):
        text = page.read_text()
        assert said[model.verdict.decision] in text
        assert said[other] not in text
        for name in ("source", "r2no"):
            assert f"{scores[name]['rmse']:.4g}" in text


def test_sound_config_has_no_complaints(folder: Path) -> None:
    found = findings(config(folder))
    assert {f.level for name, f in found.items() if name != "source skill"} == {"ok"}
    assert set(found) == {
        "data", "splits", "leakage", "source", "repeatable", "batches", "units", "source skill",
        "layout", "one step", "time", "disk", "memory", "out", "device",
    }  # fmt: skip
    assert not (folder / "run").exists()
    assert "Answers (8, 4, 8, 12, 2)" in found["source"].message


def test_doctor_trains_no_step_where_the_run_trains_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("r2no.runs.rehearsal.Step", None)
    monkeypatch.setattr("r2no.runs.rehearsal.rollout_seconds", None)
    found = findings(config(folder, adapt={"members": 0}))
    assert {f.level for name, f in found.items() if name != "source skill"} == {"ok"}
    assert "one step" not in found
    assert "nothing is trained; 44 forecasts" in found["time"].message
    assert "epochs" not in found["time"].message
    run("adapt", folder / "own.yaml")


def test_factory_may_lie_in_the_working_folder(folder: Path) -> None:
    code = "from tests.support.networks import FrameMix as Network"
    (folder / "my_networks.py").write_text(code)
    path = config(folder, source={"python": "my_networks:Network"})
    start = "from r2no.cli.main import main; main()"
    places = [str(place) for place in sys.path if place]
    command = [sys.executable, "-P", "-c", start, "doctor", path]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_doctor_ends_with_code_1_on_a_failure(folder: Path) -> None:
    path = config(folder, data={"variables": ["U", "v"]})
    result = CliRunner().invoke(app, ["doctor", str(path)])
    assert result.exit_code == 1
    assert "1 to mend" in result.output


def test_wrong_layout_is_found_with_the_one_that_fits(folder: Path) -> None:
    found = failure(config(folder, source={"layout": "B C T H W"}))
    assert found.check == "source"
    assert found.message.startswith("LayoutError")
    assert "Declare layout='B (T C) H W'" in found.message


def test_layout_that_fits_but_was_not_trained_with_is_found(folder: Path) -> None:
    found = findings(config(folder, source={"layout": "B (C T) H W"}))["layout"]
    assert found.level == "warn"
    assert "'B (T C) H W' fits as well and gives RMSE" in found.message


def test_layouts_are_judged_over_the_whole_fit_split_however_close(folder: Path) -> None:
    """A right layout that is better by little, and not on the windows looked at first."""
    torch.manual_seed(0)
    torch.save({"weight": 0.55 * rotation() + 0.2 * torch.randn(8, 8)}, "weights.pt")
    told = {}
    for layout in ("B (T C) H W", "B (C T) H W"):
        told[layout] = findings(config(folder, source={"layout": layout}))["layout"]
    levels = {layout: found.level for layout, found in told.items()}
    assert sorted(levels.values()) == ["ok", "warn"]  # whichever is better is recommended
    better = next(layout for layout, level in levels.items() if level == "ok")
    worse = next(layout for layout, level in levels.items() if level == "warn")
    assert told[worse].message.startswith(f"Layout {better!r} fits as well")
    assert "of 44 windows of the fit split" in told[worse].message


def test_splits_that_cost_accuracy_are_pointed_out(folder: Path) -> None:
    shares = {"split": {"train": 0.6, "fit": 0.2, "test": 0.2}}
    found = findings(config(folder, data=shares))["splits"]
    assert found.level == "warn"
    assert "part of the repair is given up" in found.message
    assert "fit: 4" in found.message
    good = findings(config(folder))["splits"]
    assert good.level == "ok"
    assert "train 4 recordings (44 windows), fit 4 recordings (44 windows)" in good.message


def test_output_folder_is_looked_at(folder: Path) -> None:
    (folder / "file").write_text("")
    found = failure(config(folder, out="file/run"))
    assert (found.check, found.message.startswith("StorageError")) == ("out", True)
    with pytest.raises(StorageError, match="is a file, not a folder"):
        run("adapt", config(folder, out="file/run"))
    run("adapt", config(folder))
    changed = {**ADAPT, "repair": {**REPAIR, "width": 6}}
    found = failure(config(folder, adapt=changed))
    assert found.check == "out"
    assert "`adapt.repair.width` was 4 and is 6" in found.message
    with pytest.raises(FingerprintError, match=r"Choose another `out`"):
        run("adapt", config(folder, adapt=changed))
    cells = {**ADAPT, "ensemble": {"radial": 3, "angular": 4}}
    found = findings(config(folder, adapt=cells))["out"]
    assert found.level == "warn"
    assert "adapt.ensemble.radial" in found.message


def test_output_folder_in_use_is_named_with_its_process(folder: Path) -> None:
    with sole_writer(folder / "run"):
        holder = "import sys; from r2no.cli.main import main; main()"
        command = [sys.executable, "-c", holder, "doctor", str(config(folder)), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    told = {row["check"]: row for row in json.loads(done.stdout)}
    assert told["out"]["level"] == "warn"
    assert f"process {os.getpid()}" in told["out"]["message"]


def test_recordings_can_be_chosen_in_the_file(folder: Path) -> None:
    path = config(folder, data={"trajectories": [8, 2, 5]})
    measured = open_task(read_own_config(path)).measurements
    assert [r.name for r in measured.recordings] == [
        f"piv.nc[trajectory={number}]" for number in (8, 2, 5)
    ]


def test_units_steps_and_flags_are_keys_of_the_file(folder: Path) -> None:
    np.savez(folder / "piv.npz", **piv.arrays(frames=60))
    mask = {"variable": "typevector", "valid": [1]}
    keys = {"path": "piv.npz", "mask": mask, "units": {"u": "mm/s"}, "time_step": 0.02}
    measured = open_task(read_own_config(config(folder, data=keys))).measurements
    assert measured.units == ("mm/s", "")
    assert measured.time_step == 0.02
    assert measured.missing[0] > 0.05
    wrong = config(folder, data={**keys, "mask": {"variable": "typevector", "vlid": [1]}})
    with pytest.raises(ConfigError, match="Did you mean 'valid'"):
        read_own_config(wrong)


def test_stored_forecasts_come_one_file_per_recording_under_the_names_of_the_data(
    folder: Path,
) -> None:
    """Recordings of different lengths, dimensions that need explaining, starts of the stride."""
    (folder / "measured").mkdir()
    (folder / "simulated").mkdir()
    for number in range(9):
        waves = travelling_wave(number, frames=28 + 3 * number).numpy()
        waves[..., 1] = 2 + 0.5 * waves[..., 0]
        data = {n: (("n", "row", "i"), waves[..., c]) for c, n in enumerate("uv")}
        xarray.Dataset(data).to_netcdf(folder / "measured" / f"run{number}.nc")
        starts = np.arange(0, len(waves) - 7, 3)
        cuts = np.stack([0.8 * waves[s + 4 : s + 8] for s in starts])
        issued = {n: (("start", "lead", "row", "i"), cuts[..., c]) for c, n in enumerate("uv")}
        file = xarray.Dataset(issued, {"start": starts})
        file.to_netcdf(folder / "simulated" / f"run{number}.nc")
    none = {"python": None, "checkpoint": None, "layout": None}
    dims = {"time": "n", "height": "row", "width": "i"}
    path = config(
        folder,
        data={"path": "measured", "dims": dims},
        source={**none, "forecasts": "simulated/*.nc"},
    )
    assert not [f for f in examine(read_own_config(path)) if f.level == "fail"]
    said = run("adapt", path)
    assert "r2no predict" not in said
    assert "r2no evaluate" in said
    scores = storage.read_json(folder / "run" / "run.json")["scores"]
    assert scores["r2no"]["rmse"] < scores["source"]["rmse"]
    run("evaluate", "run/model.r2no")


def test_stored_forecasts_beside_the_source_are_opened_again_to_score(folder: Path) -> None:
    """They do not travel with the artifact, but its config says where they are."""
    with xarray.open_dataset("piv.nc") as measured:
        (0.8 * measured).to_netcdf("simulated.nc")
    path = config(folder, also={"simulated": {"forecasts": "simulated.nc"}})
    said = run("adapt", path)
    assert "r2no predict" not in said
    scores = storage.read_json(folder / "run" / "run.json")["scores"]
    run("evaluate", "run/model.r2no", "--trust-source", "--output", "again.json")
    again = storage.read_json(folder / "again.json")["scores"]
    assert again["r2no"]["rmse"] == pytest.approx(scores["r2no"]["rmse"])


def test_unknown_dimension_is_found(folder: Path) -> None:
    found = failure(config(folder, data={"dims": {"time": "tiem"}}))
    assert found.check == "data"
    assert found.message.startswith("UnknownNameError")
    assert "'time'" in found.message


def test_renamed_variable_is_found(folder: Path) -> None:
    found = failure(config(folder, data={"variables": ["uu", "v"]}))
    assert found.message.startswith("UnknownNameError")
    assert "Did you mean 'u'?" in found.message


def test_weights_that_are_not_finite_are_found(folder: Path) -> None:
    weights = rotation()
    weights[3, 1] = float("nan")
    torch.save({"weight": weights}, "weights.pt")
    found = failure(config(folder))
    assert found.check == "source"
    assert found.message.startswith("NonFiniteError")
    assert "`weight`" in found.message
    assert "earlier checkpoint" in found.message


def test_source_that_changes_its_answer_is_found(folder: Path) -> None:
    source = {"python": "tests.support.networks:Restless", "checkpoint": None}
    found = failure(config(folder, source=source))
    assert found.check == "repeatable"
    assert found.message.startswith("FingerprintError")
    assert "dropout" in found.message


@pytest.mark.parametrize(
    ("kwargs", "error", "advice"),
    [
        ({"channels_out": 2}, "ShapeError", "one_step=True"),
        ({"channels_out": 5}, "LayoutError", "5"),
    ],
)
def test_wrong_shape_of_the_answer_is_found(
    folder: Path, kwargs: dict[str, int], error: str, advice: str
) -> None:
    found = failure(config(folder, source={"checkpoint": None, "kwargs": kwargs}))
    assert found.check == "source"
    assert found.message.startswith(error)
    assert advice in found.message


def test_a_file_that_the_system_refuses_is_a_finding(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "weights.pt")

    monkeypatch.setattr(doctor, "open_source", refuse)
    found = failure(config(folder))
    assert found.check == "source"
    assert found.message == "PermissionError: [Errno 13] Permission denied: 'weights.pt'"


def test_other_units_and_a_poor_source_are_pointed_out(folder: Path) -> None:
    torch.save({"weight": 100 * rotation()}, "weights.pt")
    found = findings(config(folder))
    assert found["units"].level == "warn"
    assert "normaliser" in found["units"].message
    assert found["source skill"].level == "warn"
    assert "no better than repeating the last frame" in found["source skill"].message


def test_recordings_given_twice_are_found(folder: Path) -> None:
    with xarray.open_dataset("piv.nc") as data:
        data.isel(trajectory=[0, 1, 2, 3, 0]).to_netcdf("twice.nc")
    found = findings(config(folder, data={"path": "twice.nc"}))["leakage"]
    assert found.level == "fail"
    assert "train and test share" in found.message


def test_little_fit_data_are_pointed_out(folder: Path) -> None:
    with xarray.open_dataset("piv.nc") as data:
        data.isel(trajectory=[0, 1, 2]).to_netcdf("little.nc")

    def said(**data: Any) -> str:
        found = config(folder, data=data, source={"layout": "B (T C) H W", "one_step": True})
        finding = findings(found)["splits"]
        assert finding.level == "warn"
        return finding.message

    shares = {"train": 0.6, "fit": 0.2, "test": 0.2}
    assert "larger share, or leave the shares out. With these" in said(split=shares)
    left_out = said(path="little.nc")  # advice that can be followed: no share is there to enlarge
    assert "More recordings" in left_out
    assert "by: time" in left_out
    assert "larger share" not in left_out


def test_a_share_that_a_stride_does_not_fill_is_no_little_fit_data(folder: Path) -> None:
    long = travelling_wave(0, frames=110).numpy()
    data = {name: (("time", "y", "x"), long[..., i]) for i, name in enumerate("uv")}
    xarray.Dataset(data).to_netcdf("long.nc")
    found = findings(config(folder, data={"path": "long.nc", "stride": 3}))["splits"]
    assert found.level == "ok"  # fit is eight horizons, 32 frames; windows of a stride end at 31
    shares = {"train": 0.5, "fit": 0.3, "test": 0.2}
    found = findings(config(folder, data={"path": "long.nc", "split": shares}))["splits"]
    assert found.level == "warn"
    assert "verdict will be uncertain. Give `fit` a larger share" in found.message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data": {"histroy": 3}}, r"`data\.histroy` is not known\. Did you mean 'history'"),
        ({"source": {"checkpont": "a"}}, r"`source\.checkpont` is not known\. Did you mean 'chec"),
        ({"adapt": {"repair": {"widht": 3}}}, r"`adapt\.repair\.widht`.*Did you mean 'width'"),
        ({"source": {"exported": "a.pt2"}}, "exactly one of python, exported"),
        ({"source": {"layout": None, "one_step": True}}, "need `layout`"),
        ({"data": {"history": 0}}, r"`data\.history`"),
        ({"data": {"horizon": None}}, r"`data\.horizon`"),
    ],
)
def test_wrong_keys_and_values_are_named(folder: Path, change: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_own_config(config(folder, **change))


def test_options_that_do_not_apply_are_refused(folder: Path) -> None:
    with pytest.raises(MovedError, match=r"bench adapt .* settings stand in the YAML file"):
        run("adapt", config(folder), "--radial", 3)
    assert not (folder / "run").exists()


def test_commands_of_ones_own_run_on_a_device(folder: Path) -> None:
    file = config(folder, adapt={"members": 0}, out="run")

    def run(*arguments: str) -> str:
        found = CliRunner().invoke(app, [*arguments, "--device", "pretend"])
        assert found.exit_code == 0, found.output
        return found.output

    absent = CliRunner().invoke(app, ["adapt", str(file), "--device", "pretend"])
    assert isinstance(absent.exception, DeviceError)
    with pretend.accelerator():
        assert "Computes on pretend:0, where the source answers as on the CPU" in run(
            "doctor", str(file)
        )
        run("adapt", str(file))
        run("evaluate", "run/model.r2no", "--trust-source", "--output", "scores.json")
        assert json.loads(Path("scores.json").read_text())["device"] == "pretend:0"
        run("predict", "run/model.r2no", "piv.nc", "--out", "there.nc", "--trust-source")
    stored = json.loads((folder / "run" / "run.json").read_text())
    assert stored["device"] == "pretend:0"
    here = ["predict", "run/model.r2no", "piv.nc", "--out", "here.nc", "--trust-source"]
    assert CliRunner().invoke(app, here).exit_code == 0
    with xarray.open_dataset("there.nc") as there, xarray.open_dataset("here.nc") as here:
        np.testing.assert_allclose(there["u"], here["u"], rtol=1e-5, atol=1e-5)
