"""Reading: layouts, workers, masks, noise, conditioning, fingerprints."""

import os
import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

from r2no.data.window import Window, Windows, collate
from r2no.realpdebench import SYSTEMS, RealPDEBench, System, lookup


def equal(first: Window, second: Window) -> bool:
    return torch.equal(first.history, second.history) and torch.equal(first.target, second.target)


def rewrite(shards: Path, *, large: bool) -> None:
    """Put all rows of a kind into one record batch of one shard, cut out of a longer batch."""
    paths = sorted(shards.glob("*.arrow"))
    tables = [pa.ipc.open_stream(path.read_bytes()).read_all() for path in paths]
    table = pa.concat_tables([tables[0].slice(0, 1), *tables]).combine_chunks()
    if large:
        fields = [
            field.with_type(pa.large_binary()) if field.type == pa.binary() else field
            for field in table.schema
        ]
        table = table.cast(pa.schema(fields))
    batch = table.to_batches()[0].slice(1)
    for path in paths:
        path.unlink()
    (shards / "state.json").unlink()
    with pa.ipc.new_stream(str(shards / "data-00000-of-00001.arrow"), batch.schema) as sink:
        sink.write_batch(batch)


@pytest.mark.parametrize("kind", ["real", "numerical"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_layouts_give_identical_windows(name: str, kind: str, root: Path) -> None:
    arrow, hdf5 = (
        RealPDEBench(root, name, kind, layout=layout, noise_scale=0.1, seed=3)
        for layout in ("arrow", "hdf5")
    )
    assert arrow.layout == "arrow"
    assert hdf5.layout == "hdf5"
    assert torch.equal(arrow.origins, hdf5.origins)
    assert arrow.fields == hdf5.fields
    assert len(arrow) == len(hdf5) > 0
    assert all(equal(arrow[number], hdf5[number]) for number in range(len(arrow)))


@pytest.mark.parametrize("large", [False, True], ids=["binary", "large_binary"])
@pytest.mark.parametrize("name", ["cylinder", "combustion"])
def test_several_rows_per_batch_give_the_same_windows(
    name: str, large: bool, root: Path, tmp_path: Path
) -> None:
    shutil.copytree(root / name, tmp_path / name)
    rewrite(tmp_path / name / "hf_dataset" / "numerical", large=large)
    before, after = (RealPDEBench(r, name, "numerical", mask_prob=0.0) for r in (root, tmp_path))
    assert len(before) == len(after) > 0
    assert all(equal(before[number], after[number]) for number in range(len(before)))


def test_dataset_follows_the_windows_protocol(root: Path) -> None:
    windows = RealPDEBench(root, "controlled_cylinder", "real", "val")
    assert isinstance(windows, Windows)
    assert windows.fields.grid == (8, 16)
    assert windows.fields.conditioning == ("reynolds", "frequency")
    assert windows.fields.measured == (0, 1)
    trajectory, start = windows.origins[4].tolist()
    assert (windows.names[trajectory], start) == windows.pairs[4]
    assert windows[-1].mask is None
    with pytest.raises(IndexError):
        windows[len(windows)]


def test_conditioning_is_constant_in_the_history(root: Path) -> None:
    windows = RealPDEBench(root, "controlled_cylinder")
    expected = windows.system.values(windows.pairs[0][0])
    for channel, value in zip((3, 4), expected, strict=True):
        assert (windows[0].history[..., channel] == value).all()


def test_real_unmeasured_channels_are_zero(root: Path) -> None:
    assert not RealPDEBench(root, "combustion")[0].history[..., 1:].any()


def test_combustion_observes_first(root: Path) -> None:
    fields = RealPDEBench(root, "combustion", "numerical").fields
    assert fields.channels[:2] == ("observed", "Absolute_Pressure")
    assert fields.measured == (0,)


def test_masks_occur_at_their_rate_and_change_with_the_epoch(root: Path) -> None:
    windows = RealPDEBench(root, "fsi", "numerical", mask_prob=0.5, seed=1)

    def masked() -> list[bool]:
        return [not w.target[..., 2].any() for w in (windows[n] for n in range(len(windows)))]

    first = masked()
    assert masked() == first
    assert 8 <= sum(first) <= 22  # of 30
    windows.set_epoch(1)
    assert masked() != first
    windows.set_epoch(0)
    assert masked() == first


def test_noise_is_proportional_to_the_field(root: Path) -> None:
    clean, noisy = (
        RealPDEBench(root, "foil", "numerical", mask_prob=0.0, noise_scale=scale)[0]
        for scale in (0.0, 0.1)
    )
    nonzero = clean.history != 0
    relative = (noisy.history[nonzero] / clean.history[nonzero] - 1) / 0.1
    assert abs(relative.mean()) < 0.05
    assert abs(relative.std() - 1) < 0.05
    assert (noisy.history[~nonzero] == 0).all()
    target = clean.target != 0
    assert not torch.equal(
        noisy.history[nonzero & target] / clean.history[nonzero & target],
        noisy.target[nonzero & target] / clean.target[nonzero & target],
    )


def test_real_windows_ignore_mask_and_noise(root: Path) -> None:
    plain = RealPDEBench(root, "fsi")[0]
    assert equal(plain, RealPDEBench(root, "fsi", mask_prob=1.0, noise_scale=1.0)[0])


# A spawned process imports PyTorch anew, so there is one of them, for both layouts.
@pytest.mark.parametrize(
    ("context", "workers", "layouts"),
    [("fork", 2, ["arrow"]), ("fork", 2, ["hdf5"]), ("spawn", 1, ["arrow", "hdf5"])],
)
def test_workers_read_the_same_windows(
    context: str, workers: int, layouts: list[str], root: Path
) -> None:
    parts = [
        RealPDEBench(root, "fsi", "numerical", noise_scale=0.1, layout=layout) for layout in layouts
    ]
    windows = ConcatDataset(parts)
    loader = DataLoader(
        windows,
        batch_size=8,
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context=context,
        persistent_workers=True,
    )
    for epoch in (0, 1):
        for part in parts:
            part[0]  # a handle is open in this process
            part.set_epoch(epoch)
        alone = DataLoader(windows, batch_size=8, collate_fn=collate)
        assert all(equal(a, b) for a, b in zip(loader, alone, strict=True))


@pytest.mark.parametrize("layout", ["arrow", "hdf5"])
def test_pickle_carries_no_open_file(layout: str, root: Path) -> None:
    windows = RealPDEBench(root, "cylinder", layout=layout)
    expected = windows[3]
    assert windows.trajectories._handles
    again = pickle.loads(pickle.dumps(windows))
    assert not again.trajectories._handles
    assert equal(again[3], expected)


def test_generator_seeds_the_draws(root: Path) -> None:
    a, b, c = (
        RealPDEBench(root, "fsi", "numerical", seed=torch.Generator().manual_seed(s)).seed
        for s in (1, 1, 2)
    )
    assert a == b != c


def test_settings_override_the_system(root: Path) -> None:
    windows = RealPDEBench(root, "cylinder", history_frames=5, horizon_frames=3, stride=4)
    assert windows[0].history.shape == (5, 2, 4, 3)
    assert windows[0].target.shape == (3, 2, 4, 3)
    changed = RealPDEBench(root, System("cylinder", r"(\d+)\.h5", ("reynolds",), stride=(8, 8)))
    assert changed.fields.grid == (1, 2)


def test_tiny_folder_brings_its_settings(root: Path) -> None:
    assert lookup("cylinder", root).frames == 60
    assert lookup("cylinder").frames == 3990


def test_mapping_files_serve_when_index_files_are_absent(copy: Path) -> None:
    expected = RealPDEBench(copy, "cylinder", "real", "test", test_mode="unseen").pairs
    shutil.rmtree(copy / "cylinder" / "hf_dataset")
    for path in (copy / "cylinder").glob("*_params_*.json"):
        path.unlink()
    windows = RealPDEBench(copy, "cylinder", "real", "test", test_mode="unseen")
    assert windows.index.source == "pt"
    assert windows.pairs == expected


def test_hdf5_without_lists_draws_splits_and_says_so(copy: Path) -> None:
    expected = RealPDEBench(copy, "cylinder", "real", "val", test_mode="in_dist").pairs
    shutil.rmtree(copy / "cylinder" / "hf_dataset")
    for path in (copy / "cylinder").glob("*.pt"):
        path.unlink()
    with pytest.warns(UserWarning, match="drawn anew with seed 0"):
        windows = RealPDEBench(copy, "cylinder", "real", "val", test_mode="in_dist")
    assert windows.pairs == expected


def test_fingerprint_follows_files_and_settings(copy: Path) -> None:
    def found(**settings: float) -> str:
        return RealPDEBench(copy, "cylinder", "numerical", **settings).fingerprint

    first = found()
    assert found() == first
    assert found(mask_prob=0.3) != first
    shard = next((copy / "cylinder" / "hf_dataset" / "numerical").glob("*.arrow"))
    os.utime(shard, ns=(0, 0))
    assert found() == first  # copied anew: the same data
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert found() != first
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    index = copy / "cylinder" / "hf_dataset" / "train_index_numerical.json"
    index.write_text(index.read_text().replace('"time_id": 0', '"time_id": 1'))
    assert found() != first
