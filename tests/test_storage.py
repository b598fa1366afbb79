import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from r2no import replacing, storage
from r2no.errors import FileDamagedError, StorageError


def test_round_trip_keeps_bits_and_metadata(tmp_path):
    tensors = {
        "a": torch.arange(6).reshape(2, 3),
        "b": torch.randn(2, 2, dtype=torch.float64).T,
        "c": torch.tensor([], dtype=torch.float32),
    }
    storage.save_tensors(tmp_path / "x", tensors, {"seed": 3, "list": [1, 2]})
    loaded, metadata = storage.load_tensors(tmp_path / "x")
    assert metadata == {"seed": 3, "list": [1, 2]}
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("keep", [0, 5, 50, -1])
def test_truncated_files_are_refused_by_name(tmp_path, keep):
    path = tmp_path / "weights.safetensors"
    storage.save_tensors(path, {"a": torch.randn(64)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileDamagedError, match=r"weights\.safetensors"):
        storage.load_tensors(path)


def test_damaged_json_is_refused_by_name(tmp_path):
    (tmp_path / "m.json").write_text('{"a": ')
    with pytest.raises(FileDamagedError, match=r"m\.json"):
        storage.read_json(tmp_path / "m.json")


def test_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    storage.write_json(path, {"version": 1})

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "replace", fail)
    with pytest.raises(StorageError, match="untouched"):
        storage.write_json(path, {"version": 2})
    assert storage.read_json(path) == {"version": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        storage.load_tensors(tmp_path / "nothing")


def test_fingerprint_sees_values_shapes_and_names():
    a = torch.arange(6.0)
    same = storage.fingerprint({"x": a, "y": 1})
    assert same == storage.fingerprint({"y": 1, "x": a.clone()})
    others = [
        {"x": a.reshape(2, 3), "y": 1},
        {"z": a, "y": 1},
        {"x": a + 1, "y": 1},
        {"x": a, "y": 2},
    ]
    assert len({same, *(storage.fingerprint(other) for other in others)}) == 5
    array = np.arange(24.0).reshape(2, 3, 4)
    assert storage.fingerprint(array) == storage.fingerprint(array.copy())
    assert storage.fingerprint(array) != storage.fingerprint(array + 1)


def test_tied_tensors_are_written_under_each_name(tmp_path):
    tied = torch.randn(3)
    storage.save_tensors(tmp_path / "x", {"a": tied, "b": tied, "c": tied[1:]})
    loaded, _ = storage.load_tensors(tmp_path / "x")
    assert torch.equal(loaded["a"], tied)
    assert torch.equal(loaded["b"], tied)
    assert torch.equal(loaded["c"], tied[1:])


def folder_with(path, **files):
    with storage.atomic_folder(path) as sibling:
        for name, text in files.items():
            storage.write_bytes(sibling / name, text.encode())
    return path


def content(path):
    return {file.name: file.read_text() for file in path.iterdir()}


@pytest.mark.parametrize("at_once", [True, False], ids=["exchange", "two steps"])
def test_folder_is_replaced_as_a_whole_and_keeps_what_is_not_dropped(
    tmp_path, monkeypatch, at_once
):
    if not at_once:
        monkeypatch.setattr(replacing, "_exchange", lambda *_: False)
    path = folder_with(tmp_path / "out", a="1", b="2", mine="3")
    with storage.atomic_folder(path, dropped={"b"}) as sibling:
        storage.write_bytes(sibling / "a", b"4")
        assert content(path) == {"a": "1", "b": "2", "mine": "3"}  # whole until the end
    assert content(path) == {"a": "4", "mine": "3"}
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_failure_in_the_middle_keeps_the_old_folder_and_leaves_nothing(tmp_path):
    path = folder_with(tmp_path / "out", a="1")

    def fill_the_disk():
        with storage.atomic_folder(path) as sibling:
            storage.write_bytes(sibling / "a", b"2")
            raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"out`.*untouched"):
        fill_the_disk()
    assert content(path) == {"a": "1"}
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_writer_left_is_removed_or_put_back(tmp_path):
    path = folder_with(tmp_path / "out", a="1")
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "half").write_text("x")
    folder_with(path, b="2")
    assert content(path) == {"a": "1", "b": "2"}
    path.rename(tmp_path / ".out.old")  # killed between the two steps of a swap
    folder_with(path, c="3")
    assert content(path) == {"a": "1", "b": "2", "c": "3"}
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    (tmp_path / ".a.json.tmp").write_text("half")
    storage.write_json(tmp_path / "a.json", {})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "out"]


def test_folder_in_place_of_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="file"):
        folder_with(tmp_path / "file", a="1")
    assert (tmp_path / "file").read_text() == "x"


def test_any_flipped_bit_of_a_tensor_file_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    storage.save_tensors(path, {"a": torch.randn(40), "b": torch.arange(3)}, {"update": 12})
    sound = path.read_bytes()
    for bit in range(0, 8 * len(sound), 5):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(FileDamagedError, match=r"x\.safetensors"):
            storage.load_tensors(path)


def test_json_holds_no_infinity(tmp_path):
    storage.write_json(tmp_path / "a.json", {"a": [float("nan"), (1.0, float("-inf"))]})
    text = (tmp_path / "a.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert storage.read_json(tmp_path / "a.json") == {"a": ["nan", [1.0, "-inf"]]}


@pytest.mark.parametrize(
    "text",
    ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 10**5, "\xff"],
    ids=["NaN", "infinity", "overflow", "a key twice", "deep", "not UTF-8"],
)
def test_json_that_is_no_json_is_refused_by_name(tmp_path, text):
    (tmp_path / "m.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FileDamagedError, match=r"m\.json"):
        storage.read_json(tmp_path / "m.json")


def test_working_folder_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "below")
    for path in (".", "..", tmp_path / "here"):
        with pytest.raises(StorageError, match="working folder"):
            folder_with(path, a="1")
    assert content(folder_with(Path("inside"), a="1")) == {"a": "1"}


def test_leftovers_are_removed_but_not_those_of_a_running_writer(tmp_path):
    for name in (".dead.tmp", ".dead.lock", ".live.tmp", ".other"):
        (tmp_path / name).write_text("x")

    def sweep():
        storage.remove_temporaries(tmp_path)

    with storage.sole_writer(tmp_path / "live"):
        thread = threading.Thread(target=sweep)
        thread.start()
        thread.join(60)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == [".live.lock", ".live.tmp", ".other"]
    sweep()
    assert [path.name for path in tmp_path.iterdir()] == [".other"]


def test_file_that_cannot_fit_is_refused_before_the_work(tmp_path):
    with pytest.raises(StorageError, match=r"needs 1e\+09 GB more"):
        storage.check_space(tmp_path / "big", 10**18)


def test_tensor_files_are_the_same_bytes_each_time(tmp_path):
    tensors, notes = {"a": torch.arange(3.0), "b": torch.zeros(2)}, {"update": 1, "key": "x"}
    for number in range(8):
        storage.save_tensors(tmp_path / str(number), tensors, notes)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
