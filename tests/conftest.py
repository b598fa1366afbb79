"""Shared fixtures: one thread (tests run beside each other), seeded generators, small windows."""

from pathlib import Path

import pytest
import torch

from r2no.data import ArrayWindows
from tests.support.waves import travelling_wave

torch.set_num_threads(1)

#: Files that take longest come first, so that no worker begins one when the others are done.
LONG = (
    "cli/test_cli_chain.py",
    "adaptation/test_export.py",
    "cli/test_cli_ranks.py",
    "wake/test_demo.py",
    "training/test_distributed.py",
    "adaptation/test_starts.py",
    "test_attacks.py",
    "runs/test_own.py",
    "test_docs.py",
    "realpdebench/test_bench_device.py",
    "realpdebench/test_bench_jobs.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by file, the long ones first; the order within a file stays."""
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(LONG)}
    gone = [str(path) for path in place if not path.is_file()]
    if gone:
        raise pytest.UsageError(f"`LONG` in tests/conftest.py names files that are gone: {gone}")
    items.sort(key=lambda item: place.get(item.path, len(LONG)))


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def windows() -> dict[str, ArrayWindows]:
    """Splits of a toy problem: 4 + 4 frames on 8 x 12, channel 0 measured."""

    def split(seeds: range) -> ArrayWindows:
        return ArrayWindows(
            [travelling_wave(seed) for seed in seeds], 4, 4, stride=3, measured=(0,)
        )

    return {"train": split(range(2)), "fit": split(range(10, 13)), "test": split(range(20, 22))}
