"""Small networks that can be imported by name, as a user's package would offer them."""

import torch
from torch import Tensor, nn


class FrameMix(nn.Module):
    """(batch, time·channel, *grid) to (batch, frames·channel, *grid) by a matrix."""

    def __init__(self, channels_in: int = 8, channels_out: int = 8, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(
            0.3 * torch.randn(channels_out, channels_in, generator=generator)
        )

    def forward(self, values: Tensor) -> Tensor:
        return torch.einsum("oi,bi...->bo...", self.weight, values)


def not_a_module() -> int:
    return 3


CONSTANT = 5


class LastFrame(nn.Module):
    """r2no's own convention: the last frame repeated, times a factor."""

    def __init__(self, frames: tuple[int, int]) -> None:
        super().__init__()
        assert isinstance(frames, tuple)
        self.horizon = frames[0]
        self.factor = nn.Parameter(torch.tensor(0.8))

    def forward(self, history: Tensor) -> Tensor:
        return self.factor * history[:, -1:].expand(-1, self.horizon, -1, -1, -1)


class Restless(FrameMix):
    """Dropout that is never switched off."""

    def forward(self, values: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(values), 0.1, training=True)
