"""A travelling wave, the field of most toy problems."""

import torch


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
