"""Shared fixtures: one thread (tests run beside each other), seeded generators, small windows."""

import pytest
import torch

from r2no.data import ArrayWindows
from tests.support.waves import travelling_wave

torch.set_num_threads(1)


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
