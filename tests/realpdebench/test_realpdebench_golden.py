"""Windows, splits and statistics agree with what the benchmark's own loader returned."""

import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from r2no.realpdebench import (
    SYSTEMS,
    RealPDEBench,
    draw_splits,
    fit_statistics,
    tiny_system,
)
from r2no.realpdebench.files.folder import GROUPS, Folder
from r2no.storage import read_json

GOLDEN = Path(__file__).parents[1] / "golden" / "realpdebench"
KINDS = ("real", "numerical")


def sha256(values: Tensor) -> str:
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()


def open_key(root: Path, name: str, kind: str, key: str, layout: str) -> RealPDEBench:
    split, mode, blocks = [*key.split("|"), "all", "N1"][:3] if "|" not in key else key.split("|")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is empty, as released.*")
        return RealPDEBench(
            root,
            name,
            kind,
            split,
            mask_prob=0.0,
            test_mode=mode,
            autoregressive=int(blocks[1:]),
            layout=layout,
        )


def cases(golden: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for kind in KINDS:
        for key, expected in golden["types"][kind]["splits"].items():
            yield kind, key, expected


@pytest.mark.parametrize("layout", ["arrow", "hdf5"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_windows_equal_golden_bit_for_bit(
    name: str, layout: str, root: Path, golden: dict[str, Any]
) -> None:
    for kind, key, expected in cases(golden[name]):
        windows = open_key(root, name, kind, key, layout)
        assert [list(pair) for pair in windows.pairs] == expected["pairs"], (kind, key)
        assert len(windows) == expected["n"]
        for end, number in (("first", 0), ("last", -1)):
            if f"{end}_sha256" not in expected:
                continue
            window = windows[number]
            assert [*map(sha256, window[:2])] == expected[f"{end}_sha256"], (kind, key, end)
            assert list(window.history.shape) == expected["input_shape"]
            assert list(window.target.shape) == expected["target_shape"]


@pytest.mark.parametrize("name", SYSTEMS)
def test_stored_windows_equal_golden_arrays(name: str, root: Path, golden: dict[str, Any]) -> None:
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        for kind, key, expected in cases(golden[name]):
            stem = f"{kind}/{key.replace('|', '.')}/first"
            if f"{stem}/input" not in arrays:
                continue
            window = open_key(root, name, kind, key, "arrow")[0]
            t, h, w = expected["stored_stride_thw"]
            for part, values in (("input", window.history), ("target", window.target)):
                np.testing.assert_array_equal(values[::t, ::h, ::w], arrays[f"{stem}/{part}"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SYSTEMS)
def test_drawn_splits_equal_golden(name: str, kind: str, golden: dict[str, Any]) -> None:
    expected = golden[name]["types"][kind]
    system = tiny_system(name)
    drawn = draw_splits(system, kind, golden_names(expected), seed=0)
    for group in ("in_dist", "out_dist", "remain"):
        assert sorted(getattr(drawn, group)) == sorted(expected["groups"][group])
    for split in ("train", "val", "test"):
        assert [list(pair) for pair in drawn.windows[split]] == expected["splits"][split]["pairs"]


def golden_names(expected: dict[str, Any]) -> list[str]:
    return [name for group in expected["groups"].values() for name in group]


@pytest.mark.parametrize("name", SYSTEMS)
def test_groups_on_disk_equal_golden(name: str, root: Path, golden: dict[str, Any]) -> None:
    for kind in KINDS:
        for group, names in zip(
            GROUPS, golden[name]["types"][kind]["groups"].values(), strict=True
        ):
            assert sorted(read_json(Folder(root, name).group(kind, group))) == sorted(names)


@pytest.mark.parametrize("name", SYSTEMS)
def test_statistics_equal_golden(name: str, root: Path, golden: dict[str, Any]) -> None:
    for key, expected in golden[name]["normalizer"].items():
        if not key.startswith(KINDS):
            continue
        kind, mask, batch = key.split("|")
        windows = RealPDEBench(root, name, kind, mask_prob=float(mask[-1]))
        statistics = fit_statistics(windows, compat="benchmark", batch_size=int(batch[5:]))
        for side, moments in (("inputs", statistics.history), ("targets", statistics.target)):
            std = (moments.spread / moments.count).sqrt()
            for label, found in (("mean", moments.mean), ("std", std), ("max", moments.peak)):
                stored = torch.tensor(expected[f"{label}_{side}"], dtype=torch.float64)
                torch.testing.assert_close(found, stored, rtol=2e-5, atol=1e-7, msg=f"{key}")


@pytest.mark.parametrize("method", ["gaussian", "range"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_normalised_window_equals_golden(name: str, method: str, root: Path) -> None:
    source = RealPDEBench(root, name, "numerical", mask_prob=0.0)
    normalisers = fit_statistics(source, compat="benchmark").normalisers(method)
    window = RealPDEBench(root, name, "real", "test")[0]
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        for part, normaliser, values in (
            ("input", normalisers.history, window.history),
            ("target", normalisers.target, window.target),
        ):
            stored = torch.from_numpy(arrays[f"norm/{method}/{part}"])
            found = normaliser(values)[::4, ::2, ::2]
            torch.testing.assert_close(found, stored, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SYSTEMS)
def test_full_mask_keeps_measured_channels_only(
    name: str, root: Path, golden: dict[str, Any]
) -> None:
    window = RealPDEBench(root, name, "numerical", mask_prob=1.0)[0]
    kept = window.target.flatten(0, -2).any(dim=0).tolist()
    assert kept == golden[name]["numerical_masked_nonzero_channels"]


def test_summary_counts_agree(root: Path) -> None:
    counts = read_json(GOLDEN / "summary.json")["window_counts"]
    for name, kinds in counts.items():
        for kind, keys in kinds.items():
            for key, expected in keys.items():
                assert len(open_key(root, name, kind, key, "auto")) == expected, (name, kind, key)
