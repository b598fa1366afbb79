"""Small networks that can be imported by name, as a user's package would offer them."""

import torch
from torch import Tensor, nn


class FrameMix(nn.Module):
    """(batch, time·channel, *grid) to (batch, frames·channel, *grid) by a matrix."""

    def __init__(self, channels_in: int = 8, channels_out: int = 8, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(0.3 * torch.randn(channels_out, channels_in, generator=generator))

    def forward(self, values: Tensor) -> Tensor:
        return torch.einsum("oi,bi...->bo...", self.weight, values)


def not_a_module() -> int:
    return 3


CONSTANT = 5
