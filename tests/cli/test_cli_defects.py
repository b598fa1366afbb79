"""Damaged data and wrong names through the commands: a named error and no output."""

import errno
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from r2no.cli import main
from r2no.errors import (
    ConfigError,
    DataError,
    EmptySplitError,
    FileDamagedError,
    FingerprintError,
    NonFiniteError,
)

TRAIN = ["--backbone", "fno", "--small", "--updates", 2, "--batch-size", 4, "--validations", 1]


def shards(root: Path, kind: str = "real") -> list[Path]:
    return sorted((root / "cylinder" / "hf_dataset" / kind).glob("*.arrow"))


def edit(path: Path, change) -> None:
    """Rewrite a shard after ``change`` acted on its rows (a list of dictionaries)."""
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    rows = table.to_pylist()
    change(rows)
    with pa.ipc.new_stream(str(path), table.schema) as sink:
        sink.write_table(pa.Table.from_pylist(rows, table.schema), max_chunksize=1)


def values(row: dict, name: str) -> np.ndarray:
    shape = (row["shape_t"], row["shape_h"], row["shape_w"])
    return np.frombuffer(row[name], "<f4").reshape(shape).copy()


def drop_index(root: Path) -> None:
    (root / "cylinder" / "hf_dataset" / "val_index_real.json").unlink()


def truncate(root: Path) -> None:
    path = shards(root)[0]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def widen(root: Path) -> None:
    def change(rows: list[dict]) -> None:
        rows[0]["u"] = values(rows[0], "u").astype("<f8").tobytes()

    edit(shards(root)[0], change)


def spoil(root: Path, kind: str = "real") -> None:
    def change(rows: list[dict]) -> None:
        for row in rows:
            field = values(row, "v")
            field[30] = np.nan
            row["v"] = field.tobytes()

    for path in shards(root, kind):
        edit(path, change)


def spoil_simulation(root: Path) -> None:
    spoil(root, "numerical")


def list_past_the_end(root: Path) -> None:
    path = root / "cylinder" / "hf_dataset" / "train_index_real.json"
    pairs = json.loads(path.read_text())
    path.write_text(json.dumps([*pairs, {**pairs[0], "time_id": 50}]))


def zero_measured(root: Path) -> None:
    def change(rows: list[dict]) -> None:
        for row in rows:
            row["v"] = np.zeros_like(values(row, "v")).tobytes()

    for path in shards(root):
        edit(path, change)


DEFECTS = [
    (drop_index, DataError, "There is no window list"),
    (truncate, FileDamagedError, "data-00000"),
    (widen, DataError, r"must be float32.*float64\?"),
    (spoil, NonFiniteError, r"first in frame 30, in v"),
    (spoil_simulation, NonFiniteError, r"first in frame 30, in v"),
    (list_past_the_end, DataError, "which has 60 frames"),
]


@pytest.mark.parametrize(
    ("damage", "error", "text"), DEFECTS, ids=[damage.__name__ for damage, *_ in DEFECTS]
)
def test_training_on_damaged_data_leaves_nothing(damage, error, text, cylinder, tmp_path, r2no):
    damage(cylinder)
    arguments = ["--system", "cylinder", "--data", cylinder, "--paradigm", "real", *TRAIN]
    with pytest.raises(error, match=text):
        r2no("bench", "train", *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damage_under_masks_is_found_before_training(cylinder, tmp_path, r2no):
    def change(rows: list[dict]) -> None:
        field = values(rows[0], "p")
        field[30] = np.nan
        rows[0]["p"] = field.tobytes()

    edit(shards(cylinder, "numerical")[0], change)
    arguments = ["--system", "cylinder", "--data", cylinder, "--paradigm", "numerical", *TRAIN]
    with pytest.raises(NonFiniteError, match="in frame 30, in p"):
        r2no("bench", "train", *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_empty_split_is_found_before_anything_is_written(cylinder, tmp_path, r2no):
    (cylinder / "cylinder" / "hf_dataset" / "train_index_real.json").write_text("[]")
    arguments = ["--system", "cylinder", "--data", cylinder, "--paradigm", "real", *TRAIN]
    with pytest.raises(EmptySplitError, match="train split"):
        r2no("bench", "train", *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def checkpoint(tiny, tmp_path_factory, r2no) -> Path:
    out = tmp_path_factory.mktemp("source")
    r2no("bench", "train", "--system", "cylinder", "--data", tiny / "arrow", *TRAIN, "--out", out)
    return out / "checkpoint.safetensors"


def test_adapting_to_damaged_data_leaves_nothing(checkpoint, cylinder, tmp_path, r2no):
    spoil(cylinder)
    arguments = ["--source", checkpoint, "--data", cylinder, "--out", tmp_path / "out"]
    with pytest.raises(NonFiniteError, match="exclude"):
        r2no("bench", "adapt", *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [(spoil, NonFiniteError, "frame 30"), (zero_measured, DataError, "measures v, but")],
)
def test_scoring_damaged_data_writes_nothing(
    damage, error, text, checkpoint, cylinder, tmp_path, r2no
):
    damage(cylinder)
    output = tmp_path / "scores.json"
    with pytest.raises(error, match=text):
        r2no("bench", "evaluate", checkpoint, "--data", cylinder, "--output", output)
    assert not output.exists()


def test_bad_trajectories_can_be_left_out(checkpoint, cylinder, r2no):
    def change(rows: list[dict]) -> None:
        rows[0]["u"] = (np.nan * values(rows[0], "u")).tobytes()

    edit(shards(cylinder)[0], change)
    arguments = ["bench", "evaluate", checkpoint, "--data", cylinder]
    with pytest.raises(NonFiniteError, match="10312"):
        r2no(*arguments)
    assert 0 < json.loads(r2no(*arguments, "--exclude", "10312.h5"))["windows"] < 13
    shards(cylinder)[0].unlink()
    with pytest.warns(UserWarning, match="left out"):
        assert json.loads(r2no(*arguments, "--incomplete", "skip"))["windows"] < 13


def test_too_long_a_roll_out_is_named(checkpoint, tiny, r2no):
    with pytest.raises(EmptySplitError, match="no window of 80 frames"):
        r2no("bench", "evaluate", checkpoint, "--data", tiny / "arrow", "--autoregressive", 3)


@pytest.mark.parametrize("kind", ["real", "numerical"])
def test_files_changed_under_a_run_are_noticed(kind, cylinder, tmp_path, r2no):
    arguments = ["--system", "cylinder", "--data", cylinder, *TRAIN, "--out", tmp_path / "out"]
    r2no("bench", "train", *arguments)
    before = (tmp_path / "out" / "checkpoint.safetensors").read_bytes()

    def change(rows: list[dict]) -> None:
        for row in rows:
            row["u"] = (1.5 * values(row, "u")).tobytes()

    for path in shards(cylinder, kind):
        edit(path, change)
    with pytest.raises(FingerprintError, match="other settings, data"):
        r2no("bench", "train", *arguments)
    assert (tmp_path / "out" / "checkpoint.safetensors").read_bytes() == before
    cached = list((tmp_path / "out" / "cache").iterdir())
    assert len(cached) == (2 if kind == "numerical" else 1)  # old statistics were not used


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--system", "cylnder"], "Did you mean 'cylinder'"),
        (["--system", "cylinder", "--backbone", "fnoo"], "Did you mean 'fno'"),
        (["--system", "cylinder"], "`backbone` is needed; give `--backbone`"),
        (["--system", "foil", "--backbone", "fno", "--updates", 0], "`updates`"),
        (["--system", "foil", "--backbone", "fno", "--paradigm", "finetune"], "`source`"),
        (["--system", "foil", "--backbone", "fno", "--paradigm", "tune"], "`paradigm`"),
        (["--system", "foil", "--backbone", "fno", "--pretrained", "x.pth"], "`pretrained`"),
        (["--system", "foil", "--backbone", "fno", "--statistics", "x.pt"], "no file `x.pt`"),
    ],
)
def test_wrong_setting_is_named(arguments, text, tiny, tmp_path, r2no):
    with pytest.raises(ConfigError, match=text):
        r2no("bench", "train", *arguments, "--data", tiny / "arrow", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["bench", "adapt", "--source", "absent.pth", "--data", "x"], "no checkpoint `absent.pth`"),
        (
            ["bench", "adapt", "--source", "x", "--data", "x", "--epochs", "1", "--updates", "1"],
            "either",
        ),
        (["bench", "adapt", "--source", "x", "--data", "x", "--width", "0"], "`width`"),
        (["inspect", "absent"], "no file or folder"),
        (["inspect", "."], "no artifact"),
        (["bench", "evaluate", ".", "--data", "x"], "no artifact"),
        (["bench", "train", "absent.yaml"], "no config file"),
        (["bench", "train", "."], "not a YAML file"),
    ],
)
def test_absent_files_are_named(command, text, tmp_path, monkeypatch, r2no):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=text):
        r2no(*command)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["no[/a].pth", "no[red]pe.pth"])
def test_errors_show_names_as_they_are(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["r2no", "inspect", name])
    with pytest.raises(SystemExit):
        main.main()
    assert name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "Check that you may read and write it, and the folders above it."),
        (errno.ENAMETOOLONG, "Choose a shorter name."),
        (errno.ENOSPC, "Free some space, then run the same command again."),
    ],
)
def test_what_the_system_refuses_is_one_line(number, remedy, monkeypatch, capsys):
    def refused():
        raise OSError(number, os.strerror(number), "theirs/piv.nc")

    monkeypatch.setattr(main, "app", refused)
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "theirs/piv.nc" in said
    assert said.endswith(f"{remedy}\n")


def test_other_errors_of_the_system_keep_their_traceback(monkeypatch):
    def broken():
        raise OSError("a defect")

    monkeypatch.setattr(main, "app", broken)
    with pytest.raises(OSError, match="a defect"):
        main.main()


def test_a_name_that_no_file_can_have_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["r2no", "inspect", 300 * "l" + ".nc"])
    with pytest.raises(SystemExit):
        main.main()
    assert "Choose a shorter name" in capsys.readouterr().err


def test_inspect_prints_strict_json(tmp_path, r2no):
    content = {"model_state_dict": {"a": torch.zeros(2)}, "best_val_loss": float("inf")}
    torch.save(content, tmp_path / "a.pth")
    found = json.loads(r2no("inspect", tmp_path / "a.pth", "--json"), parse_constant=pytest.fail)
    assert found["best_val_loss"] == "inf"


def test_error_is_one_line_with_exit_code_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["r2no", "bench", "info", "nowhere-at-all"])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err.startswith("DataError: `root` must be a folder")


def test_names_that_the_output_cannot_hold_do_not_stop_a_command(tmp_path, monkeypatch):
    """A table that goes to a file in ASCII, at the end of hours of work."""
    path = tmp_path / "w\u00f6rk \u2603.npy"
    np.save(path, np.zeros((30, 8, 12, 1), dtype="<f4"))
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "argv", ["r2no", "inspect", str(path)])
    monkeypatch.setattr(sys, "stdout", narrow)
    with pytest.raises(SystemExit) as end:
        main.main()
    narrow.flush()
    assert end.value.code in (None, 0)
    assert "w\\xf6rk" in narrow.buffer.getvalue().decode()
