"""Fourier neural operator in time, height and width, as RealPDEBench trains it."""

import torch
from jaxtyping import Complex, Float
from pydantic import BaseModel, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from r2no.backbones.base import Shape, check_window, unit_grid

#: Zeros appended to the end of time, height and width, because windows are not periodic.
PADDING = 6


class FNOConfig(BaseModel, frozen=True, extra="forbid"):
    """Shapes are (time, height, width, channel); ``modes1..3`` belong to time, height, width."""

    shape_in: Shape
    shape_out: Shape
    modes1: PositiveInt
    modes2: PositiveInt
    modes3: PositiveInt
    n_layers: PositiveInt
    width: PositiveInt

    @model_validator(mode="after")
    def _check(self) -> "FNOConfig":
        (time, height, width, _), (time_out, *grid_out, _) = self.shape_in, self.shape_out
        if time_out % time or [height, width] != grid_out:
            raise ValueError(
                "`shape_out` must keep the grid of `shape_in` and hold a multiple of its frames, "
                f"but got {self.shape_in} -> {self.shape_out}."
            )
        most = (time + PADDING, height + PADDING, (width + PADDING) // 2 + 1)
        if any(m > n for m, n in zip(self.modes, most, strict=True)):
            raise ValueError(f"`modes1..3` may be at most {most} here, but got {self.modes}.")
        return self

    @property
    def modes(self) -> tuple[int, int, int]:
        """Kept wavenumbers along time, height and width."""
        return self.modes1, self.modes2, self.modes3


class SpectralConv(nn.Module):
    """Mix channels mode by mode on the lowest wavenumbers, and drop all others.

    ``weights1..4`` act on the corners (low, low), (high, low), (low, high), (high, high) of
    (time, height), where high means negative wavenumbers, and on the lowest ones in width.
    Axes are transformed one at a time, so most dropped wavenumbers are never computed; along the
    width, where few are kept, two small matrices are faster than an FFT.
    """

    analysis: Tensor
    synthesis: Tensor

    def __init__(self, width: int, modes: tuple[int, int, int], *, grid_width: int) -> None:
        super().__init__()
        self.modes = modes
        for corner in range(1, 5):
            weights = torch.rand(width, width, *modes, dtype=torch.complex64) / width**2
            self.register_parameter(f"weights{corner}", nn.Parameter(weights))
        analysis, synthesis = _width_transforms(grid_width, modes[2])
        self.register_buffer("analysis", analysis, persistent=False)
        self.register_buffer("synthesis", synthesis, persistent=False)

    def forward(
        self,
        x: Float[Tensor, "batch channel time height width"],
        skip: Float[Tensor, "batch channel time height width"],
    ) -> Float[Tensor, "batch channel time height width"]:
        """The convolution of ``x`` plus ``skip``, whose memory may be taken for the result."""
        with torch.autocast(x.device.type, enabled=False):  # no Fourier transform in half precision
            exact = self.analysis.dtype
            mixed = self._mix(self._analyse(x.to(exact)))
            return self._synthesise(mixed, skip.to(exact))

    def _analyse(self, x: Tensor) -> Tensor:
        """Kept wavenumbers of ``x``; high ones follow low ones."""
        m1, m2, m3 = self.modes
        spectrum = torch.view_as_complex((x @ self.analysis).unflatten(-1, (m3, 2)))
        spectrum = _keep_ends(torch.fft.fft(spectrum, dim=-2), -2, m2)
        return _keep_ends(torch.fft.fft(spectrum, dim=-3), -3, m1)

    def _mix(
        self, spectrum: Complex[Tensor, "batch channel k1 k2 k3"]
    ) -> Complex[Tensor, "batch channel k1 k2 k3"]:
        """Multiply each corner by its weights.

        Where corners overlap on a small grid the later one wins, which on each axis means high
        over low: the low part is cut to the wavenumbers that the high part leaves.
        """
        low1, low2 = (n - m for n, m in zip(spectrum.shape[-3:-1], self.modes[:2], strict=True))
        w1, w2, w3, w4 = (getattr(self, f"weights{corner}") for corner in range(1, 5))
        near, far = spectrum[..., :low1, :, :], spectrum[..., low1:, :, :]
        near1 = _multiply(near[..., :low2, :], w1[..., :low1, :low2, :])
        near3 = _multiply(near[..., low2:, :], w3[..., :low1, :, :])
        far2 = _multiply(far[..., :low2, :], w2[..., :low2, :])
        far4 = _multiply(far[..., low2:, :], w4)
        return torch.cat([torch.cat([near1, near3], -2), torch.cat([far2, far4], -2)], -3)

    def _synthesise(self, spectrum: Tensor, skip: Tensor) -> Tensor:
        m1, m2, _ = self.modes
        time, height = skip.shape[-3:-1]
        spectrum = torch.fft.ifft(_spread_ends(spectrum, -3, m1, time), dim=-3)
        spectrum = torch.fft.ifft(_spread_ends(spectrum, -2, m2, height), dim=-2)
        parts = torch.view_as_real(spectrum).flatten(-2)
        rows = skip.flatten(0, -2).addmm_(parts.flatten(0, -2), self.synthesis)
        return rows.view_as(skip)


def _width_transforms(
    size: int, modes: int
) -> tuple[Float[Tensor, "{size} part"], Float[Tensor, "part {size}"]]:
    """Matrices of ``rfft`` and ``irfft`` on the first ``modes`` wavenumbers of a real axis.

    Real and imaginary parts alternate; a wavenumber whose mirror image is not stored counts twice.
    """
    k, n = torch.arange(modes), torch.arange(size)
    angle = 2 * torch.pi / size * (n[:, None] * k % size).double()
    analysis = torch.stack([angle.cos(), -angle.sin()], dim=-1)
    multiplicity = torch.where((k == 0) | (2 * k == size), 1.0, 2.0)
    synthesis = analysis * multiplicity[:, None] / size
    return analysis.flatten(1).float(), synthesis.flatten(1).T.contiguous().float()


def _keep_ends(x: Tensor, dim: int, modes: int) -> Tensor:
    """The first and last ``modes`` entries of an axis, or all of it when they overlap."""
    size = x.shape[dim]
    low = min(modes, size - modes)
    return torch.cat([x.narrow(dim, 0, low), x.narrow(dim, size - modes, modes)], dim)


def _spread_ends(x: Tensor, dim: int, modes: int, size: int) -> Tensor:
    """Undo :func:`_keep_ends`, with zeros in between."""
    low = x.shape[dim] - modes
    shape = list(x.shape)
    shape[dim] = size - x.shape[dim]
    parts = [x.narrow(dim, 0, low), x.new_zeros(shape), x.narrow(dim, low, modes)]
    return torch.cat(parts, dim)


def _multiply(
    x: Complex[Tensor, "batch channel k1 k2 k3"], weights: Complex[Tensor, "channel mixed k1 k2 k3"]
) -> Complex[Tensor, "batch mixed k1 k2 k3"]:
    """Σ_i x[b, i, k] w[i, o, k] for every wavenumber k."""
    weights = weights.to(x.dtype)
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or x.device.type != "cpu":
        return torch.einsum("bixyz,ioxyz->boxyz", x, weights)
    mixed = x.new_zeros(x.shape[0], *weights.shape[1:])  # one pass over the weights, as they lie
    for x_i, weights_i in zip(x.unbind(1), weights.unbind(0), strict=True):
        mixed.addcmul_(x_i[:, None], weights_i)
    return mixed


class FNO(nn.Module):
    """Windows through layers of h ← gelu(norm(spectral(h) + W h)).

    Channels come first inside, so that no layer permutes a large tensor: the linear layers
    ``fc0..2`` act as matrices on (channel, time · height · width).
    """

    grid: Tensor

    def __init__(self, config: FNOConfig) -> None:
        super().__init__()
        self.config = config
        width, (time, *_, channels), (time_out, *_, channels_out) = (
            config.width,
            config.shape_in,
            config.shape_out,
        )
        layers = range(config.n_layers)
        self.fc0 = nn.Linear(channels + 3, width)
        self.spectral_convs = nn.ModuleList(
            SpectralConv(width, config.modes, grid_width=config.shape_in[2] + PADDING)
            for _ in layers
        )
        self.convs = nn.ModuleList(nn.Conv3d(width, width, 1) for _ in layers)
        self.bns = nn.ModuleList(nn.BatchNorm3d(width) for _ in layers)
        self.fc1 = nn.Linear(width, 128)
        self.fc2 = nn.Linear(128, channels_out * time_out // time)
        grid = unit_grid(config.shape_in[:3]).movedim(-1, 0)
        self.register_buffer("grid", grid, persistent=False)

    def forward(
        self, x: Float[Tensor, "batch time_in height width channel_in"]
    ) -> Float[Tensor, "batch time_out height width channel_out"]:
        """Predict the next window, in normalised units."""
        check_window(x, self.config.shape_in)
        batch, (time, height, width, _) = x.shape[0], x.shape[1:]
        grid = self.grid.to(x.dtype).expand(batch, -1, -1, -1, -1)
        h = _linear(self.fc0, torch.cat([x.movedim(-1, 1), grid], dim=1))
        h = F.pad(h, (0, PADDING) * 3)
        for i, (spectral, conv, norm) in enumerate(
            zip(self.spectral_convs, self.convs, self.bns, strict=True)
        ):
            h = norm(spectral(h, conv(h)))
            h = F.gelu(h) if i + 1 < len(self.convs) else h
        h = _linear(self.fc1, h[..., :time, :height, :width])
        h = _linear(self.fc2, F.gelu(h))
        # A frame of the history predicts `repeat` frames; in `fc2` the channel is the slow index.
        time_out, _, _, channels_out = self.config.shape_out
        h = h.unflatten(1, (channels_out, time_out // time))
        return h.permute(0, 3, 2, 4, 5, 1).reshape(batch, time_out, height, width, channels_out)


def _linear(
    layer: nn.Linear, x: Float[Tensor, "batch channel time height width"]
) -> Float[Tensor, "batch mixed time height width"]:
    """Apply ``layer`` along the channel axis without moving it."""
    weight = layer.weight.expand(x.shape[0], -1, -1)
    return torch.baddbmm(layer.bias[:, None], weight, x.flatten(2)).unflatten(2, x.shape[2:])
