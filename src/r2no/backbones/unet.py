"""U-Net over space and time with factorised attention, from a video diffusion model.

Inside, windows stay (batch, time, height, width, channel); convolutions see the same memory with
the channel axis moved to the front, so nothing is copied between layers.
"""

from itertools import pairwise

import torch
from jaxtyping import Float
from pydantic import BaseModel, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from r2no.backbones._layers import (
    AlongSpace,
    AlongTime,
    Attention,
    Conv3,
    RelativeBias,
    Rotary,
    SpatialLinearAttention,
)
from r2no.backbones.base import check_input

GROUPS = 8  # of every group norm


class UNetConfig(BaseModel, frozen=True, extra="forbid"):
    """``dim`` is the width of the first level (published: the grid height).

    ``dim_mults`` times ``dim`` are the widths after each level.
    """

    dim: PositiveInt
    channels: PositiveInt
    out_channels: PositiveInt
    dim_mults: tuple[PositiveInt, ...]
    in_time: PositiveInt
    out_time: PositiveInt

    @model_validator(mode="after")
    def _check(self) -> "UNetConfig":
        if self.dim % GROUPS or not self.dim_mults:
            raise ValueError(
                f"`dim` must be a multiple of {GROUPS} and `dim_mults` not empty, "
                f"but got {self.dim} and {self.dim_mults}."
            )
        if self.out_time % self.in_time:
            raise ValueError(
                "`out_time` must be a multiple of `in_time`, "
                f"but got {self.out_time} and {self.in_time}."
            )
        return self

    @property
    def levels(self) -> list[tuple[int, int]]:
        """Channels in and out of each level, finest first."""
        return list(pairwise([self.dim, *(self.dim * mult for mult in self.dim_mults)]))


class ConvBlock(nn.Module):
    """Convolution, group norm with an optional modulation, SiLU."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.proj = Conv3(channels_in, channels_out)
        self.norm = nn.GroupNorm(GROUPS, channels_out)

    def forward(
        self,
        x: Float[Tensor, "batch channel time height width"],
        modulation: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "batch channel_out time height width"]:
        """``modulation`` is (scale, shift): normalised x becomes x (scale + 1) + shift."""
        affine: tuple[Tensor, Tensor] = self.norm.weight, self.norm.bias
        if modulation is not None:
            gain, shift = modulation[0] + 1, modulation[1]
            affine = affine[0] * gain, affine[1] * gain + shift
        x = F.group_norm(self.proj(x), GROUPS, *affine, self.norm.eps)
        return F.silu(x, inplace=not torch.is_grad_enabled())


class PointConv(nn.Conv3d):
    """A convolution of kernel 1 as a matrix product along the last axis, which is faster."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(channels_in, channels_out, 1)

    def forward(self, x: Float[Tensor, "*axes channel"]) -> Float[Tensor, "*axes channel_out"]:
        """Mix the channels of each point."""
        return F.linear(x, self.weight.flatten(1), self.bias)


class ResnetBlock(nn.Module):
    """Two :class:`ConvBlock` with a skip; the diffusion time modulates the first."""

    def __init__(self, channels_in: int, channels_out: int, *, time_dim: int | None) -> None:
        super().__init__()
        if time_dim is not None:
            self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, 2 * channels_out))
        self.block1 = ConvBlock(channels_in, channels_out)
        self.block2 = ConvBlock(channels_out, channels_out)
        same = channels_in == channels_out
        self.res_conv = nn.Identity() if same else PointConv(channels_in, channels_out)

    def forward(
        self,
        x: Float[Tensor, "batch time height width channel"],
        embedding: Float[Tensor, " time_dim"] | None = None,
    ) -> Float[Tensor, "batch time height width channel_out"]:
        """Apply the block, modulated by ``embedding`` if it has an ``mlp``."""
        modulation = None
        if embedding is not None:
            scale, shift = self.mlp(embedding).chunk(2)
            modulation = scale, shift
        h = self.block2(self.block1(x.movedim(-1, 1), modulation))
        return h.movedim(1, -1) + self.res_conv(x)


class ChannelNorm(nn.Module):
    """Layer norm over channels with a gain and no bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1, 1, 1))

    def forward(self, x: Float[Tensor, "*axes channel"]) -> Float[Tensor, "*axes channel"]:
        """Normalise each point."""
        return F.layer_norm(x, x.shape[-1:], self.gamma.flatten())


class PreNorm(nn.Module):
    """A layer after :class:`ChannelNorm`."""

    def __init__(self, channels: int, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn
        self.norm = ChannelNorm(channels)

    def forward(
        self, x: Float[Tensor, "*axes channel"], *args: Tensor
    ) -> Float[Tensor, "*axes channel"]:
        """fn(norm(x)); further arguments go to the layer."""
        return self.fn(self.norm(x), *args)


class Residual(nn.Module):
    """x + fn(x)."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(
        self, x: Float[Tensor, "*axes channel"], *args: Tensor
    ) -> Float[Tensor, "*axes channel"]:
        """Further arguments go to the layer."""
        return x + self.fn(x, *args)


class Level(nn.ModuleList):
    """Two blocks, two attentions, and a layer to the grid of the next level."""

    def forward(
        self,
        x: Float[Tensor, "batch time height width channel"],
        embedding: Float[Tensor, " time_dim"],
        bias: Float[Tensor, "head time time"],
    ) -> tuple[
        Float[Tensor, "batch time height width channel_out"],
        Float[Tensor, "batch time height_next width_next channel_out"],
    ]:
        """Features on the grid of this level, and on that of the next."""
        block1, block2, spatial, temporal, resize = self
        x = temporal(spatial(block2(block1(x, embedding), embedding)), bias)
        return x, _conv(resize, x)


class UNet(nn.Module):
    """The U-Net of a video diffusion model, used as a plain map between windows.

    The diffusion time is always 0, so its embedding is a learned constant.
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        dim, time_dim, levels = config.dim, 4 * config.dim, config.levels
        rotary = Rotary()  # one frozen tensor under the key of every temporal attention

        def resnet(channels_in: int, channels_out: int) -> ResnetBlock:
            return ResnetBlock(channels_in, channels_out, time_dim=time_dim)

        def temporal(channels: int) -> Residual:
            return Residual(PreNorm(channels, AlongTime(Attention(channels, rotary))))

        def level(channels_in: int, channels: int, resize: nn.Module) -> Level:
            linear = Residual(PreNorm(channels, SpatialLinearAttention(channels)))
            blocks = [resnet(channels_in, channels), resnet(channels, channels)]
            return Level([*blocks, linear, temporal(channels), resize])

        self.time_rel_pos_bias = RelativeBias()
        self.init_conv = nn.Conv3d(config.channels, dim, 7, padding=3)
        self.init_temporal_attn = temporal(dim)
        self.time_mlp = nn.Sequential(
            nn.Identity(), nn.Linear(dim, time_dim), nn.GELU(), nn.Linear(time_dim, time_dim)
        )
        self.downs = nn.ModuleList(
            level(wide, deep, _down(deep) if i + 1 < len(levels) else nn.Identity())
            for i, (wide, deep) in enumerate(levels)
        )
        middle = levels[-1][1]
        self.mid_block1 = resnet(middle, middle)
        self.mid_spatial_attn = Residual(PreNorm(middle, AlongSpace(Attention(middle))))
        self.mid_temporal_attn = temporal(middle)
        self.mid_block2 = resnet(middle, middle)
        self.ups = nn.ModuleList(
            level(2 * deep, wide, _up(wide) if i else nn.Identity())
            for i, (wide, deep) in reversed(list(enumerate(levels)))
        )
        self.final_conv = nn.Sequential(
            ResnetBlock(2 * dim, dim, time_dim=None), PointConv(dim, config.out_channels)
        )

    def forward(
        self, x: Float[Tensor, "batch time height width channel"]
    ) -> Float[Tensor, "batch time_out height width channel_out"]:
        """Predict the next window, in normalised units."""
        self._check(x)
        bias, embedding = self.time_rel_pos_bias(self.config.out_time), self._time_embedding()
        x = x.repeat(1, self.config.out_time // self.config.in_time, 1, 1, 1)
        first = x = self.init_temporal_attn(_conv(self.init_conv, x), bias)
        skips = []
        for level in self.downs:
            skip, x = level(x, embedding, bias)
            skips.append(skip)
        x = self.mid_spatial_attn(self.mid_block1(x, embedding))
        x = self.mid_block2(self.mid_temporal_attn(x, bias), embedding)
        for level in self.ups:
            _, x = level(torch.cat([x, skips.pop()], dim=-1), embedding, bias)
        return self.final_conv(torch.cat([x, first], dim=-1))

    def _time_embedding(self) -> Float[Tensor, " time_dim"]:
        """Embedding of time 0: sines are 0, cosines are 1."""
        half = self.config.dim // 2
        ones = self.init_conv.weight.new_ones(half)
        return self.time_mlp(F.pad(ones, (self.config.dim - half, 0)))

    def _check(self, x: Tensor) -> None:
        """Refuse windows that the levels cannot halve evenly."""
        frames, channels = self.config.in_time, self.config.channels
        factor = 2 ** (len(self.config.dim_mults) - 1)
        check_input(
            x,
            f"{frames} frames, {channels} channels and a grid divisible by {factor}",
            lambda: (
                (x.shape[1], x.shape[-1]) == (frames, channels)
                and x.shape[2] % factor == x.shape[3] % factor == 0
            ),
        )


def _conv(
    layer: nn.Module, x: Float[Tensor, "batch time height width channel"]
) -> Float[Tensor, "batch time height_out width_out channel_out"]:
    return layer(x.movedim(-1, 1)).movedim(1, -1)


def _down(channels: int) -> nn.Conv3d:
    return nn.Conv3d(channels, channels, (1, 4, 4), (1, 2, 2), (0, 1, 1))


def _up(channels: int) -> nn.ConvTranspose3d:
    return nn.ConvTranspose3d(channels, channels, (1, 4, 4), (1, 2, 2), (0, 1, 1))
