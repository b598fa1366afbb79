"""DPOT-S: patches, one sum over time, and Fourier layers that mix channels in blocks.

RealPDEBench wraps the network of DPOT in a Fourier resize to a square image, a padding of the
channels and a sliding window; :class:`DPOT` is that wrapper and :class:`DPOTNet` the network.
"""

import math
import re
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, PositiveInt, model_validator
from pydantic import Field as Bounded
from torch import Tensor, nn
from torch.nn import functional as F

from r2no.backbones.base import Shape, check_window

#: Windows with fewer channels are filled up to this number, as in the pre-training data of DPOT.
LEAST_CHANNELS = 4


class DPOTConfig(BaseModel, frozen=True, extra="forbid"):
    """Shapes are (time, height, width, channel); the rest describes the square network inside.

    ``n_cls`` sizes a head that only the pre-training used. Fields of one possible value are in the
    published configs and stand here so that those can be read.
    """

    shape_in: Shape
    shape_out: Shape
    img_size: PositiveInt
    in_channels: PositiveInt
    out_channels: PositiveInt
    in_timesteps: PositiveInt
    out_timesteps: PositiveInt
    patch_size: PositiveInt
    embed_dim: PositiveInt
    depth: PositiveInt
    n_blocks: PositiveInt
    modes: PositiveInt
    mlp_ratio: Annotated[float, Bounded(gt=0, allow_inf_nan=False)] = 1.0
    out_layer_dim: PositiveInt = 32
    n_cls: PositiveInt = 12
    normalize: Literal[False] = False
    act: Literal["gelu"] = "gelu"
    time_agg: Literal["exp_mlp"] = "exp_mlp"
    model_type: Literal["dpot"] = "dpot"
    checkpoint_path: None = None

    @model_validator(mode="after")
    def _check(self) -> "DPOTConfig":
        """Refuse sizes that do not go together, all reasons at once."""
        (time, *grid, channels), (time_out, *grid_out, channels_out) = self.shape_in, self.shape_out
        rules = [
            (grid == grid_out, "`shape_out` must keep the grid of `shape_in`"),
            (
                self.img_size % self.patch_size == 0,
                "`img_size` must be a multiple of `patch_size`",
            ),
            (
                self.embed_dim % math.lcm(8, self.n_blocks) == 0,
                "`embed_dim` must be a multiple of 8 and of `n_blocks`",
            ),
            (
                self.in_channels == max(channels, LEAST_CHANNELS),
                f"`in_channels` must be the channels of `shape_in`, at least {LEAST_CHANNELS}",
            ),
            (
                self.out_channels >= channels_out,
                "`out_channels` must hold the channels of `shape_out`",
            ),
            (self.in_timesteps == time, "`in_timesteps` must be the frames of `shape_in`"),
            (
                self.out_timesteps <= time_out,
                "`out_timesteps` may not exceed the frames of `shape_out`",
            ),
            (
                self.out_timesteps == time_out or channels == channels_out,
                "a sliding window needs equal channels in and out",
            ),
        ]
        if broken := [rule for holds, rule in rules if not holds]:
            got = self.model_dump(include=set(re.findall(r"`(\w+)`", " ".join(broken))))
            raise ValueError(f"{'; '.join(broken)}, but got {got}.")
        return self

    @property
    def grid(self) -> int:
        """Patches along each side of the image."""
        return self.img_size // self.patch_size


class PatchEmbed(nn.Module):
    """Patches to features in two convolutions; the second one is applied by :class:`DPOTNet`."""

    def __init__(self, config: DPOTConfig) -> None:
        super().__init__()
        # The hidden width depends on the channels that come out, not on those that go in.
        hidden, patch = config.out_channels * config.patch_size + 3, config.patch_size
        self.proj = nn.Sequential(
            nn.Conv2d(config.in_channels + 3, hidden, patch, stride=patch),
            nn.GELU(),
            nn.Conv2d(hidden, config.embed_dim, 1),
        )


class TimeAggregation(nn.Module):
    """y_j = Σ_{t,i} w[t, i, j] cos(τ_t γ_i) x[t, i] with τ from 0 to 1."""

    def __init__(self, frames: int, width: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(frames, width, width) / (frames * math.sqrt(width)))
        self.gamma = nn.Parameter(2 ** torch.linspace(-10, 10, width)[None])

    def waves(self) -> Float[Tensor, "time width"]:
        """The factors cos(τ_t γ_i)."""
        tau = torch.linspace(0, 1, len(self.w), dtype=self.w.dtype, device=self.w.device)
        return torch.cos(tau[:, None] * self.gamma)


class SpectralMixer(nn.Module):
    """Two complex layers on the Fourier coefficients, block-diagonal in the channels (AFNO).

    Of the half-spectrum only the first ``modes`` rows and columns are kept; negative wavenumbers
    beyond them are dropped with the rest.
    """

    def __init__(self, width: int, *, blocks: int, modes: int) -> None:
        super().__init__()
        self.blocks, self.modes, size = blocks, modes, width // blocks
        self.w1, self.w2 = (nn.Parameter(torch.rand(2, blocks, size, size) / size**2) for _ in "12")
        self.b1, self.b2 = (nn.Parameter(torch.rand(2, blocks, size) / size**2) for _ in "12")

    def forward(
        self, x: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel height width"]:
        """Transform, mix and transform back, in the precision of the weights."""
        with torch.autocast(x.device.type, enabled=False):
            spectrum = torch.fft.rfft2(x.to(self.w1.dtype), norm="ortho")
            spectrum = spectrum[..., : self.modes, : self.modes]
            h = _complex_linear(
                spectrum.flatten(2).unflatten(1, (self.blocks, -1)), self.w1, self.b1
            )
            h = torch.view_as_complex(F.gelu(torch.view_as_real(h)))  # on each part by itself
            h = _complex_linear(h, self.w2, self.b2).reshape(spectrum.shape)
            return torch.fft.irfft2(h, s=x.shape[-2:], norm="ortho")  # fills up with zeros


def _complex_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer along axis -2, whose parameters store real and imaginary parts first."""
    return torch.complex(*weight).mT @ x + torch.complex(*bias)[..., None]


class Block(nn.Module):
    """x ← x + mlp(norm2(n + mixer(n))) with n = norm1(x)."""

    def __init__(self, config: DPOTConfig) -> None:
        super().__init__()
        width, hidden = config.embed_dim, int(config.embed_dim * config.mlp_ratio)
        self.norm1 = nn.GroupNorm(8, width)
        self.filter = SpectralMixer(width, blocks=config.n_blocks, modes=config.modes)
        self.norm2 = nn.GroupNorm(8, width)
        self.mlp = nn.Sequential(
            nn.Conv2d(width, hidden, 1), nn.GELU(), nn.Conv2d(hidden, width, 1)
        )

    def forward(
        self, x: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel height width"]:
        """Mix over space, then over channels."""
        normed = self.norm1(x)
        return x + self.mlp(self.norm2(normed + self.filter(normed)))


class DPOTNet(nn.Module):
    """The network of DPOT on square images, with its keys."""

    def __init__(self, config: DPOTConfig) -> None:
        super().__init__()
        self.config = config
        width, patch, hidden = config.embed_dim, config.patch_size, config.out_layer_dim
        self.pos_embed = nn.Parameter(torch.zeros(1, width, config.grid, config.grid))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.patch_embed = PatchEmbed(config)
        self.time_agg_layer = TimeAggregation(config.in_timesteps, width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        # Kept for its weights: pre-training told data sets apart with it, predictions ignore it.
        self.cls_head = nn.Sequential(
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, config.n_cls),
        )
        self.out_layer = nn.Sequential(
            nn.ConvTranspose2d(width, hidden, patch, stride=patch),
            nn.GELU(),
            nn.Conv2d(hidden, hidden, 1),
            nn.GELU(),
            nn.Conv2d(hidden, config.out_channels * config.out_timesteps, 1),
        )

    def forward(
        self, x: Float[Tensor, "batch time channel size size"]
    ) -> Float[Tensor, "batch time_out channel_out size size"]:
        """Predict the next frames of square images."""
        h = self._embed(_with_coordinates(x))
        for block in self.blocks:
            h = block(h)
        return self.out_layer(h).unflatten(1, (-1, self.config.out_channels))

    def _embed(
        self, x: Float[Tensor, "batch time channel size size"]
    ) -> Float[Tensor, "batch width grid grid"]:
        """Patch features summed over time.

        With hidden patch features h_t, the second patch convolution P h + p, the position e and
        the weighted time sum W_t = cos(τ_t γ) w_t, the sum over t of W_tᵀ (P h_t + p + e) is
        Σ_t (W_tᵀ P) h_t + (Σ_t W_t)ᵀ (p + e). Both products of weights are small, so the wide
        features of single frames are never formed.
        """
        second: Any
        first, gelu, second = self.patch_embed.proj
        hidden = gelu(first(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        w, waves = self.time_agg_layer.w, self.time_agg_layer.waves()
        project = w.mT @ (waves[..., None] * second.weight.flatten(1))  # (time, width, hidden)
        total = (waves.T[:, None] @ w.movedim(1, 0)).squeeze(1)  # Σ_t W_t
        constant = total.T @ (second.bias[:, None] + self.pos_embed[0].flatten(1))
        features = project.movedim(0, 1).flatten(1) @ hidden.flatten(1, 2).flatten(2)
        return (features + constant).unflatten(-1, hidden.shape[-2:])


def _with_coordinates(
    x: Float[Tensor, "batch time channel height width"],
) -> Float[Tensor, "batch time channel+3 height width"]:
    """Append the height, width and time coordinates, each from 0 to 1, as channels."""
    batch, time, _, height, width = x.shape
    t, h, w = (
        torch.linspace(0, 1, n, dtype=x.dtype, device=x.device) for n in (time, height, width)
    )
    shape = (batch, time, 1, height, width)
    coordinates = (h[:, None], w, t[:, None, None, None])
    return torch.cat([x, *(axis.expand(shape) for axis in coordinates)], dim=2)


class DPOT(nn.Module):
    """DPOT on windows of any grid.

    A window is resized to the square image of the network, filled up with channels of ones, passed
    through the network and resized back. When the network predicts fewer frames than wanted, it
    continues from its own predictions.
    """

    def __init__(self, config: DPOTConfig) -> None:
        super().__init__()
        self.config = config
        self.dpot_model = DPOTNet(config)

    def forward(
        self, x: Float[Tensor, "batch time height width channel"]
    ) -> Float[Tensor, "batch time_out height width channel_out"]:
        """Predict the next window, in normalised units.

        A last piece shorter than half of what the network predicts at once is left out, as in
        RealPDEBench, so the prediction may hold fewer frames than ``shape_out``.
        """
        check_window(x, self.config.shape_in)
        frames, wanted, step = x.movedim(-1, 2), self.config.shape_out[0], self.config.out_timesteps
        predictions = [self._predict(frames)]
        for done in range(step, wanted, step):
            left = min(step, wanted - done)
            if left < step // 2:
                break
            frames = torch.cat([frames, predictions[-1]], dim=1)[:, -self.config.in_timesteps :]
            predictions.append(self._predict(frames)[:, :left])
        return torch.cat(predictions, dim=1).movedim(2, -1).contiguous()

    def _predict(
        self, frames: Float[Tensor, "batch time channel height width"]
    ) -> Float[Tensor, "batch time_out channel_out height width"]:
        grid, size = frames.shape[-2:], self.config.img_size
        x = fourier_resize(frames, size, size)
        # Missing channels are ones, not zeros, and come after the resize: the weights expect it.
        missing = self.config.in_channels - x.shape[2]
        y = self.dpot_model(F.pad(x, (0, 0, 0, 0, 0, missing), value=1.0))
        return fourier_resize(y[:, :, : self.config.shape_out[-1]], *grid)


def fourier_resize(
    x: Float[Tensor, "*batch height width"], height: int, width: int
) -> Float[Tensor, "*batch {height} {width}"]:
    """Resample periodic fields by cutting their spectrum or filling it up with zeros.

    The Nyquist coefficients of even sizes are copied like all others, neither halved nor split, on
    which the published weights depend.
    """
    rows, columns = x.shape[-2:]
    if (rows, columns) == (height, width):
        return x
    with torch.autocast(x.device.type, enabled=False):
        exact = x if x.dtype == torch.float64 else x.float()
        low, high = min((rows + 1) // 2, (height + 1) // 2), min(rows // 2, height // 2)
        spectrum = torch.fft.rfft(exact)[..., : min(columns, width) // 2 + 1]
        spectrum = torch.fft.fft(spectrum, dim=-2)
        zeros = spectrum.new_zeros(*spectrum.shape[:-2], height - low - high, spectrum.shape[-1])
        parts = [spectrum[..., :low, :], zeros, spectrum[..., rows - high :, :]]
        scale = height * width / (rows * columns)
        return torch.fft.irfft2(torch.cat(parts, dim=-2), s=(height, width)) * scale
