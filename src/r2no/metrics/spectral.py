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
from jaxtyping import Bool, Float, Int
from torch import Tensor

from r2no.spectral.transforms import rounded_sqrt

_Window3 = tuple[int, int, int]
_TOGETHER = 8  # windows whose transforms over time are made at once
_WEAK = 1e-7  # energy of a shell beside which float32 may leave few digits


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
    narrow_bases: tuple[Tensor, Tensor, Tensor]  # in float32

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
        narrow = tuple(basis.float() for basis in bases)
        return cls(bases, radius.long().clamp(max=shells), count, shells, narrow)  # type: ignore[arg-type]

    def bases_of(self, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """``bases`` in float32 or float64."""
        return self.bases if kind == torch.float64 else self.narrow_bases


def _basis(frequency: Float[Tensor, " f"], length: int) -> Float[Tensor, "2*f length"]:
    position = torch.arange(length, dtype=frequency.dtype, device=frequency.device)
    turns = torch.outer(frequency, position).remainder(length) / length  # whole turns removed
    return torch.cat([torch.cos(2 * math.pi * turns), torch.sin(2 * math.pi * turns)])


@lru_cache(maxsize=32)
def cached_shells(axes: _Window3, device: torch.device) -> Shells:
    """The default shells of a window shape, built once per shape and device."""
    return Shells.build(axes, device=device)


def _planes(
    values: Float[Tensor, "*rows height width"], shells: Shells
) -> Float[Tensor, "two_j two_k *rows"]:
    """Cosines, then sines, over width, and of these over height, in the precision of ``values``.

    Each product transforms the last axis and brings the result to the front, so the next axis
    is last in turn and nothing is copied.
    """
    *rows, height, width = values.shape
    _, along_height, along_width = shells.bases_of(values.dtype)
    lines = torch.mm(along_width, values.reshape(-1, width).T)
    planes = torch.mm(along_height, lines.view(-1, height).T)
    return planes.view(len(along_height), len(along_width), *rows)


def _products(
    planes: Float[Tensor, "window two_j two_k channel time"], shells: Shells
) -> Float[Tensor, "2 i window 2 j 2 k channel"]:
    """Coefficients R over all three axes; each axis of two runs over cosine and sine."""
    i, j, k = shells.index.shape
    windows, *_, channel, time = planes.shape
    products = torch.mm(shells.bases_of(planes.dtype)[0], planes.view(-1, time).T)
    return products.view(2, i, windows, 2, j, 2, k, channel)


def _octant_energy(
    products: Float[Tensor, "2 i window 2 j 2 k channel"],
) -> Float[Tensor, "i j k channel"]:
    """Σ over windows of |F(i, j, k)|², F = Σ e Π (cos - i sin) over the three axes."""

    def part(time: int, height: int, width: int) -> Tensor:
        return products[time, :, :, height, :, width]

    real = (part(0, 0, 0) - part(0, 1, 1)).sub_(part(1, 0, 1)).sub_(part(1, 1, 0))
    imaginary = (part(1, 1, 1) - part(1, 0, 0)).sub_(part(0, 1, 0)).sub_(part(0, 0, 1))
    return real.square_().addcmul_(imaginary, imaginary).sum(1)


def _square_sums(
    products: Float[Tensor, "2 i window 2 j 2 k channel"],
) -> Float[Tensor, "i j k channel"]:
    """Σ R² over windows, cosines and sines; overwrites ``products``."""
    squares: Tensor = products.square_().sum(2).sum((0, 2, 4))
    return squares


def _by_shell(
    energy: Float[Tensor, "i j k channel"], shells: Shells
) -> Float[Tensor, "shell channel"]:
    """Σ over the indices of each shell."""
    total = energy.new_zeros(shells.num_shells + 1, energy.shape[-1])
    total.index_add_(0, shells.index.flatten(), energy.flatten(0, 2))
    return total[: shells.num_shells]


def _full_by_shell(
    squares: Float[Tensor, "i j k channel"], shells: Shells
) -> Float[Tensor, "shell channel"]:
    """Σ over the signs of (i, j, k) of |F|² = multiplicity · Σ R², by shell.

    The mixed terms of |F|² change sign with an index and cancel over its two signs.
    """
    return _by_shell(squares * shells.multiplicity[..., None], shells)


class ShellEnergies(NamedTuple):
    """Σ over windows of one field, and whether all have their digits in float32."""

    octant: Float[Tensor, "shell channel"]
    full: Float[Tensor, "shell channel"]
    frequency: Float[Tensor, ""]
    doubtful: Bool[Tensor, ""]


class SpectralPass:
    """Adds up windows of one field, some at a time.

    What changes over time is transformed in the precision of its values, over height and width
    while these are in the cache, and over time for several windows at once. The steady part, which
    may be large, is transformed in float64. Shells are filled at the end.

    Args:
        like: a window.
        octant_only: whether ``full`` and ``frequency`` may stay zero.
    """

    def __init__(
        self, like: Float[Tensor, "channel time height width"], *, octant_only: bool = False
    ) -> None:
        channel, *axes = like.shape
        self._shells = shells = cached_shells(tuple(axes), like.device)
        self._octant_only, self._points = octant_only, math.prod(axes)
        self._planes: list[Tensor] = []  # of windows that wait to be transformed over time
        self._steady: list[Tensor] = []  # their parts that are constant in time
        self._waiting = 0
        self._octant = like.new_zeros(*shells.index.shape, channel, dtype=torch.float64)
        self._squares = torch.zeros_like(self._octant)
        self._frequency = self._octant.new_zeros(())

    def add(
        self,
        changing: Float[Tensor, "window channel time height width"],
        steady: Float[Tensor, "window channel height width"],
    ) -> None:
        """Add windows, the sums of both."""
        self._planes.append(_planes(changing, self._shells))
        self._steady.append(steady)
        self._waiting += len(steady)
        if self._waiting >= _TOGETHER:
            self._transform_time()

    def _transform_time(self) -> None:
        planes = torch.cat([each.movedim(2, 0) for each in self._planes])
        steady = _planes(torch.cat(self._steady).double(), self._shells).movedim(2, 0)
        products = _products(planes, self._shells)
        products[0, 0] += planes.shape[-1] * steady.reshape(products[0, 0].shape)
        self._octant += _octant_energy(products)
        if not self._octant_only:
            self._squares += _square_sums(products)
            frames = (planes[:, 0, 0].double() + steady[:, 0, 0, :, None]).sum(1)  # j = k = 0
            self._frequency += torch.fft.fft(frames, dim=1).abs().sum()
        self._planes, self._steady, self._waiting = [], [], 0

    def sums(self, changing: Float[Tensor, ""]) -> ShellEnergies:
        """The sums of all windows added; ``changing`` is Σ of the squares of that part.

        In float32 a coefficient is off by about 1e-8 of the strongest, whose energy is at most
        ``changing`` times the number of points: shells that are weak beside that are doubtful.
        """
        if self._waiting:
            self._transform_time()
        octant = _by_shell(self._octant, self._shells)
        full = _full_by_shell(self._squares, self._shells)
        doubtful = (octant < _WEAK * self._points * changing).any()
        return ShellEnergies(octant, full, self._frequency, doubtful)


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
