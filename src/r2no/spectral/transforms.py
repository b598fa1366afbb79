"""Unitary real-input FFTs over the spatial axes, and the geometry of the stored half-spectrum.

A real field on a grid (n_1, ..., n_d) is fixed by the coefficients with non-negative last index,
the *half-plane* of shape (n_1, ..., n_d // 2 + 1). A coefficient whose mirror image is not stored
stands for two (M1), so sums over the whole spectrum weight it with m(k) = 2.
"""

import math

import numpy as np
import torch
from jaxtyping import Complex, Float, Shaped
from torch import Tensor

from r2no import checks
from r2no._types import Field, Grid, HalfPlane
from r2no.errors import GridMismatchError, ShapeError

#: Half-turns between two orientations that are one but for rounding; others are further apart on
#: grids of up to ten thousand points a side.
_SAME_ANGLE = 1e-12


def check_grid(grid: Grid) -> Grid:
    """Return ``grid`` as a tuple of ints, or say what is wrong with it."""
    grid = tuple(checks.whole("grid", size) for size in checks.listed("grid", grid))
    if not 1 <= len(grid) <= 3 or min(grid) < 2:
        raise GridMismatchError(
            f"`grid` must have one to three axes of at least 2 points each, but got {grid}. "
            "Give (height, width) of the fields, without frames and channels."
        )
    return grid


def half_shape(grid: Grid) -> Grid:
    """Shape of the stored half-plane."""
    return (*grid[:-1], grid[-1] // 2 + 1)


def forward(values: Float[Tensor, "..."], dimensions: int = 2) -> Complex[Tensor, "..."]:
    """Unitary real-input FFT over the last ``dimensions`` axes."""
    result: Tensor = torch.fft.rfftn(values, dim=tuple(range(-dimensions, 0)), norm="ortho")
    return result


def inverse(spectrum: Complex[Tensor, "..."], grid: Grid) -> Float[Tensor, "..."]:
    """Inverse of :func:`forward` onto ``grid``, over the last ``len(grid)`` axes."""
    result: Tensor = torch.fft.irfftn(
        spectrum, s=grid, dim=tuple(range(-len(grid), 0)), norm="ortho"
    )
    return result


def space_last(
    field: Shaped[Tensor, "batch time *space_channel"],
) -> Shaped[Tensor, "batch time *channel_space"]:
    """(batch, time, *space, channel) to (batch, time, channel, *space), without a copy."""
    return field.movedim(-1, 2)


def rows_together(
    values: Shaped[Tensor, "batch time *channel_space"],
) -> Shaped[Tensor, "batch time *channel_space"]:
    """The same values, a row of all planes, then the next row, in memory.

    A field whose channels come last in memory is read into this order in one go, once from end to
    end, and transforms over space take it as it is.
    """
    if values.ndim < 5:  # one axis of space, or none
        return values.contiguous()
    return values.movedim(3, 0).contiguous().movedim(0, 3)


def channel_last(
    field: Shaped[Tensor, "batch time *channel_space"],
) -> Shaped[Tensor, "batch time *space_channel"]:
    """Inverse of :func:`space_last`."""
    return field.movedim(2, -1)


def channel_picker(channels: tuple[int, ...]) -> slice | list[int]:
    """Index of some channels: a slice, which copies nothing, where they are neighbours."""
    first, last = channels[0], channels[-1]
    return slice(first, last + 1) if channels == tuple(range(first, last + 1)) else list(channels)


def hermitian_multiplicity(grid: Grid) -> HalfPlane:
    """m(k) on the half-plane (M1): 2 where the mirror image is not stored, else 1.

    So Σ_k m(k)|û(k)|² = ‖u‖² for the unitary transform of a real field u.
    """
    grid = check_grid(grid)
    last = torch.full((half_shape(grid)[-1],), 2.0, dtype=torch.float64)
    last[0] = 1.0
    if grid[-1] % 2 == 0:
        last[-1] = 1.0
    return last.expand(half_shape(grid)).clone()


def wavenumbers(grid: Grid) -> list[HalfPlane]:
    """Each wavenumber component over its Nyquist wavenumber, on the half-plane, in [-1, 1)."""
    grid = check_grid(grid)
    axes = [2 * torch.fft.fftfreq(size, dtype=torch.float64) for size in grid[:-1]]
    axes.append(2 * torch.fft.rfftfreq(grid[-1], dtype=torch.float64))
    return list(torch.meshgrid(*axes, indexing="ij"))


def rounded_sqrt(values: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The correctly rounded square root, the same bits on every processor.

    NumPy uses the processor's own instruction, which IEEE 754 defines to the last bit. PyTorch
    goes through a vector library that is off by one unit here and there, differently on each
    processor, and a radius on the boundary of two bands then changes sides.
    """
    return torch.from_numpy(np.asarray(np.sqrt(values.cpu().numpy()))).to(values.device)


def wavenumber_radius(grid: Grid) -> HalfPlane:
    """Normalised radius (M2), ρ(k) = sqrt(Σ_i (k_i / k_i,Nyquist)²), in [0, sqrt(d)]."""
    squares = sum((component**2 for component in wavenumbers(grid)), torch.zeros(()))
    return rounded_sqrt(squares)


def orientation(
    vertical: Float[Tensor, "*plane"], horizontal: Float[Tensor, "*plane"]
) -> Float[Tensor, "*plane"]:
    """φ = atan2(k_y, k_x)/π mod 1 of wavenumbers over their Nyquist wavenumbers (M2).

    Sectors can only meet a wavenumber on their boundary where φ is a multiple of 1/4 (tan of any
    other rational angle is irrational). There φ is set exactly, since arctangents are not rounded
    alike on every processor.
    """
    turns = torch.remainder(torch.atan2(vertical, horizontal) / math.pi, 1.0)
    for quarters in (0.25, 0.5, 0.75):
        turns = torch.where((turns - quarters).abs() < _SAME_ANGLE, quarters, turns)
    return torch.where((turns < _SAME_ANGLE) | (turns > 1 - _SAME_ANGLE), 0.0, turns)


def wavenumber_orientation(grid: Grid) -> HalfPlane:
    """Orientation (M2) modulo a half-turn, φ(k) = atan2(k_y, k_x)/π mod 1, on a 2-D half-plane.

    A component on its Nyquist line has no sign: k and its mirror image -k are the same entry up to
    that sign, yet atan2 would tell them apart. Taking both components as positive there gives the
    pair one orientation, so every cell is conjugate-symmetric and its projection real. Example on
    8 × 8: (k_y, k_x) = (3, 4) and (-3, 4) are mirror images, both stored, and share φ = 0.205.
    """
    vertical, horizontal = wavenumbers(grid)
    on_nyquist = (vertical.abs() == 1) | (horizontal.abs() == 1)
    vertical = torch.where(on_nyquist, vertical.abs(), vertical)
    horizontal = torch.where(on_nyquist, horizontal.abs(), horizontal)
    return orientation(vertical, horizontal)


def quadrature_sign(grid: Grid) -> HalfPlane:
    """The odd sign s(k) = -s(-k) of the quadrature partner i s(k) û(k) of a real field (M13).

    It is the sign of the last wavenumber component that has one: a component that is zero or on
    its Nyquist line has none, and a coefficient without any is its own mirror image, where the
    partner is zero. A wave cos(kx) becomes -sin(kx), so a wave and its partner together give any
    phase with real weights. Twice the partner is minus the field, but for those coefficients.
    """
    sign = torch.zeros(half_shape(check_grid(grid)), dtype=torch.float64)
    for component in reversed(wavenumbers(grid)):
        own = torch.where(component.abs() == 1, 0.0, component.sign())
        sign = torch.where(sign == 0, own, sign)
    return sign


def quadrature_partner(
    values: Float[Tensor, "*batch_space"], grid: Grid
) -> Float[Tensor, "*batch_space"]:
    """F⁻¹[i s(k) F(u)] over the last axes: every wave shifted by a quarter of its length."""
    sign = quadrature_sign(grid).to(values)
    return inverse(forward(values, len(grid)) * (1j * sign), grid)


def resample(field: Field, grid: Grid) -> Float[Tensor, "batch time *new_space_channel"]:
    """Fourier-resample a field to another grid, exact for band-limited periodic fields.

    Coefficients on a Nyquist line that only one of the two grids has are dropped, since their
    phase is unknown on the other.
    """
    grid = check_grid(grid)
    values = space_last(field)
    old = tuple(values.shape[3:])
    if len(old) != len(grid):
        raise ShapeError(
            f"`grid` must have as many axes as the field, but got {grid} for shape "
            f"{tuple(field.shape)}. Fields are (batch, time, *space, channel)."
        )
    spectrum = forward(values, len(grid))
    for position, (size, target) in enumerate(zip(old, grid, strict=True)):
        last = position == len(grid) - 1
        spectrum = _resize_axis(spectrum, 3 + position, size, target, half=last)
    scale = math.sqrt(math.prod(grid) / math.prod(old))
    return channel_last(inverse(spectrum * scale, grid))


def _resize_axis(spectrum: Tensor, axis: int, old: int, new: int, *, half: bool) -> Tensor:
    if old == new:
        return spectrum
    keep = (min(old, new) - 1) // 2  # wavenumbers -keep..keep exist on both grids
    shape = list(spectrum.shape)
    shape[axis] = new // 2 + 1 if half else new
    result = spectrum.new_zeros(shape)
    result.narrow(axis, 0, keep + 1).copy_(spectrum.narrow(axis, 0, keep + 1))
    if not half and keep:
        result.narrow(axis, new - keep, keep).copy_(spectrum.narrow(axis, old - keep, keep))
    return result
