"""Spectral geometry: unitary transforms, Fourier cells and the energies they hold (M1, M2, M10)."""

from r2no.spectral.cells import FourierCells, cell_energy, count_coefficients
from r2no.spectral.transforms import (
    forward,
    hermitian_multiplicity,
    inverse,
    resample,
    wavenumber_radius,
)

__all__ = [
    "FourierCells",
    "cell_energy",
    "count_coefficients",
    "forward",
    "hermitian_multiplicity",
    "inverse",
    "resample",
    "wavenumber_radius",
]
