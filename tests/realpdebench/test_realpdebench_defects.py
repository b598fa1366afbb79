"""Damaged, incomplete and misnamed data: a named error that says what to do."""

import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch

from r2no.errors import (
    ConfigError,
    DataError,
    FileDamagedError,
    GridMismatchError,
    NonFiniteError,
)
from r2no.realpdebench import RealPDEBench, audit


def shards(root: Path, kind: str = "real") -> list[Path]:
    return sorted((root / "cylinder" / "hf_dataset" / kind).glob("*.arrow"))


def load(path: Path) -> pa.Table:
    return pa.ipc.open_stream(path.read_bytes()).read_all()


def edit(path: Path, change) -> None:
    """Rewrite a shard after ``change`` acted on its rows (a list of dictionaries)."""
    table = load(path)
    rows = table.to_pylist()
    change(rows)
    with pa.ipc.new_stream(str(path), table.schema) as sink:
        sink.write_table(pa.Table.from_pylist(rows, table.schema), max_chunksize=1)


@pytest.mark.parametrize(
    ("name", "near"),
    [("cylnder", "cylinder"), ("Controlled-Cylinder", "controlled_cylinder"), ("fois", "foil")],
)
def test_misspelt_system_names_the_nearest(name: str, near: str, root: Path) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{near}'"):
        RealPDEBench(root, name)


@pytest.mark.parametrize(
    "argument",
    [
        {"kind": "simulated"},
        {"split": "training"},
        {"layout": "zarr"},
        {"test_mode": "in"},
        {"mask_prob": 1.5},
        {"noise_scale": -1.0},
        {"autoregressive": 0},
        {"stride": 0},
        {"seed": -1},
        {"incomplete": "ignore"},
    ],
    ids=lambda argument: next(iter(argument)),
)
def test_wrong_argument_is_named(argument: dict, root: Path) -> None:
    with pytest.raises(ConfigError, match=f"`{next(iter(argument))}`"):
        RealPDEBench(root, "cylinder", **argument)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no folder"):
        RealPDEBench(tmp_path, "cylinder")


def test_missing_kind_lists_what_was_looked_for(copy: Path) -> None:
    shutil.rmtree(copy / "cylinder" / "numerical")
    shutil.rmtree(copy / "cylinder" / "hf_dataset" / "numerical")
    with pytest.raises(DataError, match="No trajectories of kind `numerical`"):
        RealPDEBench(copy, "cylinder", "numerical")


def test_first_release_is_recognised(copy: Path) -> None:
    shutil.rmtree(copy / "cylinder" / "real")
    folder = copy / "cylinder" / "hf_dataset"
    (folder / "real").rename(folder / "real_train")
    with pytest.raises(DataError, match="first release's layout"):
        RealPDEBench(copy, "cylinder")


@pytest.mark.parametrize("split", ["train", "val"])
def test_missing_index_is_named(split: str, copy: Path) -> None:
    (copy / "cylinder" / "hf_dataset" / f"{split}_index_real.json").unlink()
    for path in (copy / "cylinder").glob("*.pt"):
        path.unlink()
    with pytest.raises(DataError, match=f"{split}_index_real.json"):
        RealPDEBench(copy, "cylinder", split=split, layout="arrow")


def test_missing_simulated_index_is_an_empty_split_and_says_so(copy: Path) -> None:
    (copy / "cylinder" / "hf_dataset" / "val_index_numerical.json").unlink()
    with pytest.warns(UserWarning, match="val split of the simulated data is empty"):
        windows = RealPDEBench(copy, "cylinder", "numerical", "val")
    assert len(windows) == 0
    assert windows.origins.shape == (0, 2)
    assert windows.fields.grid == (8, 16)
    assert windows.fingerprint


@pytest.mark.parametrize("content", ["[{", '[{"sim": 1}]', "3"], ids=["cut", "keys", "type"])
def test_damaged_index_is_named(content: str, copy: Path) -> None:
    (copy / "cylinder" / "hf_dataset" / "train_index_real.json").write_text(content)
    with pytest.raises(FileDamagedError, match=r"train_index_real\.json"):
        RealPDEBench(copy, "cylinder")


def test_missing_groups_name_file_and_switch(copy: Path) -> None:
    for path in (copy / "cylinder").glob("in_dist_test_params_real.*"):
        path.unlink()
    with pytest.raises(DataError, match=r"test_mode='unseen'.*in_dist_test_params_real.json"):
        RealPDEBench(copy, "cylinder", split="test", test_mode="unseen")
    assert len(RealPDEBench(copy, "cylinder", split="test", test_mode="seen")) == 5


def test_missing_shard_names_trajectories_and_can_be_skipped(copy: Path) -> None:
    lost = shards(copy)[0]
    lost.unlink()
    with pytest.raises(DataError, match=lost.name):
        RealPDEBench(copy, "cylinder", layout="arrow")
    with pytest.warns(UserWarning, match="windows were left out"):
        windows = RealPDEBench(copy, "cylinder", layout="arrow", incomplete="skip")
    assert 0 < len(windows) < 21


def test_missing_shard_that_no_window_needs_is_fine(copy: Path) -> None:
    index = copy / "cylinder" / "hf_dataset" / "train_index_real.json"
    index.write_text('[{"sim_id": "8812.h5", "time_id": 2}]')
    shards(copy)[0].unlink()
    assert len(RealPDEBench(copy, "cylinder", layout="arrow")) == 1


def test_missing_hdf5_file_is_named(copy: Path) -> None:
    (copy / "cylinder" / "real" / "8812.h5").unlink()
    with pytest.raises(DataError, match=r"1 trajectories that are not there: 8812\.h5"):
        RealPDEBench(copy, "cylinder", layout="hdf5")
    assert len(RealPDEBench(copy, "cylinder", layout="hdf5", exclude=("8812.h5",))) < 21


def test_missing_surrogate_is_named(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "combustion", tmp_path / "combustion")
    (tmp_path / "combustion" / "surrogate" / "40NH3_1.1.h5").unlink()
    with pytest.raises(DataError, match=r"surrogate.40NH3_1\.1\.h5"):
        RealPDEBench(tmp_path, "combustion", "numerical", layout="hdf5")


@pytest.mark.parametrize("keep", [0, 100, 0.5, -8], ids=["empty", "head", "half", "end mark"])
def test_truncated_arrow_file_is_refused(keep: float, copy: Path) -> None:
    path = shards(copy)[1]
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if keep == 0.5 else int(keep)])
    with pytest.raises(FileDamagedError, match=path.name):
        RealPDEBench(copy, "cylinder")


def test_overwritten_arrow_file_is_refused(copy: Path) -> None:
    path = shards(copy)[1]
    path.write_bytes(b"\x01" * 400 + b"\xff" * 4 + b"\x00" * 4)
    with pytest.raises(FileDamagedError, match=path.name):
        RealPDEBench(copy, "cylinder")


def test_truncated_hdf5_file_is_refused(copy: Path) -> None:
    path = copy / "cylinder" / "real" / "8812.h5"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(FileDamagedError, match=r"8812\.h5"):
        RealPDEBench(copy, "cylinder", layout="hdf5")


def test_unsafe_mapping_file_is_not_executed(copy: Path) -> None:
    shutil.rmtree(copy / "cylinder" / "hf_dataset")
    torch.save(
        {"train": Path("never"), "val": [], "test": []},
        copy / "cylinder" / "sim_id_mapping_real.pt",
    )
    with pytest.raises(FileDamagedError, match="not executed"):
        RealPDEBench(copy, "cylinder")


def test_float64_cells_are_refused(copy: Path) -> None:
    def widen(rows: list[dict]) -> None:
        rows[0]["u"] = np.frombuffer(rows[0]["u"], "<f4").astype("<f8").tobytes()

    edit(shards(copy)[0], widen)
    with pytest.raises(DataError, match=r"`u` of .* must be float32.*float64\?"):
        RealPDEBench(copy, "cylinder")


def test_text_in_hdf5_is_refused(copy: Path) -> None:
    with h5py.File(copy / "cylinder" / "real" / "8812.h5", "a") as archive:
        shape = archive["measured_data/u"].shape
        del archive["measured_data/u"]
        archive["measured_data/u"] = np.full(shape, b"x")
    with pytest.raises(DataError, match="must hold real numbers"):
        RealPDEBench(copy, "cylinder", layout="hdf5")


def test_wrong_column_type_is_refused(copy: Path) -> None:
    path = shards(copy)[0]
    table = load(path)
    position = table.schema.get_field_index("u")
    table = table.set_column(position, "u", pa.array(["text"] * table.num_rows))
    with pa.ipc.new_stream(str(path), table.schema) as sink:
        sink.write_table(table)
    with pytest.raises(DataError, match="must be binary float32, but is string"):
        RealPDEBench(copy, "cylinder")


def test_compressed_shard_is_refused(copy: Path) -> None:
    path = shards(copy)[0]
    table = load(path)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(str(path), table.schema, options=options) as sink:
        sink.write_table(table)
    with pytest.raises(DataError, match="compressed"):
        RealPDEBench(copy, "cylinder")


def test_null_measured_array_is_refused(copy: Path) -> None:
    edit(shards(copy)[0], lambda rows: rows[1].update(v=None))
    with pytest.raises(DataError, match="has no `v`"):
        RealPDEBench(copy, "cylinder")


def test_null_pressure_counts_as_unmeasured(copy: Path) -> None:
    for path in shards(copy, "numerical"):
        edit(path, lambda rows: rows[0].update(p=None))
    window = RealPDEBench(copy, "cylinder", "numerical", mask_prob=0.0)[0]
    assert not window.target[..., 2].any()
    assert window.target[..., 0].any()


@pytest.mark.parametrize("layout", ["arrow", "hdf5"])
def test_non_finite_frame_is_named(layout: str, copy: Path) -> None:
    def spoil(rows: list[dict]) -> None:
        for row in rows:
            values = np.frombuffer(row["v"], "<f4").reshape(60, 8, 16).copy()
            values[41, 3, 5] = np.nan
            row["v"] = values.tobytes()

    for path in shards(copy):
        edit(path, spoil)
    for path in (copy / "cylinder" / "real").glob("*.h5"):
        with h5py.File(path, "a") as archive:
            archive["measured_data/v"][41, 3, 5] = np.inf
    windows = RealPDEBench(copy, "cylinder", layout=layout)
    number = next(n for n, (_, start) in enumerate(windows.pairs) if start >= 5)
    with pytest.raises(NonFiniteError, match=f"`{windows.pairs[number][0]}`.* frame 41, in v"):
        windows[number]


def test_windows_past_the_end_are_refused(root: Path) -> None:
    with pytest.raises(DataError, match="which has 60 frames"):
        RealPDEBench(root, "cylinder", horizon_frames=35)
    with pytest.raises(DataError, match="do not fit their trajectory"):
        RealPDEBench(root, "cylinder", autoregressive=3)
    with pytest.warns(UserWarning, match="left out"):
        assert len(RealPDEBench(root, "cylinder", horizon_frames=35, incomplete="skip")) > 0


def test_differing_grids_are_refused(copy: Path) -> None:
    def halve(rows: list[dict]) -> None:
        for row in rows:
            row["shape_h"], row["shape_w"] = 4, 32

    edit(shards(copy)[0], halve)
    with pytest.raises(GridMismatchError, match="share one grid"):
        RealPDEBench(copy, "cylinder")


def test_double_rows_are_refused(copy: Path) -> None:
    edit(shards(copy)[0], lambda rows: rows.append(rows[0]))
    with pytest.raises(DataError, match="stored twice"):
        RealPDEBench(copy, "cylinder")


def test_newer_data_version_is_refused(copy: Path) -> None:
    (copy / "version.json").write_text(json.dumps({"min_code_version": "0.10.0"}))
    with pytest.raises(DataError, match=r"0\.10\.0"):
        RealPDEBench(copy, "cylinder")


def test_unreadable_version_is_ignored_aloud(copy: Path) -> None:
    (copy / "version.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"version\.json"):
        RealPDEBench(copy, "cylinder")


def test_file_changed_after_opening_is_refused(copy: Path) -> None:
    windows = RealPDEBench(copy, "cylinder")
    for path in shards(copy):
        path.write_bytes(path.read_bytes() + b"\x00")
    with pytest.raises(FileDamagedError, match="after the data set was opened"):
        windows[0]


@pytest.mark.parametrize("keep", [0.3, 0.99])
def test_file_cut_while_mapped_is_refused(keep: float, copy: Path) -> None:
    windows = RealPDEBench(copy, "cylinder")
    for number in range(len(windows)):
        windows[number]
    for path in shards(copy):
        with path.open("r+b") as stream:
            stream.truncate(int(keep * path.stat().st_size))
    with pytest.raises(FileDamagedError, match="after the data set was opened"):
        windows[0]


def cut(path: Path) -> None:
    os.truncate(path, 5000)


def overwrite(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("layout", ["arrow", "hdf5"])
@pytest.mark.parametrize("change", [cut, overwrite])
def test_files_changed_while_open_are_refused(layout: str, change, copy: Path) -> None:
    windows = RealPDEBench(copy, "cylinder", "real", "train", layout=layout)
    assert windows[0].history.isfinite().all()  # every file needed is open by now
    for path in [*shards(copy), *(copy / "cylinder" / "real").glob("*.h5")]:
        change(path)
    for number in range(len(windows)):
        with pytest.raises(FileDamagedError, match="after the data set was opened"):
            windows[number]


def test_damaged_chunk_of_an_hdf5_file_is_named(copy: Path) -> None:
    path = sorted((copy / "cylinder" / "real").glob("*.h5"))[0]
    with h5py.File(path, "r+") as archive:
        for name in ("u", "v"):
            values = archive[f"measured_data/{name}"][...]
            del archive[f"measured_data/{name}"]
            archive.create_dataset(
                f"measured_data/{name}", data=values, chunks=(5, *values.shape[1:]), fletcher32=True
            )
        place = archive["measured_data/u"].id.get_chunk_info(0).byte_offset
    with path.open("r+b") as stream:
        stream.seek(place)
        stream.write(b"\xff" * 40)
    trajectories = RealPDEBench(copy, "cylinder", "real", layout="hdf5").trajectories
    with pytest.raises(FileDamagedError, match=r"Frames 0 to 5 of .*cannot be read"):
        trajectories.read(path.name, 0, 5, stride=1, unmeasured=False)


def test_shards_that_are_not_listed_do_not_count(copy: Path) -> None:
    state = copy / "cylinder" / "hf_dataset" / "real" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "_data_files": []}))
    with pytest.raises(DataError, match="holds no trajectory"):
        RealPDEBench(copy, "cylinder", "real", "train", layout="arrow", incomplete="skip")
    assert audit(copy).systems[0].kinds[0].problems


def test_settings_missing_from_a_small_data_set_are_named(copy: Path) -> None:
    (copy / "cylinder" / "tiny.json").write_text("{}")
    with pytest.raises(FileDamagedError, match="in_step"):
        RealPDEBench(copy, "cylinder")


def test_audit_counts_windows_whose_fields_are_not_fetched(copy: Path) -> None:
    whole = audit(copy).systems[0].kinds[0]
    for path in shards(copy):
        path.unlink()
    shutil.rmtree(copy / "cylinder" / "real")
    found = audit(copy).systems[0].kinds[0]
    assert found.windows == whole.windows
    assert (found.trajectories, found.frames) == ((), (0, 0))
    assert "Fetch the shards" in found.problems[0]


def test_audit_goes_on_after_a_damaged_file(copy: Path) -> None:
    shutil.rmtree(copy / "cylinder" / "hf_dataset" / "real")
    first, *others = sorted((copy / "cylinder" / "real").glob("*.h5"))
    cut(first)
    found = audit(copy).systems[0].kinds[0]
    assert found.trajectories == tuple(path.name for path in others)
    assert first.name in found.problems[0]
    assert dict(found.windows)["train"] > 0


def test_name_outside_the_pattern_is_refused(root: Path) -> None:
    with pytest.raises(DataError, match="does not follow"):
        RealPDEBench(root, "controlled_cylinder").system.values("1800.h5")
