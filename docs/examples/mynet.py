"""A network of one's own: frames and channels share one axis, (batch, frame x channel, y, x)."""

import torch
from torch import Tensor, nn


class Forecaster(nn.Module):
    """Four frames of u and v in, the next four out."""

    def __init__(self, frames: int = 4, channels: int = 2, width: int = 12) -> None:
        super().__init__()
        size = frames * channels
        self.first = nn.Conv2d(size, width, 5, padding=2, padding_mode="circular")
        self.last = nn.Conv2d(width, size, 5, padding=2, padding_mode="circular")

    def forward(self, history: Tensor) -> Tensor:
        """The forecast, in the units of the history."""
        return self.last(torch.tanh(self.first(history)))
