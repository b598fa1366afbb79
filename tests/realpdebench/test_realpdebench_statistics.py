"""Statistics: exact by default, cached under the data's fingerprint."""

import contextlib
import os
from pathlib import Path

import pytest
import torch

from r2no.errors import ConfigError, DataError, EmptySplitError, FileDamagedError
from r2no.realpdebench import RealPDEBench, fit_statistics, load_benchmark_normalisers


@pytest.fixture
def windows(root: Path) -> RealPDEBench:
    return RealPDEBench(root, "cylinder", "numerical", seed=2)


def stacked(windows: RealPDEBench) -> torch.Tensor:
    values = torch.stack([windows[number].history for number in range(len(windows))])
    return values.reshape(-1, values.shape[-1]).double()


def test_default_variance_is_exact(windows: RealPDEBench) -> None:
    history = fit_statistics(windows).normalisers("gaussian").history
    std, mean = torch.std_mean(stacked(windows), dim=0, correction=0)
    torch.testing.assert_close(history.shift, mean.float())
    torch.testing.assert_close(history.scale, std.float())


def test_one_batch_of_all_windows_is_exact(windows: RealPDEBench) -> None:
    exact = fit_statistics(windows).history
    benchmark = fit_statistics(windows, compat="benchmark").history  # 41 windows in one of 512
    torch.testing.assert_close(exact.spread, benchmark.spread)
    small = fit_statistics(windows, compat="benchmark", batch_size=4).history
    assert (small.spread[:1] < exact.spread[:1]).all()
    torch.testing.assert_close(small.mean, exact.mean)


def test_range_and_none(windows: RealPDEBench) -> None:
    statistics = fit_statistics(windows)
    torch.testing.assert_close(
        statistics.normalisers("range").history.scale, stacked(windows).abs().amax(0).float()
    )
    window = windows[0]
    assert torch.equal(statistics.normalisers("none").target(window.target), window.target)
    with pytest.raises(ConfigError, match="`method`"):
        statistics.normalisers("gauss")


def test_workers_do_not_change_statistics(windows: RealPDEBench) -> None:
    alone, together = fit_statistics(windows), fit_statistics(windows, workers=2)
    assert torch.equal(alone.target.spread, together.target.spread)


def test_cache_notices_changed_files(copy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = fit_statistics(RealPDEBench(copy, "cylinder"), cache=cache)
    again = fit_statistics(RealPDEBench(copy, "cylinder"), cache=cache)
    assert torch.equal(first.history.mean, again.history.mean)
    assert len(list(cache.iterdir())) == 1
    fit_statistics(RealPDEBench(copy, "cylinder"), compat="benchmark", cache=cache)
    files = sorted((copy / "cylinder" / "hf_dataset" / "real").glob("*.arrow"))
    for path in files:
        os.utime(path, ns=(1, 1))  # as a copy made at another time
    fit_statistics(RealPDEBench(copy, "cylinder"), cache=cache)
    assert len(list(cache.iterdir())) == 2
    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    fit_statistics(RealPDEBench(copy, "cylinder"), cache=cache)
    assert len(list(cache.iterdir())) == 3


def test_damaged_cache_is_named(windows: RealPDEBench, tmp_path: Path) -> None:
    fit_statistics(windows, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileDamagedError, match=path.name):
        fit_statistics(windows, cache=tmp_path)


def test_empty_split_has_no_statistics(root: Path) -> None:
    empty = RealPDEBench(root, "fsi", "real", "val", test_mode="in_dist")
    with pytest.raises(EmptySplitError):
        fit_statistics(empty)


def test_benchmark_cache_files_are_read(tmp_path: Path) -> None:
    means, stds = (torch.rand(3), torch.rand(3)), (torch.rand(3), torch.tensor([1.0, 0.0, 2.0]))
    torch.save((*means, *stds), tmp_path / "mean_std.pt")
    torch.save(stds, tmp_path / "max.pt")
    gaussian = load_benchmark_normalisers(tmp_path / "mean_std.pt")
    assert torch.equal(gaussian.history.shift, means[0])
    assert torch.equal(gaussian.target.scale, torch.tensor([1.0, 1.0, 2.0]))
    assert torch.equal(load_benchmark_normalisers(tmp_path / "max.pt").history.scale, stds[0])


@pytest.mark.parametrize(
    "content",
    [
        (),
        (torch.ones(2),),
        "text",
        7,
        None,
        (1.0, 2.0),
        {"a": 1, "b": 2},
        torch.ones(2, 3),
        (torch.ones(3), torch.ones(3), torch.ones(2), torch.ones(3)),
        (torch.ones(3), -torch.ones(3)),
        (torch.ones(3), torch.full((3,), float("nan"))),
    ],
)
def test_other_cache_content_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "mean_std.pt")
    with pytest.raises(FileDamagedError, match=r"mean_std\.pt"):
        load_benchmark_normalisers(tmp_path / "mean_std.pt")


def test_no_damage_to_a_cache_escapes(tmp_path: Path) -> None:
    path = tmp_path / "max.pt"
    torch.save((torch.ones(3), torch.ones(3)), path)
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        changed = bytearray(content)
        changed[position] ^= 0x15
        path.write_bytes(changed)
        with contextlib.suppress(FileDamagedError):
            load_benchmark_normalisers(path)
    with pytest.raises(DataError, match="no file"):
        load_benchmark_normalisers(tmp_path / "absent.pt")


def test_cache_that_would_execute_is_refused(tmp_path: Path) -> None:
    torch.save((Path("x"),), tmp_path / "max.pt")
    with pytest.raises(FileDamagedError, match="not executed"):
        load_benchmark_normalisers(tmp_path / "max.pt")
