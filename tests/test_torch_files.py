"""Files of ``torch.save`` from anybody, through every reader of them."""

import argparse
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from validation.attacks import hostile_makers as make

from r2no import backbones, operators
from r2no.backbones.formats import read_checkpoint
from r2no.errors import FileDamagedError
from r2no.realpdebench.files.index import load_pt
from r2no.torch_files import read_torch

READERS = {
    "describe": backbones.describe,
    "load_checkpoint": lambda path: backbones.load_checkpoint(torch.nn.Linear(2, 2), path),
    "read_weights": operators.read_weights,
    "load_pt": load_pt,
}
FILES = {
    "expanded": (make.torch_file(make.expanded), "declares 40000000000 bytes"),
    "overlapping": (make.torch_file(make.overlapping), "more bytes than the file holds"),
    "doubling": (make.torch_file(make.laughs), "hold more than"),
    "nested": (make.torch_file(make.nested), "nested deeper"),
    "hungry": (make.with_pickle(make.HUNGRY), "builtins.bytearray"),
    "lying": (make.lying_storage, "was not loaded"),
    "pipe": (make.pipe("x.pt"), "a pipe"),
    "device": (make.device("x.pt"), "a device"),
    "canary": (make.torch_file(make.Canary), "was not loaded|must hold tensors"),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("reader", READERS)
def test_hostile_weights_are_refused(
    file: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("R2NO_CANARY", str(tmp_path / "canary"))
    maker, reason = FILES[file]
    path = maker(tmp_path)
    if (file, reader) == ("canary", "load_pt"):
        reason = "it asks for"
    with pytest.raises(FileDamagedError, match=reason):
        READERS[reader](path)
    assert not (tmp_path / "canary").exists()


def test_an_exported_program_is_called_so_and_not_damaged(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    torch.export.save(program, tmp_path / "net.pt2")
    with pytest.raises(FileDamagedError, match=r"is an exported program.*from_exported"):
        read_torch(tmp_path / "net.pt2")


def test_packed_records_are_refused_without_unpacking(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(3)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "y.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    with pytest.raises(FileDamagedError, match="compressed or overlap"):
        read_torch(tmp_path / "y.pt")


def test_weights_that_repeat_a_value_are_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1).expand(4, 3), "b": torch.ones(2, 2)}, tmp_path / "x.pt")
    assert torch.equal(operators.read_weights(tmp_path / "x.pt")["w"], torch.ones(4, 3))
    torch.save({"w": torch.full((1,), float("nan")).expand(4, 3)}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="NaN"):
        operators.read_weights(tmp_path / "x.pt")


def test_threads_read_files_with_settings(tmp_path: Path) -> None:
    """PyTorch's list of harmless objects is of the whole process, and threads shared it."""
    settings = argparse.Namespace(width=3)
    torch.save({"model": {"w": torch.zeros(3)}, "args": settings}, tmp_path / "x.pth")
    failed: list[Exception] = []

    def read() -> None:
        for _ in range(5):
            try:
                read_checkpoint(tmp_path / "x.pth")
                operators.read_weights(tmp_path / "x.pth")
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
