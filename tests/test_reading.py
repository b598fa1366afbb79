"""Text from files of unknown origin."""

import os
from pathlib import Path

import pytest
import torch
import yaml

from r2no import storage
from r2no.errors import ConfigError, FileDamagedError, FileMissingError
from r2no.reading import load_yaml, parse_json, read_text, read_yaml, regular_file


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested deeper"),
        ("[" * 70 + "]" * 70, "nested deeper"),
        ('{"a": ' * 70 + "1" + "}" * 70, "nested deeper"),
        ("NaN", "NaN is no number"),
        ("[-Infinity]", "no number"),
        ("[1e999]", "beyond the range"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' is there twice"),
        ("9" * 5000, "digits"),
        ('["\\ud800"]', "half a character"),
        ("[" + "[]," * 600_000 + "1]", "more than"),
        ("{", "Expecting"),
    ],
)
def test_json_is_read_strictly(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(FileDamagedError, match=reason) as error:
        storage.read_json(tmp_path / "x.json")
    assert str(tmp_path / "x.json") in str(error.value)


def test_json_of_ours_is_read_back(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None, "é\U0001f600"], "b": {"c": True}}
    storage.write_json(tmp_path / "x.json", content)
    assert storage.read_json(tmp_path / "x.json") == content
    assert parse_json("[" * 60 + "]" * 60, "x")


def test_metadata_of_tensors_are_read_strictly(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, tmp_path / "x", {"r2no": "[" * 100_000})
    with pytest.raises(FileDamagedError, match="nested deeper"):
        storage.load_tensors(tmp_path / "x")


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, kind in (("pipe", "a pipe"), ("zero", "a device"), (".", "a folder")):
        for read in (regular_file, storage.read_json, storage.load_tensors):
            with pytest.raises(FileDamagedError, match=kind):
                read(tmp_path / name)
    for name in ("loop", "absent", "x" * 300):
        with pytest.raises(FileMissingError):
            regular_file(tmp_path / name)


def test_text_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1234")
    assert read_text(tmp_path / "x", largest=4) == "1234"
    with pytest.raises(FileDamagedError, match="4 bytes"):
        read_text(tmp_path / "x", largest=3)
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(FileDamagedError, match="UTF-8"):
        read_text(tmp_path / "x", largest=4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: " + "[" * 60_000, "nested deeper"),
        ("".join("  " * n + "a:\n" for n in range(100)), "nested deeper"),
        ("a: &a [1]\nb: [*a, *a]", r"alias, \*a"),
        ("a: 1\nb: 2\na: 3", "'a' is there twice"),
        ("a: 2001-99-99", "month"),
        ("a: !!timestamp x", "AttributeError"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: " + "9" * 70_000, "70003 bytes"),
    ],
)
def test_yaml_is_plain_and_bounded(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_yaml(tmp_path / "x.yaml")


def test_yaml_pipes_and_folders_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match="a pipe"):
        read_yaml(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match="a folder"):
        read_yaml(tmp_path)


def test_yaml_reads_what_the_safe_loader_reads() -> None:
    text = "a: {b: [1, 2.5, x]}\nc: 2001-01-02\nd: null\n"
    assert load_yaml(text) == yaml.safe_load(text)
