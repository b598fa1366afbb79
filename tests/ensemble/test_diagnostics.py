import math

import pytest
import torch

from r2no import FourierCells
from r2no.ensemble import (
    DepthErrors,
    SpectralEnsemble,
    contraction_report,
    on_plane,
    retention,
    selection_price,
)
from r2no.errors import ConfigError, EmptySplitError, NotFittedError
from tests.support.ensembles import problem


def gathered(grid=(6, 8), masked=False):
    source, iterates, target = problem(grid=grid)
    mask = torch.ones_like(target, dtype=torch.bool) if masked else None
    errors = DepthErrors.empty(
        FourierCells.bands(grid, num_bands=3), members=2, steps=3, measured=(0, 2)
    )
    errors.begin(target)
    for member in range(2):
        errors.add(member, 0, source, target, mask)
        for depth in range(1, 4):
            errors.add(member, depth, iterates[member, depth - 1], target, mask)
    return errors, source, iterates, target


def test_rmse_by_depth_is_the_plain_one():
    errors, source, iterates, target = gathered()
    for depth, field in enumerate([source, *iterates[1]]):
        plain = ((field - target)[..., [0, 2]] ** 2).mean().sqrt()
        torch.testing.assert_close(errors.rmse()[1, depth], plain)
    assert errors.best_depth(1) == int(errors.rmse()[1].argmin())


def test_regional_errors_add_up_and_the_gap_is_not_negative():
    errors, *_ = gathered()
    counts = errors.cells.sizes * errors.frames * 2
    total = (errors.regional_frmse() ** 2 * counts).sum(2) * errors.windows
    torch.testing.assert_close(total, errors.total())
    assert errors.gap() >= 0
    assert torch.equal(errors.change()[:, 0], torch.zeros(2, 3).double())


def test_gap_vanishes_when_one_depth_is_best_everywhere():
    errors, *_ = gathered()
    errors.squared[:, 2] = 0
    assert errors.gap() == 0.0


def test_gap_selects_one_depth_per_band_for_all_channels():
    errors, *_ = gathered()
    errors.squared[0] = 1.0
    errors.squared[0, 0, :, 0] = 0.0  # channel 0 is exact at depth 0, channel 1 at depth 1
    errors.squared[0, 1, :, 1] = 0.0
    assert errors.gap() == 0.0


def test_worked_example_of_the_appendix():
    """T(h) = h/2 + 1/2: the region-wise composition is exact while no iterate is."""
    target = torch.zeros(2, dtype=torch.float64)
    iterates = [torch.tensor([-1.0, -3.0]).double()]
    for _ in range(12):
        iterates.append(iterates[-1] / 2 + 0.5)
    stacked = torch.stack(iterates)
    assert stacked[1].tolist() == [0, -1]
    assert stacked[2].tolist() == [0.5, 0]
    squared = (stacked - target) ** 2
    assert float(squared.sum(1).min()) == 0.25
    assert float(squared.min(0).values.sum()) == 0.0
    report = contraction_report(stacked, target, (target / 2 + 0.5) - target)
    assert report.factor == pytest.approx(0.5)
    assert report.bias == pytest.approx(math.sqrt(0.5))
    low, high = report.fixed_point_distance
    assert low <= math.sqrt(2) <= high + 1e-12  # the fixed point is (1, 1)
    assert all(e <= b + 1e-12 for e, b in zip(report.errors, report.bound, strict=True))


def loop(matrix, offset, start, steps=8):
    """Iterates of T(h) = A h + c."""
    iterates = [start]
    for _ in range(steps):
        iterates.append(matrix @ iterates[-1] + offset)
    return torch.stack(iterates)


@pytest.mark.parametrize("radius", [0.3, 0.97, 1.0014])
def test_contraction_factor_of_a_linear_loop_is_its_spectral_radius(radius, rng):
    """A scaled rotation stretches every difference alike, so both ratios are its radius."""
    rotation, _ = torch.linalg.qr(torch.randn(6, 6, generator=rng, dtype=torch.float64))
    matrix = radius * rotation
    offset, start, target = torch.randn(3, 6, generator=rng, dtype=torch.float64)
    still = matrix @ target + offset - target
    report = contraction_report(loop(matrix, offset, start), target, still)
    assert report.step_ratio == pytest.approx(radius, rel=1e-9)
    assert report.pair_ratio == pytest.approx(radius, rel=1e-9)
    assert report.factor == max(report.step_ratio, report.pair_ratio)
    assert report.bias == pytest.approx(float(still.norm()))
    assert (report.bound is None) == (radius > 1)
    if report.bound is not None:
        assert all(e <= b * (1 + 1e-9) for e, b in zip(report.errors, report.bound, strict=True))


def test_pair_ratio_refutes_a_contraction_that_the_steps_suggest():
    """The steps move one component only; the target differs in the one that expands."""
    matrix = torch.diag(torch.tensor([0.5, 1.2])).double()
    offset = torch.zeros(2, dtype=torch.float64)
    start, target = torch.tensor([[1.0, 0.0], [0.0, 10.0]]).double()
    report = contraction_report(loop(matrix, offset, start), target, matrix @ target - target)
    assert report.step_ratio == pytest.approx(0.5)
    assert 1.19 < report.pair_ratio <= 1.2
    assert report.factor == report.pair_ratio
    assert report.bound is None


def test_differences_within_rounding_say_nothing_and_divergence_is_no_contraction():
    still = torch.full((4, 3), 1.0)
    still[2] += 1e-7  # converged; the last bit moves
    report = contraction_report(still, torch.tensor([0.0, 0.0, 0.0]), torch.full((3,), 0.5))
    assert report.step_ratio == 0.0
    assert report.factor == report.pair_ratio == pytest.approx(0.5)
    still[3] = torch.inf
    assert contraction_report(still, torch.zeros(3), torch.zeros(3)).factor == math.inf


def test_expanding_loop_gets_no_bound():
    iterates = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    report = contraction_report(iterates, torch.zeros(1), torch.ones(1))
    assert report.factor == pytest.approx(2.0)
    assert report.bound is None


def test_selection_price_follows_hoeffding():
    price = selection_price(
        bound=2.0, trajectories=50, regions=10, depths=13, checkpoints=12, confidence=0.9
    )
    assert price == pytest.approx(2 * math.sqrt(math.log(2 * 10 * 13 * 12 / 0.1) / 100))
    four = selection_price(
        bound=2.0, trajectories=200, regions=10, depths=13, checkpoints=12, confidence=0.9
    )
    assert four == pytest.approx(price / 2)
    with pytest.raises(ConfigError, match="trajectories"):
        selection_price(bound=1.0, trajectories=0, regions=1, depths=1, checkpoints=1)


def test_best_depth_needs_windows():
    empty = DepthErrors.empty(FourierCells.bands((6, 8)), members=1, steps=2, measured=(0,))
    with pytest.raises(EmptySplitError):
        empty.best_depth()


def test_retention_reads_gain_and_change_off_the_sums():
    source, iterates, target = problem(grid=(6, 8))
    cells = FourierCells.polar((6, 8), radial=3, angular=2)
    model = SpectralEnsemble(cells, 1e-6, (0, 2), weight_exponent=0).fit(
        [(source, iterates, target)]
    )
    found = retention(model.fitted_)
    prediction = model.predict(source, iterates)
    cell = int(cells.index[2, 2])
    before = cells.project(target - source, cell)[..., 0].square().sum()
    after = cells.project(target - prediction, cell)[..., 0].square().sum()
    size = cells.project(prediction - source, cell)[..., 0].norm()
    torch.testing.assert_close(found.gain[cell, 0], 1 - after / before)
    torch.testing.assert_close(
        found.change[cell, 0], size / cells.project(source, cell)[..., 0].norm()
    )
    assert float(found.share.nansum()) == pytest.approx(1)
    with pytest.raises(NotFittedError):
        retention(SpectralEnsemble(cells).fitted_)


@pytest.mark.parametrize("grid", [(6, 8), (5, 7)], ids=str)
def test_map_on_the_plane_is_point_symmetric(grid):
    source, iterates, target = problem(grid=grid)
    model = SpectralEnsemble(FourierCells.polar(grid, radial=3, angular=4), 0.1, (0,)).fit(
        [(source, iterates, target)]
    )
    plane = torch.fft.ifftshift(on_plane(torch.arange(12).double(), model.fitted_))
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in grid), indexing="ij")
    assert torch.equal(plane, plane[-rows % grid[0], -columns % grid[1]])


@pytest.mark.parametrize("grid", [(8, 16), (7, 9)], ids=str)
def test_bands_on_the_plane_hold_as_many_wavenumbers_as_their_sizes(grid):
    cells = FourierCells.bands(grid)
    plane = on_plane(torch.arange(5).double(), cells)
    assert plane[grid[0] // 2, grid[1] // 2] == 0  # the mean lies in the lowest band
    assert plane.long().flatten().bincount(minlength=5).tolist() == cells.sizes.tolist()
