"""Pretrain, finetune, adapt, evaluate: every system and every network, through the commands."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.support.stopping import Stop
from typer.testing import CliRunner

from r2no import backbones
from r2no.cli.main import app
from r2no.errors import ConfigError, EmptySplitError, FileDamagedError, FingerprintError
from r2no.realpdebench import RealPDEBench
from r2no.training import problems

FAST = ["--updates", 4, "--batch-size", 4, "--eval-batch-size", 8, "--validations", 2]
SMALL = [*FAST, "--lr", 1e-3, "--small"]
SHORT = [*SMALL, "--updates", 2, "--validations", 1]  # the last of an option counts
REPAIR = ["--width", 4, "--depth", 2, "--steps", 3, "--epochs", 1, "--batch-size", 8]

CHAINS = [
    ("cylinder", "fno", "arrow"),
    ("controlled_cylinder", "unet", "arrow"),
    ("fsi", "dpot_s", "hdf5"),
    ("foil", "cno", "arrow"),
    ("combustion", "transolver", "arrow"),
    ("fsi", "deeponet", "arrow"),
]


@pytest.mark.parametrize(("system", "backbone", "layout"), CHAINS)
def test_chain_from_simulation_to_a_score(system, backbone, layout, tiny, tmp_path, r2no):
    data, common = tiny / layout, ["--system", system, "--backbone", backbone]
    common += ["--data", data, "--layout", layout]
    r2no("bench", "train", *common, *SHORT, "--out", tmp_path / "num")
    start = tmp_path / "num" / "checkpoint.safetensors"
    tuned = tmp_path / "tuned"
    finetune = ["--paradigm", "finetune", "--source", start, "--out", tuned]
    r2no("bench", "train", *common, *SHORT, *finetune)
    source = tuned / "checkpoint.safetensors"
    said = r2no(
        "bench", "adapt", *common, "--source", source, "--members", 1, *REPAIR, "--out", tmp_path
    )
    artifact = tmp_path / "model.r2no"
    assert str(artifact) in said
    batch = ["--data", data, "--batch-size", 5]
    output = tmp_path / "scores.json"
    scores = json.loads(r2no("bench", "evaluate", artifact, *batch, "--output", output))
    assert json.loads(output.read_text())["scores"]["rmse"] == scores["scores"]["rmse"]
    assert scores["system"] == system
    assert scores["backbone"] == backbone
    assert scores["measured"] == (["observed"] if system == "combustion" else ["u", "v"])
    assert math.isfinite(scores["scores"]["rmse"])
    alone = json.loads(r2no("bench", "evaluate", source, *batch))
    assert alone["scores"] == pytest.approx(scores["source_scores"])
    assert "source_scores" not in alone
    shown = json.loads(r2no("inspect", artifact, "--json"))
    assert set(shown["files"].values()) == {"intact"}
    assert shown["provenance"]["system"] == system


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory, r2no) -> Path:
    """A small FNO on the cylinder in both formats, and its artifact."""
    out = tmp_path_factory.mktemp("trained")
    common = ["--system", "cylinder", "--backbone", "fno", "--data", tiny / "arrow", *SMALL]
    r2no("bench", "train", *common, "--paradigm", "real", "--benchmark-file", "--out", out)
    source = ["--source", out / "checkpoint.safetensors", "--data", tiny / "arrow"]
    r2no(
        "bench",
        "adapt",
        *source,
        "--members",
        2,
        *REPAIR,
        "--preset",
        "auto",
        "--out",
        out / "adapt",
    )
    return out


def test_benchmark_dictionary_holds_what_the_benchmark_loads(trained, tiny, r2no):
    content = torch.load(trained / "real.pth", weights_only=True)
    assert list(content) == [
        "model_state_dict",
        "train_losses",
        "val_losses",
        "iteration",
        "best_iteration",
        "best_val_loss",
    ]
    best = content["best_iteration"]
    assert content["iteration"] == best
    assert len(content["train_losses"]) == best
    assert len(content["val_losses"]) == 14
    assert content["val_losses"]["rmse"][-1] == content["best_val_loss"]
    assert all(isinstance(value, float) for value in content["val_losses"]["normalized_mse"])
    assert {len(values) for values in content["val_losses"].values()} == {best // 2}
    names = ["--system", "cylinder", "--backbone", "fno", "--small", "--data", tiny / "arrow"]
    with pytest.raises(ConfigError, match="fit no published network"):
        r2no("bench", "evaluate", trained / "real.pth", *names[:2], *names[4:])
    theirs = json.loads(r2no("bench", "evaluate", trained / "real.pth", *names))
    ours = json.loads(r2no("bench", "evaluate", trained / "checkpoint.safetensors", *names))
    assert theirs["scores"] == ours["scores"]


def test_validation_score_is_that_of_evaluate(trained, tiny, r2no):
    manifest = json.loads((trained / "run.json").read_text())
    arguments = ["--data", tiny / "arrow", "--split", "val"]
    scores = json.loads(r2no("bench", "evaluate", trained / "checkpoint.safetensors", *arguments))
    assert scores["scores"]["rmse"] == pytest.approx(manifest["best_validation_rmse"], rel=1e-6)
    assert manifest["preset"]["updates"] == 4
    assert manifest["preset"]["clip"] == 0


def test_compat_scores_as_the_benchmark_by_default_with_its_blocks(trained, tiny, r2no):
    arguments = [trained / "checkpoint.safetensors", "--data", tiny / "arrow"]
    compat = ["--compat", "benchmark"]
    one = json.loads(r2no("bench", "evaluate", *arguments, *compat, "--autoregressive", 1))
    assert one["compat"] == "benchmark"
    assert one["metric_batch"] == 13
    with pytest.raises(EmptySplitError, match="no window of 220 frames"):  # 20 + 10 blocks of 20
        r2no("bench", "evaluate", *arguments, *compat)


def test_adaptation_scores_itself_and_writes_its_page(trained, tiny, r2no):
    run, artifact = trained / "adapt", trained / "adapt" / "model.r2no"
    scores = json.loads((run / "run.json").read_text())["scores"]
    found = json.loads(r2no("bench", "evaluate", artifact, "--data", tiny / "arrow"))
    for name, row in (("r2no", "scores"), ("source", "source_scores")):
        rest = {key: value for key, value in found[row].items() if key != "normalised_mse"}
        assert scores[name] == pytest.approx(rest, rel=1e-5)
    assert scores["persistence"]["rmse"] > 0
    assert "Persistence" in (run / "report.html").read_text()


def test_roll_out_scores_more_frames(trained, tiny, r2no):
    arguments = [trained / "adapt" / "model.r2no", "--data", tiny / "arrow"]
    arguments += ["--autoregressive", 2, "--frames", 61]
    scores = json.loads(r2no("bench", "evaluate", *arguments))
    assert scores["autoregressive"] == 2
    assert 0 < scores["windows"] < 13


def test_config_file_and_options_give_the_same(trained, tiny, tmp_path, r2no):
    config = tmp_path / "train.yaml"
    config.write_text(
        f"system: cylinder\nbackbone: fno\ndata: {tiny / 'arrow'}\nparadigm: real\nupdates: 9\n"
        "batch_size: 4\neval_batch_size: 8\nvalidations: 2\nlr: 1.0e-3\nsmall: true\n"
    )
    r2no("bench", "train", config, "--updates", 4, "--out", tmp_path / "out")
    mine, theirs = (f / "checkpoint.safetensors" for f in (tmp_path / "out", trained))
    assert mine.read_bytes() == theirs.read_bytes()
    config.write_text(config.read_text() + "updats: 3\n")
    with pytest.raises(ConfigError, match="Did you mean 'updates'"):
        r2no("bench", "train", config)


@pytest.mark.parametrize("stage", ["train", "adapt"])
def test_interrupted_run_ends_in_the_same_bytes(stage, trained, tiny, tmp_path, r2no, monkeypatch):
    source = ["--data", tiny / "arrow", "--source", trained / "checkpoint.safetensors"]
    if stage == "train":
        file = "checkpoint.safetensors"
        names = ["--system", "cylinder", "--backbone", "fno", "--paradigm", "finetune"]
        command = ["bench", "train", *names, *source, *SMALL]
    else:
        file = "model.r2no/ensemble.safetensors"
        command = ["bench", "adapt", *source, "--members", 2, *REPAIR]
    r2no(*command, "--out", tmp_path / "whole")
    cut = [*command, "--out", tmp_path / "cut"]
    with monkeypatch.context() as patch:
        stop = Stop(problems.gather, calls=4 if stage == "adapt" else 3)
        patch.setattr(problems, "gather", stop)
        stopped = CliRunner().invoke(app, [str(item) for item in cut])
        assert stopped.exit_code != 0
    assert list((tmp_path / "cut").rglob("state.safetensors"))
    assert not (tmp_path / "cut" / file).exists()
    r2no(*cut)
    assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_simulated_windows_are_masked_anew_in_each_epoch(tiny, tmp_path, r2no, monkeypatch):
    seen: list[int] = []
    monkeypatch.setattr(RealPDEBench, "set_epoch", lambda self, epoch: seen.append(epoch))
    arguments = ["--system", "fsi", "--backbone", "fno", "--data", tiny / "arrow", *SMALL]
    r2no(
        "bench", "train", *arguments, "--batch-size", 16, "--updates", 5, "--out", tmp_path / "out"
    )
    assert seen == [0, 1, 2]  # 30 windows are two batches


def test_other_settings_in_the_same_folder_are_refused(trained, tiny, r2no):
    common = ["--system", "cylinder", "--backbone", "fno", "--data", tiny / "arrow", *SMALL]
    with pytest.raises(FingerprintError, match="other settings"):
        r2no("bench", "train", *common, "--paradigm", "real", "--seed", 5, "--out", trained)


def test_changed_source_of_an_artifact_is_refused(trained, tiny, tmp_path, r2no):
    copy = shutil.copytree(trained / "adapt" / "model.r2no", tmp_path / "model.r2no")
    source = copy / "source.safetensors"
    source.write_bytes(source.read_bytes()[:-1] + b"?")
    with pytest.raises(FileDamagedError, match=r"source\.safetensors"):
        r2no("bench", "evaluate", copy, "--data", tiny / "arrow")
    shown = json.loads(r2no("inspect", copy, "--json"))
    assert shown["files"]["source.safetensors"] == "missing or changed"
    given = ["--source", trained / "checkpoint.safetensors", "--data", tiny / "arrow"]
    assert json.loads(r2no("bench", "evaluate", copy, *given))["windows"] == 13


def test_published_network_is_identified_from_a_benchmark_file(tmp_path, r2no):
    network = backbones.build("deeponet", system="fsi")
    torch.save({"model_state_dict": network.state_dict()}, tmp_path / "finetune.pth")
    shown = r2no("inspect", tmp_path / "finetune.pth")
    assert "fsi/deeponet" in shown
    assert "format: benchmark" in shown


def test_checkpoint_says_what_it_is(trained, r2no):
    shown = json.loads(r2no("inspect", trained / "checkpoint.safetensors", "--json"))
    assert (shown["system"], shown["backbone"], shown["paradigm"]) == ("cylinder", "fno", "real")
    with safe_open(str(trained / "checkpoint.safetensors"), framework="pt") as archive:
        assert len(list(archive.keys())) == shown["tensors"]


@pytest.mark.parametrize("name", ["--system", "--backbone"])
def test_names_that_contradict_the_checkpoint_are_refused(name, trained, tiny, r2no):
    value = {"--system": "foil", "--backbone": "cno"}[name]
    checkpoint = trained / "checkpoint.safetensors"
    with pytest.raises(ConfigError, match=r"but .* is of (cylinder|fno)"):
        r2no("bench", "evaluate", checkpoint, "--data", tiny / "arrow", name, value)
