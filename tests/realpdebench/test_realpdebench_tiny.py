"""The writer of small data sets, and the audit of a folder."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from r2no.errors import ConfigError, DataError, StorageError
from r2no.realpdebench import RealPDEBench, audit, tiny_system, write_tiny
from r2no.realpdebench.protocol.info import Overlap, find_overlaps


def test_arrow_columns_follow_the_released_order(root: Path) -> None:
    def columns(name: str, kind: str) -> list[str]:
        path = next((root / name / "hf_dataset" / kind).glob("*.arrow"))
        return pa.ipc.open_stream(str(path)).schema.names

    fluid = "sim_id u v shape_t shape_h shape_w vo x x_shape_h x_shape_w y y_shape_h y_shape_w"
    assert columns("cylinder", "real") == f"{fluid} t t_shape".split()
    assert columns("foil", "numerical") == f"{fluid} t t_shape p".split()
    flame = "sim_id observed shape_t shape_h shape_w x x_shape y y_shape t t_shape"
    assert columns("combustion", "real") == flame.split()
    assert columns("combustion", "numerical") == [*flame.split(), "numerical", "numerical_channels"]


def test_one_layout_alone_can_be_written(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a", ["fsi"], layouts=("arrow",))
    write_tiny(tmp_path / "h", ["fsi"], layouts=("hdf5",))
    assert not (tmp_path / "a" / "fsi" / "real").exists()
    assert not (tmp_path / "h" / "fsi" / "hf_dataset").exists()
    pairs = [RealPDEBench(tmp_path / part, "fsi", split="test").pairs for part in "ah"]
    assert pairs[0] == pairs[1]


def test_frames_and_seed_change_the_data(root: Path, tmp_path: Path) -> None:
    write_tiny(tmp_path, ["cylinder"], seed=3, frames=90, layouts=("arrow",))
    longer = RealPDEBench(tmp_path, "cylinder", "real", "test", autoregressive=3)
    assert longer.system.frames == tiny_system("cylinder", 90).frames == 90
    assert all(start + 80 < 90 for _, start in longer.pairs)
    assert len(longer) > 0


def test_writing_replaces_small_data_only(tmp_path: Path) -> None:
    write_tiny(tmp_path, ["fsi"], layouts=("arrow",))
    write_tiny(tmp_path, ["fsi"], layouts=("hdf5",))
    assert not (tmp_path / "fsi" / "hf_dataset").exists()
    (tmp_path / "fsi" / "tiny.json").unlink()
    with pytest.raises(StorageError, match="left untouched"):
        write_tiny(tmp_path, ["fsi"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fsi", "version.json"]


def test_wrong_names_are_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'foil'"):
        write_tiny(tmp_path, ["cylinder", "foils"])
    with pytest.raises(ConfigError, match="`layouts`"):
        write_tiny(tmp_path, ["cylinder"], layouts=("zarr",))
    with pytest.raises(DataError, match="does not fit"):
        write_tiny(tmp_path, ["cylinder"], frames=30)
    assert not any(tmp_path.iterdir())


def test_audit_counts_windows_and_finds_shared_frames(root: Path) -> None:
    report = audit(root)
    assert [system.name for system in report.systems][:2] == ["cylinder", "controlled_cylinder"]
    real = report.systems[0].kinds[0]
    assert real.layouts == ("arrow", "hdf5")
    assert dict(real.windows) == {"train": 21, "val": 12, "test": 13}
    assert real.frames == (60, 60)
    assert real.grids == ((8, 16),)
    assert real.missing == real.duplicates == real.problems == ()
    assert any(overlap.first_windows > 0 for overlap in real.overlaps)
    assert json.dumps(report.to_dict())


def test_audit_reports_an_empty_simulated_split(root: Path) -> None:
    numerical = audit(root, ["combustion"]).systems[0].kinds[1]
    assert dict(numerical.windows)["val"] == 0
    assert any("is empty" in problem for problem in numerical.problems)


def test_overlaps_count_windows_that_share_a_frame() -> None:
    lists = {"train": [("a", 0), ("a", 10), ("b", 0)], "test": [("a", 14), ("a", 40), ("c", 0)]}
    assert find_overlaps(lists, 5) == (Overlap("train", "test", 1, 1),)
    assert find_overlaps(lists, 4) == (Overlap("train", "test", 0, 0),)
    assert find_overlaps(lists, 15) == (Overlap("train", "test", 2, 1),)


def test_audit_names_what_is_missing_and_double(copy: Path) -> None:
    folder = copy / "cylinder"
    shutil.rmtree(folder / "hf_dataset" / "real")
    (folder / "real" / "8812.h5").unlink()
    shutil.copy(folder / "real" / "1800.h5", folder / "real" / "1801.h5")
    (folder / "remain_params_real.json").unlink()
    (folder / "remain_params_real.pt").unlink()
    system = audit(copy).systems[0]
    real = system.kinds[0]
    assert real.layouts == ("hdf5",)
    assert real.missing[0] == "8812.h5"
    assert real.missing[1].endswith("remain_params_real.json")
    assert real.duplicates == (("1800.h5", "1801.h5"),)
    assert system.unpaired == ("1801.h5", "8812.h5")


def test_audit_survives_damage(copy: Path) -> None:
    shard = next((copy / "cylinder" / "hf_dataset" / "numerical").glob("*.arrow"))
    shard.write_bytes(b"no")
    (copy / "cylinder" / "hf_dataset" / "test_index_real.json").write_text("{")
    real, numerical = audit(copy).systems[0].kinds
    assert "test_index_real.json" in real.problems[0]
    assert shard.name in numerical.problems[0]


def test_audit_of_nothing_says_so(tmp_path: Path) -> None:
    assert "holds none of" in audit(tmp_path).problems[0]
    with pytest.raises(DataError, match="must be a folder"):
        audit(tmp_path / "absent")


def test_old_data_stay_until_new_ones_are_whole(tmp_path: Path, monkeypatch) -> None:
    write_tiny(tmp_path, ["fsi"], layouts=("hdf5",))
    before = {p: p.read_bytes() for p in (tmp_path / "fsi").rglob("*") if p.is_file()}
    (tmp_path / ".fsi.tmp").mkdir()  # of a killed process
    (tmp_path / ".fsi.tmp" / "half").write_text("x")

    def full(*_: object) -> None:
        raise RuntimeError("No space left on device")

    monkeypatch.setattr("r2no.realpdebench.files.tiny.torch.save", full)
    with pytest.raises(StorageError, match=r"fsi.*No space left.*untouched"):
        write_tiny(tmp_path, ["fsi"], seed=1, layouts=("hdf5",))
    assert {p: p.read_bytes() for p in (tmp_path / "fsi").rglob("*") if p.is_file()} == before
    assert not list(tmp_path.glob(".*"))
