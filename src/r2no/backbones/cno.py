"""Convolutional neural operator in time, height and width, as RealPDEBench trains it.

With its activation, a leaky ReLU, the published variant neither filters nor resamples: every layer
works on the full grid. Inside, tensors are (batch, channel, time, height, width) with the channel
axis fastest in memory.
"""

import torch
from jaxtyping import Float
from pydantic import BaseModel, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from r2no.backbones._layers import Conv3, conv3
from r2no.backbones.base import check_input

#: Channels after the first encoder layer, hidden channels of lift and projection, and the slope of
#: the activation: what RealPDEBench uses whatever its YAML files say.
MULTIPLIER, LATENT, SLOPE = 32, 64, 0.2


class CNOConfig(BaseModel, frozen=True, extra="forbid"):
    """``out_dim_mult`` is the number of predicted frames per frame of the history.

    ``N_res_neck`` counts the residual blocks at the bottom (RealPDEBench: 6, though its YAML files
    say 8). ``in_size`` has no effect.
    """

    in_dim: PositiveInt
    out_dim: PositiveInt
    out_dim_mult: PositiveInt = 1
    in_size: PositiveInt
    N_layers: PositiveInt
    N_res_neck: PositiveInt = 6

    @property
    def encoder_widths(self) -> list[int]:
        """Channels before each encoder layer and after the last."""
        return [MULTIPLIER // 2 * 2**i for i in range(self.N_layers + 1)]


def _conv_norm(
    conv: Conv3, norm: nn.BatchNorm3d, x: Float[Tensor, "batch channel time height width"]
) -> Float[Tensor, "batch channel_out time height width"]:
    """norm(conv(x)); outside of training both are one convolution."""
    if norm.training:
        return norm(conv(x))
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None  # tracked since construction
    assert variance is not None
    gain = norm.weight / torch.sqrt(variance + norm.eps)
    bias = (conv.bias - mean) * gain + norm.bias
    return conv3(x, conv.weight * gain.view(-1, 1, 1, 1, 1), bias)


def _activate(x: Tensor) -> Tensor:
    return F.leaky_relu(x, SLOPE, inplace=not torch.is_grad_enabled())


class Block(nn.Module):
    """Convolution, batch norm, activation."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.convolution = Conv3(channels_in, channels_out)
        self.batch_norm = nn.BatchNorm3d(channels_out)

    def forward(
        self, x: Float[Tensor, "batch channel time height width"]
    ) -> Float[Tensor, "batch channel_out time height width"]:
        """Apply the three in turn."""
        return _activate(_conv_norm(self.convolution, self.batch_norm, x))


class ResidualBlock(nn.Module):
    """x + norm(conv(act(norm(conv(x)))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution1 = Conv3(channels, channels)
        self.convolution2 = Conv3(channels, channels)
        self.batch_norm1 = nn.BatchNorm3d(channels)
        self.batch_norm2 = nn.BatchNorm3d(channels)

    def forward(
        self, x: Float[Tensor, "batch channel time height width"]
    ) -> Float[Tensor, "batch channel time height width"]:
        """Nothing follows the sum."""
        h = _activate(_conv_norm(self.convolution1, self.batch_norm1, x))
        return x + _conv_norm(self.convolution2, self.batch_norm2, h)


class LiftProject(nn.Module):
    """Convolution, activation, convolution."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.inter_CNOBlock = nn.ModuleDict({"convolution": Conv3(channels_in, LATENT)})
        self.convolution = Conv3(LATENT, channels_out)

    def forward(
        self, x: Float[Tensor, "batch channel time height width"]
    ) -> Float[Tensor, "batch channel_out time height width"]:
        """No norm on either side."""
        return self.convolution(_activate(self.inter_CNOBlock["convolution"](x)))


class CNO(nn.Module):
    """Encoder, residual neck and decoder with skips, all on one grid."""

    def __init__(self, config: CNOConfig) -> None:
        super().__init__()
        self.config = config
        layers, widths = config.N_layers, config.encoder_widths
        into = [widths[-1], *(2 * width for width in widths[-2:0:-1])]
        self.lift = LiftProject(config.in_dim, widths[0])
        self.project = LiftProject(2 * widths[0], config.out_dim * config.out_dim_mult)
        self.encoder = nn.ModuleList(Block(widths[i], widths[i + 1]) for i in range(layers))
        self.ED_expansion = nn.ModuleList(Block(width, width) for width in widths)
        self.decoder = nn.ModuleList(Block(into[i], widths[-2 - i]) for i in range(layers))
        # The last one is never used; it is in every checkpoint.
        self.decoder_inv = nn.ModuleList(Block(width, width) for width in (*into, 2 * widths[0]))
        neck = [widths[-1]] * config.N_res_neck
        self.res_nets = nn.Sequential(*(ResidualBlock(width) for width in (*widths[:-1], *neck)))

    def forward(
        self, x: Float[Tensor, "batch time height width channel"]
    ) -> Float[Tensor, "batch time_out height width channel_out"]:
        """Predict the next window, in normalised units.

        As in RealPDEBench, an input whose last axis is not shorter than its second is taken as
        (batch, channel, time, height, width), and so is the prediction.
        """
        channels_last = x.shape[-1] < x.shape[1]
        channels = self.config.in_dim
        wanted = f"{channels} channels and more frames than channels"
        check_input(x, wanted, lambda: x.shape[-1 if channels_last else 1] == channels)
        h = x.movedim(-1, 1) if channels_last else x
        h = self._decode(*self._encode(h))
        h = h.movedim(1, -1) if channels_last else h
        if self.config.out_dim_mult > 1:
            # Frames, points and channels are mixed in memory order; the weights were trained so.
            h = h.reshape(len(x), -1, h.shape[2], h.shape[3], self.config.out_dim)
        return h.contiguous()

    def _encode(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features at the bottom, and a skip per layer; only skips pass the first residuals."""
        layers, residuals = self.config.N_layers, list(self.res_nets)
        h, skips = self.lift(x), []
        for residual, encoder in zip(residuals[:layers], self.encoder, strict=True):
            skips.append(residual(h))
            h = encoder(h)
        for residual in reversed(residuals[layers:]):  # last one first, as it was trained
            h = residual(h)
        return h, skips

    def _decode(self, h: Tensor, skips: list[Tensor]) -> Tensor:
        *expansions, bottom = self.ED_expansion
        h = bottom(h)
        for invariant, decoder in zip(self.decoder_inv[:-1], self.decoder, strict=True):
            h = decoder(invariant(h))
            h = torch.cat([h, expansions.pop()(skips.pop())], dim=1)
        return self.project(h)
