"""DeepONet with a convolutional branch and a nonlinear head, as RealPDEBench trains it."""

from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import BaseModel, PositiveInt, model_validator
from pydantic import Field as Bounded
from torch import Tensor, nn

from r2no.backbones.base import Shape, check_window, unit_grid

#: Three halvings of time, height and width must leave at least one point.
SMALLEST = 8


class DeepONetConfig(BaseModel, frozen=True, extra="forbid"):
    """Shapes are (time, height, width, channel); ``p`` is the width of branch and trunk."""

    shape_in: Shape
    shape_out: Shape
    p: PositiveInt
    dropout_rate: Annotated[float, Bounded(ge=0, lt=1)] = 0.0

    @model_validator(mode="before")
    @classmethod
    def _drop_repeated(cls, fields: Any) -> Any:
        """Published files repeat the channels of both shapes; they must agree, and are dropped."""
        if not isinstance(fields, dict):
            return fields
        fields = dict(fields)
        for name, shape in (("input_channels", "shape_in"), ("output_channels", "shape_out")):
            channels = list(fields.get(shape, ()))[-1:]
            if name in fields and [stated := fields.pop(name)] != channels:
                raise ValueError(
                    f"`{name}` must be the last entry of `{shape}`, but got {stated} and "
                    f"{fields.get(shape)}."
                )
        return fields

    @model_validator(mode="after")
    def _check(self) -> "DeepONetConfig":
        if min(self.shape_in[:3]) < SMALLEST:
            raise ValueError(
                f"Time, height and width of `shape_in` must be at least {SMALLEST}, "
                f"but got {self.shape_in}."
            )
        if self.shape_in[1:3] != self.shape_out[1:3]:
            raise ValueError(
                f"Both shapes must share one grid, but got {self.shape_in} -> {self.shape_out}."
            )
        return self


class Branch(nn.Module):
    """The history as one vector: four convolutions, then two linear layers."""

    def __init__(self, channels: int, p: int, dropout_rate: float) -> None:
        super().__init__()
        self.conv1 = _convolution(channels, 32, nn.MaxPool3d(2))
        self.conv2 = _convolution(32, 64, nn.MaxPool3d(2))
        self.conv3 = _convolution(64, 128, nn.MaxPool3d(2))
        self.conv4 = _convolution(128, 256, nn.AdaptiveAvgPool3d((1, 4, 4)))
        self.fc = nn.Sequential(
            nn.Linear(256 * 4 * 4, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout_rate),
            nn.Linear(512, p),
        )

    def forward(
        self, x: Float[Tensor, "batch channel time height width"]
    ) -> Float[Tensor, "batch p"]:
        """One vector per window."""
        return self.fc(self.conv4(self.conv3(self.conv2(self.conv1(x)))).flatten(1))


class Trunk(nn.Module):
    """A coordinate (time, height, width) as one vector."""

    def __init__(self, p: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(3, 64),
            nn.ReLU(inplace=True),
            nn.Linear(64, 128),
            nn.ReLU(inplace=True),
            nn.Linear(128, p),
        )

    def forward(self, points: Float[Tensor, "*point 3"]) -> Float[Tensor, "*point p"]:
        """One vector per coordinate, without a final activation."""
        return self.fc(points)


class DeepONet(nn.Module):
    """A branch for the history, a trunk for the coordinate, and a network on their product.

    Not the classical DeepONet: the inner product is replaced by the elementwise product b ⊙ t
    and an MLP. The trunk does not see the window, so it runs once per batch.
    """

    grid: Tensor

    def __init__(self, config: DeepONetConfig) -> None:
        super().__init__()
        self.config = config
        channels_out, rate = config.shape_out[3], config.dropout_rate
        self.branch = Branch(config.shape_in[3], config.p, rate)
        self.trunk = Trunk(config.p)
        self.output_net = nn.Sequential(
            nn.Linear(config.p, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(rate),
            nn.Linear(512, 128),
            nn.ReLU(inplace=True),
            nn.Dropout(rate),
            nn.Linear(128, channels_out),
        )
        self.register_buffer("grid", unit_grid(config.shape_out[:3]), persistent=False)

    def forward(
        self, x: Float[Tensor, "batch time_in height width channel_in"]
    ) -> Float[Tensor, "batch time_out height width channel_out"]:
        """Predict the next window, in normalised units."""
        check_window(x, self.config.shape_in)
        branch = self.branch(x.movedim(-1, 1))
        frames = [self._frame(branch, points) for points in self.grid]
        return torch.stack(frames, dim=1)

    def _frame(
        self, branch: Float[Tensor, "batch p"], points: Float[Tensor, "height width 3"]
    ) -> Float[Tensor, "batch height width channel_out"]:
        """One frame; apart, since the widest layer over a whole window exceeds any cache."""
        return self.output_net(branch[:, None, None] * self.trunk(points))


def _convolution(channels: int, width: int, pool: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(channels, width, 3, padding=1),
        nn.BatchNorm3d(width),
        nn.ReLU(inplace=True),
        pool,
    )
