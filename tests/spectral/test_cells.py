import math
from dataclasses import replace

import pytest
import torch
from jaxtyping import TypeCheckError
from tests.support.rounding import other_rounding, round_otherwise

from r2no.errors import ConfigError, GridMismatchError
from r2no.spectral import (
    FourierCells,
    cell_energy,
    count_coefficients,
    hermitian_multiplicity,
    resample,
)
from r2no.spectral.transforms import (
    forward,
    inverse,
    orientation,
    rounded_sqrt,
    rows_together,
    space_last,
    wavenumber_radius,
)

GRIDS = [(12, 16), (12, 17), (11, 16), (11, 17), (9,), (10,), (4, 5, 6), (5, 4, 7)]


def field(grid: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    return torch.randn(2, 3, *grid, 2, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_transforms_do_not_see_how_rows_lie_in_memory(grid, rng) -> None:
    values = space_last(field(grid, rng))
    together = rows_together(values)
    assert torch.equal(together, values)
    first = 3 if len(grid) > 1 else 0
    assert together.movedim(first, 0).is_contiguous()
    expected = forward(values.contiguous(), len(grid))
    torch.testing.assert_close(forward(together, len(grid)), expected, rtol=1e-13, atol=1e-13)


def cells_for(grid: tuple[int, ...], **more: object) -> FourierCells:
    return FourierCells.polar(grid, radial=5, angular=4 if len(grid) == 2 else 1, **more)


def full_plane_index(grid: tuple[int, int], extent: str) -> torch.Tensor:
    """Cells of 128 bands and 16 sectors of every coefficient of the full plane, as published.

    A Nyquist component keeps the sign that ``fftfreq`` gives it, so a coefficient and its mirror
    image can fall into different sectors. The library never fits on such cells.
    """
    axes = [2 * torch.fft.fftfreq(size, dtype=torch.float64) for size in grid]
    vertical, horizontal = torch.meshgrid(*axes, indexing="ij")
    reach = math.sqrt(2.0) if extent == "corner" else 1.0
    radius = rounded_sqrt(vertical**2 + horizontal**2) / reach
    bands = torch.floor(128 * radius).clamp(max=127)
    sectors = torch.floor(16 * orientation(vertical, horizontal)).clamp(max=15)
    return (bands * 16 + sectors).long()


@pytest.mark.parametrize(
    ("extent", "counts"), [("corner", (1468, 1182)), ("ellipse", (1488, 1079))]
)
def test_full_plane_occupancy_is_the_published_one(extent, counts):
    found = [full_plane_index(grid, extent).unique().numel() for grid in ((64, 128), (64, 64))]
    assert tuple(found) == counts


@pytest.mark.parametrize(
    ("extent", "counts"), [("corner", (1449, 1154)), ("ellipse", (1488, 1078))]
)
def test_symmetric_occupancy_is_pinned(extent, counts):
    grids = ((64, 128), (64, 64))
    found = [int(FourierCells.polar(grid, extent=extent).occupied.sum()) for grid in grids]
    assert tuple(found) == counts


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_multiplicity_makes_parseval_exact(grid, rng):
    u = torch.randn(grid, generator=rng, dtype=torch.float64)
    energy = (hermitian_multiplicity(grid) * forward(u, len(grid)).abs() ** 2).sum()
    torch.testing.assert_close(energy, (u**2).sum())


@pytest.mark.parametrize("extent", ["corner", "ellipse"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_projections_sum_to_the_identity_and_keep_energy(grid, extent, rng):
    u, cells = field(grid, rng), cells_for(grid, extent=extent)
    parts = torch.stack([cells.project(u, cell) for cell in range(cells.num_cells)])
    torch.testing.assert_close(parts.sum(0), u)
    energies = (parts**2).flatten(3).sum((2, 3))
    torch.testing.assert_close(energies.T, cell_energy(u, cells).sum(2))
    torch.testing.assert_close(cell_energy(u, cells).sum(), (u**2).sum())


@pytest.mark.parametrize("grid", [g for g in GRIDS if len(g) == 2], ids=str)
def test_every_cell_is_conjugate_symmetric_on_the_full_plane(grid, rng):
    """Masking the full FFT of a real field by one cell leaves a real field."""
    height, width = grid
    cells = FourierCells.polar(grid, radial=6, angular=8)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    stored = columns <= width // 2
    index = torch.where(
        stored,
        cells.index[rows, columns.clamp(max=width // 2)],
        cells.index[-rows % height, (-columns % width).clamp(max=width // 2)],
    )
    assert torch.equal(index, index[-rows % height, -columns % width])
    u = torch.randn(grid, generator=rng, dtype=torch.float64)
    for cell in cells.index.unique().tolist():
        part = torch.fft.ifft2(torch.fft.fft2(u) * (index == cell))
        assert float(part.imag.abs().max()) < 1e-12
        projected = cells.project(u[None, None, ..., None], cell)[0, 0, ..., 0]
        torch.testing.assert_close(part.real, projected)


def test_projection_of_a_projection_is_itself_and_orthogonal_to_others(rng):
    cells, u = cells_for((12, 16)), field((12, 16), rng)
    a, b = cells.project(u, 5), cells.project(u, 6)
    torch.testing.assert_close(cells.project(a, 5), a)
    assert abs(float((a * b).sum())) < 1e-10


def test_cell_sizes_count_the_full_plane():
    cells = FourierCells.polar((11, 14), radial=4, angular=3)
    assert float(cells.sizes.sum()) == 11 * 14
    assert torch.equal(cells.occupied, cells.sizes > 0)


def test_dropping_an_axis_merges_cells():
    full = FourierCells.polar((16, 16), radial=4, angular=4)
    rings = FourierCells.polar((16, 16), radial=4, angular=1)
    sectors = FourierCells.polar((16, 16), radial=1, angular=4)
    assert torch.equal(full.index // 4, rings.index)
    assert torch.equal(full.index % 4, sectors.index)
    assert int(FourierCells.single((16, 16)).index.max()) == 0


def test_halving_bands_and_sectors_nests_exactly():
    fine = FourierCells.polar((64, 128), radial=128, angular=16)
    coarse = FourierCells.polar((64, 128), radial=32, angular=4)
    parent = (fine.index // 16 // 4) * 4 + (fine.index % 16) // 4
    assert torch.equal(parent, coarse.index)


@pytest.mark.parametrize("extent", ["corner", "ellipse"])
@pytest.mark.parametrize("grid", [(64, 128), (64, 64), (60, 100), (33, 48)], ids=str)
def test_cells_do_not_depend_on_how_the_processor_rounds(grid, extent, monkeypatch):
    here = FourierCells.polar(grid, radial=128, angular=16, extent=extent)
    plane = full_plane_index(grid, extent)
    round_otherwise(monkeypatch)
    assert torch.equal(FourierCells.polar(grid, extent=extent).index, here.index)
    assert torch.equal(full_plane_index(grid, extent), plane)


@pytest.mark.parametrize("grid", [(64, 128), (64, 64), (24, 36)], ids=str)
def test_partitions_of_another_rounding_agree_and_nest(grid):
    here = FourierCells.polar(grid, radial=24, angular=8)
    there = other_rounding(here)
    assert not torch.equal(here.index, there.index)
    assert here.agrees(there)
    assert there.agrees(here)
    for size in ((12, 4), (8, 8), (3, 1), (1, 1)):
        coarse = FourierCells.polar(grid, radial=size[0], angular=size[1])
        made = there.parents(coarse)[there.index]
        assert torch.equal(made, there.coarser(*size).index)
        assert coarse.agrees(replace(coarse, index=made))


def test_other_partitions_do_not_agree():
    cells = FourierCells.polar((16, 16), radial=8, angular=4)
    inside = ~cells.on_boundary()
    moved = cells.index.clone()
    moved[tuple(inside.nonzero()[5])] += 4
    sector = cells.index.clone()
    place = tuple((cells.on_boundary() & (cells.index % 4 == 0)).nonzero()[0])
    sector[place] += 1
    for index in (moved, sector):
        assert not cells.agrees(replace(cells, index=index))
    assert not cells.agrees(FourierCells.polar((16, 16), radial=8, angular=4, extent="ellipse"))
    assert not cells.agrees(FourierCells.polar((16, 16), radial=4, angular=4))


def test_coarser_cells_are_those_made_anew():
    fine = FourierCells.polar((64, 128))
    for radial, angular in ((64, 16), (32, 4), (128, 1), (1, 8)):
        fresh = FourierCells.polar((64, 128), radial=radial, angular=angular)
        found = fine.coarser(radial, angular)
        assert torch.equal(found.index, fresh.index)
        assert found.state()[1] == fresh.state()[1]
    with pytest.raises(ConfigError, match="divide"):
        fine.coarser(48, 16)


def test_radius_reaches_the_corner():
    assert float(wavenumber_radius((8, 8)).max()) == pytest.approx(math.sqrt(2))
    assert float(wavenumber_radius((8,)).max()) == pytest.approx(1)
    assert float(wavenumber_radius((8, 8, 8)).max()) == pytest.approx(math.sqrt(3))


def test_bands_are_ordered_from_low_to_high():
    cells, radius = FourierCells.bands((32, 64)), wavenumber_radius((32, 64))
    means = [float(radius[cells.index == band].mean()) for band in range(5)]
    assert means == sorted(means)


@pytest.mark.parametrize(("old", "new"), [((16, 16), (24, 15)), ((15, 24), (16, 16))])
def test_resampling_keeps_band_limited_fields(old, new):
    def wave(grid):
        y, x = (torch.arange(n, dtype=torch.float64) / n for n in grid)
        return (torch.cos(6.0 * math.pi * y)[:, None] * torch.sin(4.0 * math.pi * x))[
            None, None, ..., None
        ]

    torch.testing.assert_close(resample(wave(old), new), wave(new))


def test_inverse_undoes_forward(rng):
    u = torch.randn(3, 7, 9, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(inverse(forward(u), (7, 9)), u)


def test_energy_of_white_noise_per_coefficient_is_the_same_in_every_band(rng):
    u = torch.randn(64, 4, 32, 32, 1, generator=rng, dtype=torch.float64)
    cells = FourierCells.bands((32, 32), num_bands=4)
    counts = count_coefficients(cells, frames=4, channels=1)
    found = cell_energy(u, cells).mean(0) / counts[:, None]
    torch.testing.assert_close(found, torch.ones(4, 1).double(), rtol=0.03, atol=0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"grid": (8, 8), "radial": 0}, ConfigError),
        ({"grid": (8, 8), "extent": "square"}, (ConfigError, TypeCheckError)),
        ({"grid": (8,), "radial": 2, "angular": 2}, ConfigError),
        ({"grid": (8, 8, 8, 8)}, GridMismatchError),
        ({"grid": (1, 8)}, GridMismatchError),
    ],
)
def test_bad_partitions_are_refused(arguments, error):
    with pytest.raises(error):
        FourierCells.polar(**arguments)


def test_wrong_grid_is_named(rng):
    with pytest.raises(GridMismatchError, match=r"`field`.*\(8, 8\).*resample"):
        FourierCells.polar((8, 8)).project(field((8, 9), rng), 0)
