"""``r2no bench fetch | tiny | info | checkpoints`` with a stub of the hub, no network."""

import json
from pathlib import Path

import pytest
from tests.support.local_hub import LocalHub

from r2no.cli.bench import data
from r2no.errors import ConfigError, DataError
from r2no.realpdebench import RealPDEBench
from r2no.realpdebench.files.fetch import RemoteFile, Repository

LARGE = RemoteFile("fsi/hf_dataset/real/data-00009-of-00010.arrow", 2 * 10**9)


class StubHub(LocalHub):
    """Remembers what it was asked for."""

    asked: list[object]

    def __init__(self, endpoint: str | None = None) -> None:
        self.asked.append(endpoint)

    def commit(self, repository: Repository) -> str:
        self.asked.append(repository.revision)
        return "c" * 40

    def download(self, repository: Repository, file: RemoteFile, folder: Path) -> None:
        if file.path == LARGE.path:
            raise DataError("asked for the large file")
        super().download(repository, file, folder)


@pytest.fixture
def hub(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> type[StubHub]:
    stub = type("Hub", (StubHub,), {"folder": tiny / "arrow", "asked": []})
    monkeypatch.setattr(data, "HuggingFaceHub", stub)
    return stub


def test_fetch_brings_metadata_only_unless_asked(hub, tmp_path, r2no):
    said = r2no("bench", "fetch", "--root", tmp_path, "--system", "fsi")
    assert "GB" in said
    assert (tmp_path / "fsi" / "hf_dataset" / "train_index_real.json").is_file()
    assert not list(tmp_path.rglob("*.arrow"))
    r2no("bench", "fetch", "--root", tmp_path, "--system", "fsi", "--kind", "real")
    assert len(RealPDEBench(tmp_path, "fsi", "real", "test")) == 10
    assert not (
        tmp_path / "fsi" / "hf_dataset" / "numerical" / "data-00000-of-00006.arrow"
    ).exists()


def test_fetch_passes_endpoint_and_revision_on(hub, tmp_path, r2no):
    place = ["--endpoint", "https://mirror.example", "--revision", "v2"]
    r2no("bench", "fetch", "--root", tmp_path, "--system", "fsi", *place)
    assert hub.asked == ["https://mirror.example", "v2"]


@pytest.mark.parametrize(("answer", "agreed"), [("n\n", False), ("", False), ("y\n", True)])
def test_large_downloads_ask_first(answer, agreed, hub, tmp_path, r2no):
    hub.extra = (LARGE,)
    arguments = ["bench", "fetch", "--root", tmp_path, "--system", "fsi", "--kind", "real"]
    error, text = (DataError, "large file") if agreed else (ConfigError, r"2\.00 GB")
    with pytest.raises(error, match=text):
        r2no(*arguments, stdin=answer)
    with pytest.raises(DataError, match="large file"):
        r2no(*arguments, "--yes")


def test_checkpoints_are_fetched_by_system_network_and_paradigm(hub, tmp_path, r2no):
    hub.folder = tmp_path / "hub"
    for name in ("cylinder/fno/finetune.pth", "cylinder/trainsolver/real.pth", "model_S.pth"):
        (hub.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (hub.folder / name).write_bytes(b"weights")
    out = ["--out", tmp_path / "out"]
    said = r2no("bench", "checkpoints", "fetch", "cylinder", "fno", *out)
    assert "1 files" in said
    assert (tmp_path / "out" / "cylinder" / "fno" / "finetune.pth").is_file()
    r2no("bench", "checkpoints", "fetch", "cylinder", "transolver", "--paradigm", "real", *out)
    r2no("bench", "checkpoints", "dpot", *out)
    assert (tmp_path / "out" / "model_S.pth").is_file()
    with pytest.raises(ConfigError, match="Did you mean 'foil'"):
        r2no("bench", "checkpoints", "fetch", "fail", "fno", *out)


def test_tiny_data_are_described(tmp_path, r2no):
    r2no("bench", "tiny", tmp_path, "--system", "combustion", "--layout", "hdf5", "--seed", 3)
    shown = r2no("bench", "info", tmp_path)
    assert "35/14/14" in shown
    assert "share frames" in shown
    found = json.loads(r2no("bench", "info", tmp_path, "--json"))
    (system,) = found["systems"]
    assert system["name"] == "combustion"
    assert system["kinds"][0]["layouts"] == ["hdf5"]
    with pytest.raises(ConfigError, match="Did you mean 'fsi'"):
        r2no("bench", "tiny", tmp_path, "--system", "fsy")


def test_info_names_what_is_missing(cylinder, r2no):
    (cylinder / "cylinder" / "hf_dataset" / "real" / "data-00000-of-00003.arrow").unlink()
    (cylinder / "cylinder" / "remain_params_real.json").unlink()
    shown = r2no("bench", "info", cylinder)
    assert "missing 10312.h5" in shown
    assert "remain_params_real.json" in shown
