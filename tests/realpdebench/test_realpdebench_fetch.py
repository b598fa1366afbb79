"""Plans and downloads, against a stub hub and a hub on 127.0.0.1; never the network."""

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.support.hub_server import COMMIT, serve
from tests.support.local_hub import LocalHub

from r2no.errors import ConfigError, DataError, FileDamagedError, StorageError
from r2no.realpdebench import RealPDEBench, systems
from r2no.realpdebench.files import fetch
from r2no.realpdebench.files.fetch import HuggingFaceHub, RemoteFile, Repository


@dataclass
class StubHub(LocalHub):
    """Files that ``spoil`` names arrive damaged."""

    folder: Path
    spoil: set[str] = field(default_factory=set)
    fetched: list[str] = field(default_factory=list)
    extra: tuple[RemoteFile, ...] = ()

    def commit(self, repository: Repository) -> str:
        return COMMIT if repository.revision == "main" else repository.revision

    def download(self, repository: Repository, file: RemoteFile, folder: Path) -> None:
        super().download(repository, file, folder)
        if file.path in self.spoil:
            content = (folder / file.path).read_bytes()
            (folder / file.path).write_bytes(content[:-1] + b"?")
        self.fetched.append(file.path)


@pytest.fixture
def hub(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubHub:
    """The Arrow files of two small systems; the table of systems knows their counts."""
    for name in ("cylinder", "fsi"):
        shutil.copytree(root / name, tmp_path / "hub" / name, ignore=shutil.ignore_patterns("*.pt"))
        for kind in ("real", "numerical"):
            shutil.rmtree(tmp_path / "hub" / name / kind)
    shutil.copy(root / "version.json", tmp_path / "hub")
    small = replace(systems.SYSTEMS["cylinder"], trajectories=(10, 10))
    monkeypatch.setitem(systems.SYSTEMS, "cylinder", small)
    return StubHub(tmp_path / "hub")


def names(plan: fetch.Plan) -> list[str]:
    return [file.path for file in plan.files]


def test_metadata_plan_holds_no_fields(hub: StubHub, tmp_path: Path) -> None:
    plan = fetch.plan_metadata(hub, tmp_path / "out", ["fsi"])
    assert all(name.startswith("fsi/") or name == "version.json" for name in names(plan))
    assert "fsi/hf_dataset/train_index_real.json" in names(plan)
    assert "fsi/hf_dataset/real/state.json" in names(plan)
    assert not any(name.endswith(".arrow") for name in names(plan))
    assert plan.repository.revision == COMMIT
    assert "GB" in str(plan)


def test_fetched_data_open_and_a_second_plan_is_empty(hub: StubHub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    left = []
    for plan in (
        fetch.plan_metadata(hub, out, ["cylinder"]),
        fetch.plan_shards(hub, out, ["cylinder"], ["real"]),
    ):
        fetch.download(plan, hub, progress=lambda _, rest: left.append(rest))
    assert left[-1] == 0
    assert len(RealPDEBench(out, "cylinder", "real", "test")) == 13
    again = fetch.plan_shards(hub, out, ["cylinder"], ["real"])
    assert names(again) == []
    assert len(again.present) == 3
    assert len(fetch.download(again, hub)) == 3


def test_shards_of_a_split_suffice_for_it(hub: StubHub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    index = hub.folder / "cylinder" / "hf_dataset" / "val_index_numerical.json"
    index.write_text(json.dumps(json.loads(index.read_text())[:1]))
    fetch.download(fetch.plan_metadata(hub, out, ["cylinder"]), hub)
    plan = fetch.plan_shards(hub, out, ["cylinder"], ["numerical"], ["val"])
    assert len(plan.files) == 1  # one trajectory per simulated shard
    fetch.download(plan, hub)
    assert len(RealPDEBench(out, "cylinder", "numerical", "val")) == 1
    with pytest.raises(DataError, match="9 trajectories that are not there"):
        RealPDEBench(out, "cylinder", "numerical", "train")


def test_all_shards_are_planned_without_metadata(hub: StubHub, tmp_path: Path) -> None:
    plan = fetch.plan_shards(hub, tmp_path / "out", ["cylinder", "fsi"], ["numerical"], ["val"])
    assert len(plan.files) == 16


@pytest.mark.parametrize(("count", "shards"), [(92, 73), (10, 3), (6, 6)])
def test_rows_are_dealt_contiguously(count: int, shards: int) -> None:
    rows = [str(number) for number in range(count)]
    parts = [fetch._dealt(rows, shard, shards) for shard in range(shards)]
    assert [row for part in parts for row in part] == rows
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_damaged_download_is_removed(hub: StubHub, tmp_path: Path) -> None:
    hub.spoil = {"version.json"}
    plan = fetch.plan_metadata(hub, tmp_path / "out", ["fsi"])
    with pytest.raises(FileDamagedError, match=r"version\.json"):
        fetch.download(plan, hub)
    assert not (tmp_path / "out" / "version.json").exists()


def test_changed_small_file_is_fetched_again(hub: StubHub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fetch.download(fetch.plan_metadata(hub, out, ["fsi"]), hub)
    index = out / "fsi" / "hf_dataset" / "val_index_real.json"
    index.write_bytes(index.read_bytes()[:-1] + b"?")
    assert names(fetch.plan_metadata(hub, out, ["fsi"])) == [str(index.relative_to(out))]


def test_large_plans_need_consent(hub: StubHub, tmp_path: Path) -> None:
    hub.extra = (RemoteFile("fsi/hf_dataset/real/data-00009-of-00010.arrow", 2 * 10**9),)
    plan = fetch.plan_shards(hub, tmp_path / "out", ["fsi"], ["real"])
    for confirm in (None, lambda _: False):
        with pytest.raises(ConfigError, match=r"2\.00 GB"):
            fetch.download(plan, hub, confirm=confirm)
    assert hub.fetched == []
    hub.extra = (RemoteFile("fsi/hf_dataset/real/data-00009-of-00010.arrow", 10**18),)
    plan = fetch.plan_shards(hub, tmp_path / "out", ["fsi"], ["real"])
    with pytest.raises(StorageError, match="Not enough space"):
        fetch.download(plan, hub, confirm=lambda _: True)


def test_checkpoints_are_found_under_either_name(tmp_path: Path) -> None:
    for path in ("cylinder/fno/finetune.pth", "cylinder/trainsolver/real.pth", "model_S.pth"):
        (tmp_path / "hub" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hub" / path).write_bytes(b"weights")
    hub = StubHub(tmp_path / "hub")
    out = tmp_path / "out"
    (path,) = fetch.download(fetch.plan_checkpoint(hub, out, "cylinder", "fno"), hub)
    assert path == out / "cylinder" / "fno" / "finetune.pth"
    plan = fetch.plan_checkpoint(hub, out, "cylinder", "transolver", paradigm="real")
    assert names(plan) == ["cylinder/trainsolver/real.pth"]
    assert names(fetch.plan_dpot(hub, out)) == ["model_S.pth"]
    with pytest.raises(DataError, match=r"cylinder/fno/finetune\.pth"):
        fetch.plan_checkpoint(hub, out, "cylinder", "cno")
    with pytest.raises(ConfigError, match="`paradigm`"):
        fetch.plan_checkpoint(hub, out, "cylinder", "fno", paradigm="tuned")


def test_hub_client_fetches_and_resumes(
    hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    shard = "fsi/hf_dataset/numerical/data-00002-of-00006.arrow"
    with serve(hub.folder) as (endpoint, handler):
        client = HuggingFaceHub(endpoint)
        out = tmp_path / "out"
        fetch.download(fetch.plan_metadata(client, out, ["fsi"]), client)
        handler.break_after[shard] = 20_000
        plan = fetch.plan_shards(client, out, ["fsi"], ["numerical"])
        assert plan.repository.revision == COMMIT
        fetch.download(plan, client)
        assert handler.ranges == ["bytes=16384-"]  # four whole pieces had arrived
    assert len(RealPDEBench(out, "fsi", "numerical")) == 30


def test_what_arrived_before_a_kill_is_not_fetched_again(hub: StubHub, tmp_path: Path) -> None:
    shard = "fsi/hf_dataset/numerical/data-00002-of-00006.arrow"
    content = (hub.folder / shard).read_bytes()
    with serve(hub.folder) as (endpoint, handler):
        client = HuggingFaceHub(endpoint)
        plan = fetch.plan_shards(client, tmp_path / "out", ["fsi"], ["numerical"])
        target = tmp_path / "out" / shard
        target.parent.mkdir(parents=True)
        part = target.with_name(f".{target.name}.{COMMIT[:12]}.part")
        part.write_bytes(content[:12_345])
        fetch.download(plan, client)
        assert handler.ranges == ["bytes=12345-"]
        assert target.read_bytes() == content
        target.rename(part)  # killed between the last byte and the name
        client.download(plan.repository, plan.files[2], tmp_path / "out")
        assert handler.ranges == ["bytes=12345-"]
    assert target.read_bytes() == content
    assert not list(target.parent.glob(".*"))


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "notaurl"])
def test_a_hub_that_does_not_answer_is_named(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Check the network and `endpoint`"):
        fetch.plan_metadata(HuggingFaceHub(endpoint), tmp_path / "out", ["fsi"])


def test_absent_repository_is_named(tmp_path: Path) -> None:
    with serve(tmp_path) as (endpoint, _), pytest.raises(DataError, match="HF_TOKEN"):
        fetch.plan_checkpoint(HuggingFaceHub(endpoint), tmp_path / "out", "fsi", "fno")
