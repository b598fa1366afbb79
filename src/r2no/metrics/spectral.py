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
        radius = sum((grid.square() for grid in grids), torch.zeros_like(grids[0])).sqrt()
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
    values: Float[Tensor, "row time height width"], shells: Shells
) -> Float[Tensor, "two_j two_k row time"]:
    """Cosines, then sines, over width, and of these over height.

    Each product transforms the last axis and brings the result to the front, so the next axis
    is last in turn and nothing is copied.
    """
    _, along_height, along_width = shells.bases
    row, time, height, width = values.shape
    lines = along_width @ values.reshape(-1, width).T
    planes = along_height @ lines.reshape(-1, height).T
    return planes.reshape(len(along_height), len(along_width), row, time)


def _products(
    planes: Float[Tensor, "two_j two_k row time"], shells: Shells
) -> Float[Tensor, "8 i j k row"]:
    """Cosine and sine coefficients R over all three axes.

    The first axis runs over cosine and sine along time, height and width, the last fastest: ccc,
    ccs, csc, css, scc, ...
    """
    i, j, k = shells.index.shape
    products = shells.bases[0] @ planes.reshape(-1, planes.shape[-1]).T
    return products.reshape(2, i, 2, j, 2, k, -1).permute(0, 2, 4, 1, 3, 5, 6).flatten(0, 2)


def _octant_energy(
    products: Float[Tensor, "8 i j k *row"],
) -> Float[Tensor, "i j k *row"]:
    """|F(i, j, k)|² of each row, F = Σ e Π (cos - i sin) over the three axes."""
    ccc, ccs, csc, css, scc, scs, ssc, sss = products
    real: Tensor = ccc - css - scs - ssc
    imaginary: Tensor = sss - scc - csc - ccs
    return real.square() + imaginary.square()


def _full_energy(
    products: Float[Tensor, "8 i j k batch channel"], shells: Shells
) -> Float[Tensor, "i j k batch channel"]:
    """Σ over the signs of (i, j, k) of |F|² = multiplicity · Σ R².

    The mixed terms of |F|² change sign with an index and cancel over its two signs.
    """
    return products.square().sum(0).mul_(shells.multiplicity[..., None, None])


def _by_shell(
    energy: Float[Tensor, "i j k batch *channel"], shells: Shells
) -> Float[Tensor, "shell *channel"]:
    """Σ over windows and over the indices of each shell."""
    total = energy.new_zeros(shells.num_shells + 1, *energy.shape[4:])
    total.index_add_(0, shells.index.flatten(), energy.sum(3).flatten(0, 2))
    return total[: shells.num_shells]


def full_shell_energy(
    values: Float[Tensor, "batch channel time height width"], shells: Shells
) -> Float[Tensor, "shell channel"]:
    """Σ over windows of Σ_{k in shell} m(k) |FFT(values)(k)|², the FFT unnormalised."""
    products = _products(_planes(values.flatten(0, 1), shells), shells)
    return _by_shell(_full_energy(products.unflatten(-1, values.shape[:2]), shells), shells)


class SpectralPass:
    """Adds up the windows of a batch, one at a time.

    Transforms over width and height are made window by window, while its values are in the cache;
    what is left of a window is small, and is finished for several at once.
    """

    def __init__(self, shells: Shells) -> None:
        self._shells = shells
        self._waiting: list[Tensor] = []  # of each window (two_j, two_k, field, channel, time)
        self._sums: SpectralSums | None = None

    def add(self, fields: Float[Tensor, "2 channel time height width"]) -> None:
        """Add one window, as (error, target)."""
        planes = _planes(fields.flatten(0, 1), self._shells)
        self._waiting.append(planes.unflatten(2, fields.shape[:2]))
        if len(self._waiting) == _TOGETHER:
            self._finish()

    def _finish(self) -> None:
        planes, shells = torch.stack(self._waiting, dim=2), self._shells
        self._waiting = []
        products = _products(planes.flatten(2, 4), shells).unflatten(-1, planes.shape[2:5])
        octant = _by_shell(_octant_energy(products), shells)
        frames = planes[0, 0, :, 0].sum(1)  # of the error, (window, time): j = k = 0
        sums = SpectralSums(
            octant=octant[:, 0],
            full=_by_shell(_full_energy(products[..., 0, :], shells), shells),
            target=octant[:, 1],
            frequency=torch.fft.fft(frames, dim=1).abs().sum(),
        )
        self._sums = sums if self._sums is None else self._sums.merge(sums)

    def sums(self) -> SpectralSums:
        """The sums of all windows added."""
        if self._waiting:
            self._finish()
        assert self._sums is not None, "a pass is over at least one window"
        return self._sums


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
