"""Retention: which cells keep the source and which repair it, from the fitted sums alone."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from r2no._repr import brief_repr
from r2no.ensemble.estimator import SpectralEnsemble
from r2no.ensemble.fitted import FittedEnsemble
from r2no.ensemble.ridge import quadratic_error
from r2no.spectral import FourierCells


@dataclass(frozen=True, eq=False)
class Retention:
    """What the ensemble does to each cell, on the fit split; NaN in cells without coefficients.

    Attributes:
        change: ‖Σ_j w_j P_b c_j‖ / ‖P_b h_0‖, the size of the repair relative to the source: 0
            keeps the source. NaN everywhere without the base column, whose sums give ‖P_b h_0‖
            (of a centred one without the mean, so NaN in a cell that holds nothing else).
        gain: 1 - ‖P_b(y - R)‖² / ‖P_b(y - h_0)‖², the share of the source's error removed.
        share: The cell's share of the source's total error.
    """

    change: Float[Tensor, "cell channel"]
    gain: Float[Tensor, "cell channel"]
    share: Float[Tensor, "cell channel"]

    __repr__ = brief_repr


def retention(ensemble: FittedEnsemble | SpectralEnsemble) -> Retention:
    """Read the retention of every cell and channel off a fitted ensemble."""
    if isinstance(ensemble, SpectralEnsemble):
        ensemble = ensemble.fitted_
    sums, weights = ensemble.needed_sums().total(), ensemble.weights
    gram, before = sums.gram[0], sums.energy[0]
    after = quadratic_error(sums.moments[0], weights)
    repair = torch.einsum("bci,bcij,bcj->bc", weights, gram, weights).clamp_min(0)
    base = gram[..., -1, -1] if ensemble.columns.base else torch.full_like(before, torch.nan)
    nothing = before <= 0
    base = torch.where(base > 0, base, torch.nan)
    gain = torch.where(nothing, torch.nan, 1 - after / before.clamp_min(1e-300))
    change = torch.where(nothing, torch.nan, (repair / base).sqrt())
    share = torch.where(nothing, torch.nan, before / before.sum().clamp_min(1e-300))
    return Retention(change, gain, share)


def on_plane(
    values: Float[Tensor, " cell"], of: FittedEnsemble | SpectralEnsemble | FourierCells
) -> Float[Tensor, "height width"]:
    """Spread values by cell over the full Fourier plane of a 2-D grid, zero wavenumber centred."""
    cells = of if isinstance(of, FourierCells) else of.cells
    height, width = cells.grid
    half = values[cells.index]
    rows = torch.arange(height)
    columns = torch.arange(width)
    mirrored = columns > width // 2
    stored_rows = torch.where(mirrored[None, :], (-rows[:, None]) % height, rows[:, None])
    stored_columns = torch.where(mirrored, width - columns, columns).expand(height, width)
    result: Tensor = torch.fft.fftshift(half[stored_rows, stored_columns])
    return result
