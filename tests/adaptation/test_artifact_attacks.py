"""Artifacts whose author lies, that are replaced while they are read, or saved into odd places."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.adapting import SETTINGS, own_operator, split
from typer.testing import CliRunner

import r2no
from r2no import storage
from r2no.adaptation import AdaptedModel, read_stored, store_beside
from r2no.adaptation.stored import read_manifest, write_manifest
from r2no.cli.main import app
from r2no.errors import FileDamagedError, NotFittedError, StorageError

HISTORY = torch.stack([split(range(20, 21))[number].history for number in (0, 4)])


@pytest.fixture(scope="module")
def model() -> AdaptedModel:
    return r2no.adapt(own_operator(), split(range(2)), split(range(10, 14)), settings=SETTINGS)


@pytest.fixture
def artifact(model: AdaptedModel, tmp_path: Path) -> Path:
    return model.save(tmp_path / "a.r2no")


def lie(folder: Path, *place: str, value: Any) -> None:
    """Change one value of the manifest and seal it again."""
    manifest = read_manifest(folder)
    at = manifest
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    write_manifest(folder, manifest)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("settings", "members"), 10**9),
        (("settings", "repair", "steps"), 10**9),
        (("settings", "repair", "width"), 10**9),
        (("settings", "repair", "depth"), 40),
        (("settings", "repair", "step_size"), "x"),
        (("settings", "ensemble"), []),
        (("fields", "grid"), [10**9, 10**9]),
        (("fields", "measured"), [0, 0]),
        (("fields", "channels"), [1, 2]),
        (("provenance",), []),
        (("files",), {}),
        (("files", "../../etc/passwd"), "0" * 64),
        (("source", "kind"), "x"),
        (("source", "kind"), []),
    ],
)
def test_lie_in_a_sealed_manifest_is_refused_by_name(
    artifact: Path, place: tuple[str, ...], value: Any
) -> None:
    lie(artifact, *place, value=value)
    with pytest.raises(FileDamagedError, match=r"a\.r2no"):
        r2no.load(artifact)


@pytest.mark.parametrize("change", ["dtype", "shape", "NaN", "name"])
def test_lie_in_a_module_is_refused_by_name(artifact: Path, change: str) -> None:
    path = artifact / "repair-0.safetensors"
    tensors, notes = storage.load_tensors(path)
    name = next(name for name, value in tensors.items() if value.ndim == 4)
    value = tensors.pop(name)
    lies = {
        "dtype": {name: value.half()},
        "shape": {name: value[..., :1]},
        "NaN": {name: value * torch.nan},
        "name": {name + "x": value},
    }
    storage.save_tensors(path, {**tensors, **lies[change]}, notes)
    lie(artifact, "files", path.name, value=storage.file_sha256(path))
    with pytest.raises(FileDamagedError, match=r"a\.r2no"):
        r2no.load(artifact)


def test_cells_of_another_grid_are_refused_before_they_take_memory(artifact: Path) -> None:
    path = artifact / "context.safetensors"
    tensors, notes = storage.load_tensors(path)
    notes["bands"]["grid"] = [8, 10**9]
    storage.save_tensors(path, tensors, notes)
    lie(artifact, "files", path.name, value=storage.file_sha256(path))
    with pytest.raises(FileDamagedError, match="half-plane"):
        read_stored(artifact)


def test_mean_field_of_truth_values_is_refused(artifact: Path) -> None:
    path = artifact / "context.safetensors"
    tensors, notes = storage.load_tensors(path)
    tensors["mean_field"] = tensors["mean_field"].bool()
    storage.save_tensors(path, tensors, notes)
    lie(artifact, "files", path.name, value=storage.file_sha256(path))
    with pytest.raises(FileDamagedError, match="mean field"):
        r2no.load(artifact)


def test_bands_as_earlier_versions_kept_them_are_left_out(artifact: Path) -> None:
    path = artifact / "bands.safetensors"
    tensors, notes = storage.load_tensors(path)
    tensors["total"] = tensors.pop("totals").sum(0)
    storage.save_tensors(path, tensors, notes)
    lie(artifact, "files", path.name, value=storage.file_sha256(path))
    loaded = r2no.load(artifact)
    assert loaded.calibration is None
    with pytest.raises(NotFittedError, match="saved by an earlier version"):
        loaded.predict(loaded.probe, coverage=0.5)


def test_flipped_bit_of_the_manifest_is_shown_by_no_command(artifact: Path) -> None:
    path = artifact / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"step_size": 0.2', '"step_size": 0.3'))
    result = CliRunner().invoke(app, ["inspect", str(artifact)])
    assert isinstance(result.exception, FileDamagedError)
    with pytest.raises(FileDamagedError, match="changed after it was written"):
        r2no.load(artifact)


def test_artifact_can_be_read_while_it_is_replaced(model: AdaptedModel, artifact: Path) -> None:
    expected, done = model.predict(HISTORY), threading.Event()

    def save() -> None:
        while not done.is_set():
            model.save(artifact)

    thread = threading.Thread(target=save)
    thread.start()
    try:
        for _ in range(10):
            assert torch.equal(r2no.load(artifact).predict(HISTORY), expected)
    finally:
        done.set()
        thread.join(60)
    assert [path.name for path in artifact.parent.iterdir()] == ["a.r2no"]


def test_file_beside_survives_a_save_and_evaluations_do_not(
    model: AdaptedModel, artifact: Path
) -> None:
    (artifact / "notes.txt").write_text("mine")
    store_beside(artifact, "evaluation.json", {"of": "the old model"})
    model.save(artifact)
    assert (artifact / "notes.txt").read_text() == "mine"
    assert not (artifact / "evaluation.json").exists()


def test_saving_over_a_file_is_named(model: AdaptedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match="file"):
            model.save(path)
    assert (tmp_path / "file").read_text() == "x"


def test_brackets_in_a_path_are_no_markup(artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "x[/b].html"
    result = CliRunner().invoke(app, ["report", str(artifact), "--out", str(out)])
    assert result.exception is None, result.exception
    assert "x[/b].html" in result.output
    assert out.is_file()
