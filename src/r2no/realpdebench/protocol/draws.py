"""Masking and noise of simulated windows, each a pure function of (seed, epoch, window number).

So a run repeats whatever the number of workers and the order of reading.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from r2no.realpdebench.systems import Number


def window_generator(seed: int, epoch: int, number: int) -> torch.Generator:
    """The random stream of one window in one epoch."""
    state = np.random.SeedSequence([seed, epoch, number]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) >> 1)


def draw_mask(probability: Number, generator: torch.Generator) -> bool:
    """True, with the given probability, if the unmeasured channels are to be zero."""
    return bool(torch.rand((), generator=generator) < probability)


def add_noise(
    values: Float[Tensor, "*axes"], scale: Number, generator: torch.Generator
) -> Float[Tensor, "*axes"]:
    """Multiplicative Gaussian noise, x + x n s with n ~ N(0, 1)."""
    noise = torch.randn(values.shape, generator=generator)
    return noise.mul_(scale).add_(1.0).mul_(values)
