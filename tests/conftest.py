"""Shared fixtures: one thread (tests run beside each other), seeded generators, small windows."""

import pytest
import torch

from r2no.data import ArrayWindows

torch.set_num_threads(1)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def travelling_wave(seed: int, frames: int = 40, grid: tuple[int, int] = (8, 12)) -> torch.Tensor:
    """A smooth two-channel field that moves, with a little noise; the second is unmeasured (0)."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(frames)[:, None, None]
    y = torch.arange(grid[0])[None, :, None] / grid[0]
    x = torch.arange(grid[1])[None, None, :] / grid[1]
    phase = 6.283 * torch.rand((), generator=generator)
    wave = torch.sin(6.283 * (x - 0.05 * time) + phase) + 0.3 * torch.cos(
        12.566 * (y + 0.03 * time)
    )
    noise = 0.05 * torch.randn(wave.shape, generator=generator)
    return torch.stack([wave + noise, torch.zeros_like(wave)], -1)


@pytest.fixture
def windows() -> dict[str, ArrayWindows]:
    """Splits of a toy problem: 4 + 4 frames on 8 x 12, channel 0 measured."""

    def split(seeds: range) -> ArrayWindows:
        return ArrayWindows(
            [travelling_wave(seed) for seed in seeds], 4, 4, stride=3, measured=(0,)
        )

    return {"train": split(range(2)), "fit": split(range(10, 13)), "test": split(range(20, 22))}
