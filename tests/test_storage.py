import numpy as np
import pytest
import torch

from r2no import storage
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
