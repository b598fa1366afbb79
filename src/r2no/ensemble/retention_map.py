"""Retention: which cells keep the source and which repair it, from the fitted sums alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from r2no._repr import brief_repr
from r2no.ensemble.estimator import SpectralEnsemble
from r2no.ensemble.fitted import FittedEnsemble
from r2no.ensemble.gram import GramSums
from r2no.ensemble.ridge import quadratic_error
from r2no.spectral import FourierCells


class Energies(NamedTuple):
    """Squared norms in every cell, over the fit split.

    Attributes:
        before: ‖P_b(y - h_0)‖², the source's error.
        after: ‖P_b(y - R)‖², the ensemble's.
        repair: ‖Σ_j w_j P_b c_j‖², what the weights move.
        source: ‖P_b h_0‖², from the base column (of a centred one without the mean); NaN without.
    """

    before: Float[Tensor, "*cells"]
    after: Float[Tensor, "*cells"]
    repair: Float[Tensor, "*cells"]
    source: Float[Tensor, "*cells"]

    @classmethod
    def of(
        cls, sums: GramSums, weights: Float[Tensor, "cell channel column"], *, base: bool
    ) -> "Energies":
        """From sums of one group; ``base`` says whether they hold the base column, the last one."""
        gram, before = sums.gram[0], sums.energy[0]
        source = gram[..., -1, -1] if base else torch.full_like(before, torch.nan)
        after = quadratic_error(sums.moments[0], weights)
        return cls(before, after, moved_energy(gram, weights), source)


def moved_energy(
    gram: Float[Tensor, "cell channel column column"],
    weights: Float[Tensor, "cell channel column"],
    places: Sequence[int] | None = None,
) -> Float[Tensor, "cell channel"]:
    """‖Σ_j w_j P_b c_j‖² over all columns, or those at some places."""
    if places is not None:
        chosen = list(places)
        weights, gram = weights[..., chosen], gram[..., chosen, :][..., chosen]
    energy: Tensor = torch.einsum("bci,bcij,bcj->bc", weights, gram, weights)
    return energy.clamp_min(0)


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

    change: Float[Tensor, "*cells"]
    gain: Float[Tensor, "*cells"]
    share: Float[Tensor, "*cells"]

    __repr__ = brief_repr

    @classmethod
    def of(cls, found: Energies, total: Tensor) -> "Retention":
        """From energies, of cells and channels in any arrangement, and the total error."""
        before, after, repair, source = found
        nothing = before <= 0
        ratio = (repair / torch.where(source > 0, source, torch.nan)).sqrt()
        return cls(
            torch.where(nothing, torch.nan, ratio),
            torch.where(nothing, torch.nan, 1 - after / before.clamp_min(1e-300)),
            torch.where(nothing, torch.nan, before / total.clamp_min(1e-300)),
        )


def retention(ensemble: FittedEnsemble | SpectralEnsemble) -> Retention:
    """Read the retention of every cell and channel off a fitted ensemble."""
    if isinstance(ensemble, SpectralEnsemble):
        ensemble = ensemble.fitted_
    sums = ensemble.needed_sums().total()
    found = Energies.of(sums, ensemble.weights, base=ensemble.columns.base)
    return Retention.of(found, found.before.sum())


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
