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


def _separable_products(
    values: Float[Tensor, "batch channel time height width"], shells: Shells
) -> tuple[Float[Tensor, "batch channel time"], Float[Tensor, "8 i j k batch channel"]]:
    """Cosine and sine coefficients R over width, height, then time.

    Each product transforms the last axis and brings the result to the front, so the next axis
    is last in turn and nothing is copied.

    Returns:
        The sums over height and width of each frame, and R. Its first axis runs over cosine and
        sine along time, height and width, the last fastest: ccc, ccs, csc, css, scc, ...
    """
    along_time, along_height, along_width = shells.bases
    batch, channel, time, height, width = values.shape
    rows = along_width @ values.reshape(-1, width).T
    rows = along_height @ rows.reshape(-1, height).T
    frames = rows[0, : batch * channel * time].reshape(batch, channel, time)
    products = along_time @ rows.reshape(-1, time).T
    i, j, k = shells.index.shape
    products = products.reshape(2, i, 2, j, 2, k, batch, channel).permute(0, 2, 4, 1, 3, 5, 6, 7)
    return frames, products.flatten(0, 2)


def _octant_energy(
    products: Float[Tensor, "8 i j k batch channel"],
) -> Float[Tensor, "i j k batch channel"]:
    """|F(i, j, k)|² of each window, F = Σ e Π (cos - i sin) over the three axes."""
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
    energy: Float[Tensor, "i j k batch channel"], shells: Shells
) -> Float[Tensor, "shell channel"]:
    """Σ over windows and over the indices of each shell."""
    total = energy.new_zeros(shells.num_shells + 1, energy.shape[-1])
    total.index_add_(0, shells.index.flatten(), energy.sum(3).flatten(0, 2))
    return total[: shells.num_shells]


def full_shell_energy(
    values: Float[Tensor, "batch channel time height width"], shells: Shells
) -> Float[Tensor, "shell channel"]:
    """Σ over windows of Σ_{k in shell} m(k) |FFT(values)(k)|², the FFT unnormalised."""
    _, products = _separable_products(values, shells)
    return _by_shell(_full_energy(products, shells), shells)


def spectral_sums(
    fields: Float[Tensor, "2 batch channel time height width"],
) -> SpectralSums:
    """The sums of one batch from (error, target), float64, zero where nothing was measured."""
    _, batch, _, time, height, width = fields.shape
    shells = cached_shells((time, height, width), fields.device)
    frames, products = _separable_products(fields.flatten(0, 1), shells)
    octant = _octant_energy(products)
    return SpectralSums(
        octant=_by_shell(octant[..., :batch, :], shells),
        full=_by_shell(_full_energy(products[..., :batch, :], shells), shells),
        target=_by_shell(octant[..., batch:, :], shells),
        frequency=torch.fft.fft(frames[:batch].sum(1), dim=1).abs().sum(),
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
