"""Errors by wavenumber: fRMSE on the benchmark's octant, on the whole spectrum, and in time.

Both fRMSE cut the spectrum over (time, height, width) into shells of the integer radius

    r(k) = ⌊√(i² + j² + k²)⌋ < m,   m = min(⌊t/2⌋, ⌊h/2⌋, ⌊w/2⌋),

of the signed indices (i, j, k); grid spacing plays no part. With Ê the unitary transform of the
error of one window, N = t·h·w and the mean over windows,

    ε(r, channel) = √( mean Σ_{k in shell r} μ(k) |Ê(k)|² / N ).

- ``frmse`` is the benchmark's: μ = 1 on the octant i, j, k ≥ 0, zero elsewhere. It misses three
  quarters of the orientations that a real field has.
- ``frmse_full`` counts the stored half-spectrum of ``rfftn`` with its Hermitian multiplicity,
  μ(k) = m(k) (M1), that is, every signed index once: all orientations, negative time frequencies
  included. Same shells, same normalisation; so for an error without content beyond the shells,
  Σ_r ε(r, channel)² is the mean square of that channel (Parseval).

The score is the mean of ε over shells and channels; the bands are r < a, a ≤ r < z and r ≥ z with
a = rint(m/3), z = rint(2m/3). ``rel_frmse_*`` is the mean of ε/ν on the octant, ν being ε of the
target alone. An empty band, which occurs for m < 3, is NaN.

Only the indices below m matter, and a real field is transformed by real cosines and sines, one
axis at a time, so no full FFT is ever made.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from r2no.spectral.transforms import rounded_sqrt

_Window3 = tuple[int, int, int]
_TOGETHER = 8  # windows whose transforms over time are made at once


class SpectralSums(NamedTuple):
    """Σ over windows of shell energies (of the unnormalised transform) and of |FFT(s)|."""

    octant: Float[Tensor, "shell channel"]  # of the error
    full: Float[Tensor, "shell channel"]  # of the error
    target: Float[Tensor, "shell channel"]  # of the target, on the octant
    frequency: Float[Tensor, ""]

    def merge(self, other: "SpectralSums") -> "SpectralSums":
        """The sums of both sets of windows."""
        return SpectralSums(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, eq=False)
class Shells:
    """The block of lowest indices of a (time, height, width) grid, and its shells.

    ``bases`` holds per axis of length n the rows cos(2πfx/n), f < F, then sin(2πfx/n).
    ``index`` is the shell of each (|i|, |j|, |k|), ``num_shells`` standing for none.
    ``multiplicity`` counts the signed indices that share these absolute values.
    """

    bases: tuple[Tensor, Tensor, Tensor]
    index: Int[Tensor, "i j k"]
    multiplicity: Float[Tensor, "i j k"]
    num_shells: int

    @classmethod
    def build(
        cls, axes: _Window3, *, num_shells: int | None = None, device: torch.device | str = "cpu"
    ) -> "Shells":
        """Shells of a window of ``axes`` = (time, height, width); by default the m complete ones.

        ``num_shells`` beyond m goes on towards the corners of the spectrum; Nyquist indices count
        once. Then only the full-spectrum energy is of use, the octant being the benchmark's m.
        """
        shells = min(axes) // 2 if num_shells is None else num_shells
        sizes = [max(1, min(shells, n // 2 + 1)) for n in axes]
        frequencies = [torch.arange(size, dtype=torch.float64, device=device) for size in sizes]
        grids = torch.meshgrid(*frequencies, indexing="ij")
        radius = rounded_sqrt(sum((grid.square() for grid in grids), torch.zeros_like(grids[0])))
        count = torch.ones_like(radius)
        for grid, n in zip(grids, axes, strict=True):
            count = count * torch.where((grid == 0) | (2 * grid == n), 1.0, 2.0)
        bases = tuple(_basis(f, n) for f, n in zip(frequencies, axes, strict=True))
        return cls(bases, radius.long().clamp(max=shells), count, shells)  # type: ignore[arg-type]


def _basis(frequency: Float[Tensor, " f"], length: int) -> Float[Tensor, "2*f length"]:
    position = torch.arange(length, dtype=frequency.dtype, device=frequency.device)
    turns = torch.outer(frequency, position).remainder(length) / length  # whole turns removed
    return torch.cat([torch.cos(2 * math.pi * turns), torch.sin(2 * math.pi * turns)])


@lru_cache(maxsize=32)
def cached_shells(axes: _Window3, device: torch.device) -> Shells:
    """The default shells of a window shape, built once per shape and device."""
    return Shells.build(axes, device=device)


def _planes(
    values: Float[Tensor, "row time height width"],
    shells: Shells,
    *,
    lines: Tensor | None = None,
    out: Tensor | None = None,
) -> Float[Tensor, "two_j lines"]:
    """Cosines, then sines, over width, and of these over height; lines run over (2k, row, time).

    Each product transforms the last axis and brings the result to the front, so the next axis
    is last in turn and nothing is copied. ``lines`` and ``out`` are memory for both products.
    """
    _, along_height, along_width = shells.bases
    *_, height, width = values.shape
    lines = torch.mm(along_width, values.reshape(-1, width).T, out=lines)
    return torch.mm(along_height, lines.view(-1, height).T, out=out)


def _products(
    planes: Float[Tensor, "window two_j lines"], shells: Shells, *, out: Tensor | None = None
) -> Float[Tensor, "2 i window 2 j 2 k row"]:
    """Coefficients R over all three axes; each axis of two runs over cosine and sine."""
    i, j, k = shells.index.shape
    along_time = shells.bases[0]
    products = torch.mm(along_time, planes.reshape(-1, along_time.shape[1]).T, out=out)
    return products.view(2, i, len(planes), 2, j, 2, k, -1)


def _octant_energy(
    products: Float[Tensor, "2 i window 2 j 2 k row"],
) -> Float[Tensor, "i j k row"]:
    """Σ over windows of |F(i, j, k)|², F = Σ e Π (cos - i sin) over the three axes."""

    def part(time: int, height: int, width: int) -> Tensor:
        return products[time, :, :, height, :, width]

    real = (part(0, 0, 0) - part(0, 1, 1)).sub_(part(1, 0, 1)).sub_(part(1, 1, 0))
    imaginary = (part(1, 1, 1) - part(1, 0, 0)).sub_(part(0, 1, 0)).sub_(part(0, 0, 1))
    return real.square_().addcmul_(imaginary, imaginary).sum(1)


def _full_energy(
    squares: Float[Tensor, "2 i 2 j 2 k row"], shells: Shells
) -> Float[Tensor, "i j k row"]:
    """Σ over the signs of (i, j, k) of |F|² = multiplicity · Σ R², from R² summed over windows.

    The mixed terms of |F|² change sign with an index and cancel over its two signs.
    """
    return squares.sum((0, 2, 4)).mul_(shells.multiplicity[..., None])


def _by_shell(energy: Float[Tensor, "i j k row"], shells: Shells) -> Float[Tensor, "shell row"]:
    """Σ over the indices of each shell."""
    total = energy.new_zeros(shells.num_shells + 1, energy.shape[-1])
    total.index_add_(0, shells.index.flatten(), energy.flatten(0, 2))
    return total[: shells.num_shells]


def full_shell_energy(
    values: Float[Tensor, "batch channel time height width"], shells: Shells
) -> Float[Tensor, "shell channel"]:
    """Σ over windows of Σ_{k in shell} m(k) |FFT(values)(k)|², the FFT unnormalised."""
    products = _products(_planes(values.flatten(0, 1), shells)[None], shells)
    by_row = _by_shell(_full_energy(products.square().sum(2), shells), shells)
    result: Tensor = by_row.unflatten(-1, values.shape[:2]).sum(1)
    return result


class SpectralPass:
    """Adds up the windows of a batch, one at a time.

    Transforms over width and height are made window by window, while its values are in the cache;
    what is left of a window is small, and is transformed over time for several at once. Shells are
    filled at the end.
    """

    def __init__(self, like: Float[Tensor, "channel time height width"]) -> None:
        channel, time, height, width = like.shape
        self._shells = shells = cached_shells((time, height, width), like.device)
        (i, j, k), rows = shells.index.shape, 2 * channel
        self._lines = like.new_empty(2 * k, rows * time * height)
        self._planes = like.new_empty(_TOGETHER, 2 * j, 2 * k * rows * time)
        self._products = like.new_empty(2 * i, _TOGETHER * 2 * j * 2 * k * rows)
        self._waiting = 0  # planes filled
        self._octant = like.new_zeros(i, j, k, rows)
        self._squares = like.new_zeros(2, i, 2, j, 2, k, rows)
        self._frequency = like.new_zeros(())

    def add(self, fields: Float[Tensor, "2 channel time height width"]) -> None:
        """Add one window, as (error, target)."""
        out = self._planes[self._waiting]
        _planes(fields.flatten(0, 1), self._shells, lines=self._lines, out=out)
        self._waiting += 1
        if self._waiting == _TOGETHER:
            self._transform_time(self._products)

    def _transform_time(self, out: Tensor | None = None) -> None:
        planes, shells = self._planes[: self._waiting], self._shells
        products = _products(planes, shells, out=out)
        self._octant += _octant_energy(products)
        self._squares += products.square_().sum(2)
        channel, time = products.shape[-1] // 2, shells.bases[0].shape[1]
        frames = planes[:, 0, : channel * time].unflatten(1, (channel, time))  # j = k = 0
        self._frequency += torch.fft.fft(frames.sum(1), dim=1).abs().sum()
        self._waiting = 0

    def sums(self) -> SpectralSums:
        """The sums of all windows added."""
        if self._waiting:
            self._transform_time()
        octant = _by_shell(self._octant, self._shells)
        full = _by_shell(_full_energy(self._squares, self._shells), self._shells)
        channel = octant.shape[1] // 2
        return SpectralSums(
            octant=octant[:, :channel],
            full=full[:, :channel],
            target=octant[:, channel:],
            frequency=self._frequency,
        )


def _bands(name: str, by_shell: Float[Tensor, "shell channel"]) -> dict[str, Tensor]:
    shells = len(by_shell)
    low, high = round(shells / 3), round(2 * shells / 3)
    return {
        f"{name}_low": by_shell[:low].mean(),
        f"{name}_mid": by_shell[low:high].mean(),
        f"{name}_high": by_shell[high:].mean(),
    }


def compute_spectral(
    sums: SpectralSums, windows: Float[Tensor, ""], axes: _Window3
) -> dict[str, Tensor]:
    """Finish the spectral metrics of ``windows`` windows of ``axes`` = (time, height, width).

    The formulas of fRMSE are those of this module's docstring. With s(t) = Σ e over grid and
    channels, freq_error = mean over windows and all t coefficients of |FFT(s)|, not normalised by
    the grid, so it scales with its size.
    """

    def root(energy: Tensor) -> Tensor:
        return (energy / windows).sqrt() / math.prod(axes)

    octant, full, target = root(sums.octant), root(sums.full), root(sums.target)
    return {
        "frmse": octant.mean(),
        **_bands("frmse", octant),
        **_bands("rel_frmse", octant / target),
        "freq_error": sums.frequency / (windows * axes[0]),
        "frmse_full": full.mean(),
        **_bands("frmse_full", full),
    }
