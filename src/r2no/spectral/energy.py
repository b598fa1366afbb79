"""Energies and counts per cell (M1, M10)."""

import torch
from jaxtyping import Float
from torch import Tensor

from r2no._types import Field
from r2no.spectral.cells import FourierCells
from r2no.spectral.transforms import forward, space_last


def cell_energy(field: Field, cells: FourierCells) -> Float[Tensor, "batch cell channel"]:
    """‖P_b u‖² of each window, cell and channel, summed over frames, in float64.

    Summed over the cells this is ‖u‖² (Parseval).
    """
    cells.check_field("field", field)
    spectrum = forward(space_last(field), len(cells.grid))
    return _by_cell((spectrum.abs().double() ** 2).sum(1), cells)


def spectrum_energy(
    spectrum: Float[Tensor, "batch time channel *half_parts"], cells: FourierCells
) -> Float[Tensor, "batch cell channel"]:
    """As :func:`cell_energy` from a transform, real and imaginary part last, without a root."""
    return _by_cell(spectrum.square().sum(-1).sum(1, dtype=torch.float64), cells)


def _by_cell(
    power: Float[Tensor, "batch channel *half"], cells: FourierCells
) -> Float[Tensor, "batch cell channel"]:
    """Squared magnitudes in float64, each as often as the full plane holds it, by cell."""
    flat = (power * cells.multiplicity.to(power)).flatten(2)
    energy = flat.new_zeros(*flat.shape[:2], cells.num_cells)
    energy.index_add_(2, cells.index.reshape(-1).to(flat.device), flat)
    return energy.transpose(1, 2)


def count_coefficients(
    cells: FourierCells, *, frames: int, channels: int
) -> Float[Tensor, " cell"]:
    """|Ω_b| of (M10): coefficients of the full plane, times frames and measured channels."""
    return cells.sizes * frames * channels
