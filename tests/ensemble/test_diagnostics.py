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
    found = retention(model)
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
        retention(SpectralEnsemble(cells))


@pytest.mark.parametrize("grid", [(6, 8), (5, 7)], ids=str)
def test_map_on_the_plane_is_point_symmetric(grid):
    source, iterates, target = problem(grid=grid)
    model = SpectralEnsemble(FourierCells.polar(grid, radial=3, angular=4), 0.1, (0,)).fit(
        [(source, iterates, target)]
    )
    plane = torch.fft.ifftshift(on_plane(torch.arange(12).double(), model))
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in grid), indexing="ij")
    assert torch.equal(plane, plane[-rows % grid[0], -columns % grid[1]])
