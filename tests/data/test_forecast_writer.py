"""Forecast files: only what was written is gone on with, and nothing else stays behind."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from r2no import storage
from r2no.data.forecast_writer import ForecastFile
from r2no.errors import ConfigError, StorageError

ROWS, SHAPE = 12, (12, 2, 3, 4)
DIMS = ("origin", "lead", "y", "x")
VALUES = np.random.default_rng(0).normal(size=SHAPE).astype("f4")


def forecast(path: Path, *, key: str = "k", overwrite: bool = False) -> ForecastFile:
    layout = xr.Dataset(coords={name: np.arange(n) for name, n in zip(DIMS, SHAPE, strict=True)})
    return ForecastFile(path, layout, {"u": (DIMS, {})}, key=key, rows=3, overwrite=overwrite)


def fill(file: ForecastFile, stop: int = ROWS) -> None:
    for start in range(file.done, stop, 3):
        file.write({"u": VALUES[start : start + 3]})
        file.save()


def written(path: Path) -> np.ndarray:
    options = {"engine": "zarr"} if path.suffix == ".zarr" else {}
    with xr.open_dataset(path, **options) as data:
        return data["u"].values


@pytest.fixture(params=["nc", "zarr"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"f.{request.param}"


def stopped(path: Path) -> tuple[Path, Path]:
    with forecast(path) as file:
        fill(file, 6)
    return path.with_name(path.name + ".part"), path.with_name(path.name + ".part.json")


def finish(path: Path) -> int:
    """Go on to the end; returns from which row."""
    with forecast(path) as file:
        begun = file.done
        fill(file)
        file.finish()
    np.testing.assert_array_equal(written(path), VALUES)
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    return begun


def test_part_is_gone_on_with(path: Path) -> None:
    stopped(path)
    assert finish(path) == 6


def test_part_with_a_flipped_bit_is_begun_anew(path: Path) -> None:
    part, note = stopped(path)
    target = part
    if part.is_dir():
        target = part / "u" / "1.0.0.0"
        place = 10
    else:
        place = json.loads(note.read_text())["offsets"]["u"] + 100
    content = bytearray(target.read_bytes())
    content[place] ^= 1
    target.write_bytes(content)
    assert finish(path) == 0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"key": "k", "rows": 9}', '{"key": "k"}'])
def test_part_with_a_false_note_is_begun_anew(path: Path, text: str) -> None:
    _, note = stopped(path)
    note.write_text(text)
    assert finish(path) == 0


def test_note_of_more_rows_than_there_are_is_not_believed(path: Path) -> None:
    _, note = stopped(path)
    storage.write_json(note, {**storage.read_json(note), "rows": 9})
    assert finish(path) == 0


def test_leftovers_of_a_kill_are_removed(path: Path) -> None:
    part, _ = stopped(path)
    for name in (f".{path.name}.part.json.tmp", f".{path.name}.part.json.lock"):
        (path.parent / name).write_text("x")
    if part.is_dir():
        (part / "u" / "0.0.0.abc.partial").write_text("x")
    finish(path)
    assert not list(path.parent.rglob("*.partial"))
    part.mkdir()  # the old one, killed after the swap and before its removal
    assert finish(path) == ROWS


def test_old_forecast_stays_until_the_new_one_is_whole(path: Path) -> None:
    finish(path)
    with pytest.raises(ConfigError, match="another model"), forecast(path, key="other"):
        pass
    with forecast(path, key="other", overwrite=True) as file:
        file.write({"u": VALUES[:3] + 1})
        np.testing.assert_array_equal(written(path), VALUES)
        file.write({"u": VALUES[3:] + 1})
        file.finish()
    np.testing.assert_array_equal(written(path), VALUES + 1)


def test_forecast_beyond_the_disk_is_refused_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: type("", (), {"free": 1000}))
    with pytest.raises(StorageError, match="only 1e-06 GB are"), forecast(path):
        pass
    assert not list(path.parent.iterdir())
