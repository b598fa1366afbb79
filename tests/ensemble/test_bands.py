"""Bands of held-out residuals (M14): what they promise, on residuals whose law is known."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from r2no.ensemble.bands import Bands, Scoring, checked_coverage
from r2no.errors import ConfigError, EmptySplitError, ShapeError

SHAPE = (4, 6, 8, 2)  # time, height, width, channel
GRID = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0)) + 0.2  # true scales


def folds_of(groups):
    scored = torch.arange(groups).tensor_split(min(groups, 6))
    return tuple(
        (tuple(g for g in range(groups) if g not in score), tuple(score))
        for score in (part.tolist() for part in scored)
    )


def residuals(groups, windows, seed, *, apart=0.3, shape=SHAPE):
    """Residuals of exchangeable groups: a scale by place, a size by group, heavy tails."""
    rng = torch.Generator().manual_seed(seed)
    size = (apart * torch.randn(groups, 1, 1, 1, 1, 1, generator=rng)).exp()
    noise = torch.randn(groups, windows, *shape, generator=rng)
    tails = torch.rand(groups, windows, 1, 1, 1, 1, generator=rng) + 0.5
    return size * noise * tails * GRID[tuple(slice(n) for n in shape)]


def calibrate(values):
    """Bands from residuals (group, window, ...), NaN in gaps."""
    sizes = values.abs()
    totals, counts = sizes.nansum(1), (~sizes.isnan()).float().sum(1)
    scoring = Scoring(totals, counts, folds_of(len(values)))
    for group, each in enumerate(sizes):
        scoring.add(group, each)
    return scoring.bands()


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
def test_coverage_of_exchangeable_groups_is_not_below_the_nominal(gaps):
    shape, repetitions = (2, 4, 5, 1), 200
    found = {0.5: [], 0.8: [], 0.9: []}
    for seed in range(repetitions):
        values = residuals(9, 3, seed, shape=shape)
        new, old = values[-1], values[:-1].clone()
        if gaps:
            hidden = torch.rand(old.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
            old[hidden] = torch.nan
        bands = calibrate(old)
        for coverage, shares in found.items():
            inside = new.abs() <= bands.half_width(coverage)
            shares.append(float(inside.float().mean()))
    for coverage, shares in found.items():
        error = np.std(shares) / len(shares) ** 0.5
        assert coverage - 2 * error <= np.mean(shares) <= coverage + 0.04


def test_the_scale_follows_the_residuals_as_data_grow():
    few, many = (calibrate(residuals(6, n, 3, apart=0.0)) for n in (2, 60))
    true = GRID / GRID.mean()
    errors = [float((b.scale / b.scale.mean() - true).abs().mean()) for b in (few, many)]
    constant = float((true - 1).abs().mean())
    assert errors[1] < 0.3 * constant
    assert errors[1] < errors[0] < constant


def test_wider_coverage_gives_wider_bands():
    bands = calibrate(residuals(8, 4, 1))
    widths = [bands.half_width(p) for p in (0.1, 0.5, 0.8, 0.9, 0.95)]
    assert all(bool((a < b).all()) for a, b in pairwise(widths))


@pytest.mark.parametrize("unit", [1e-3, 1000.0])
def test_bands_change_with_the_unit(unit):
    values = residuals(8, 4, 2)
    expected = unit * calibrate(values).half_width(0.9)
    torch.testing.assert_close(
        calibrate(unit * values).half_width(0.9), expected, rtol=2e-3, atol=0
    )


def test_a_point_that_was_never_measured_has_the_width_of_its_surroundings():
    values = residuals(8, 4, 4)
    values[..., 2, 3, :] = torch.nan
    width = calibrate(values).half_width(0.9)
    assert bool((width > 0).all())


def test_merged_bands_are_those_of_all_groups():
    values = residuals(12, 6, 5)
    pooled, merged = calibrate(values), calibrate(values[:6]).merge(calibrate(values[6:]))
    torch.testing.assert_close(merged.total, pooled.total)
    torch.testing.assert_close(merged.count, pooled.count)
    assert merged.groups == 12
    for coverage in (0.5, 0.9):
        ratio = merged.half_width(coverage) / pooled.half_width(coverage)
        assert 0.9 < float(ratio.mean()) < 1.1
    again = calibrate(values[6:]).merge(calibrate(values[:6]))
    torch.testing.assert_close(again.half_width(0.9), merged.half_width(0.9), rtol=1e-3, atol=0)


def test_merging_moves_scores_exactly_where_scales_differ_by_a_factor():
    values = residuals(6, 4, 6, apart=0.0)
    bands = calibrate(values)
    moved = bands._rescaled(2 * bands.scale)
    halved = Bands(2 * bands.total, bands.count, bands.pulls, moved, bands.folds)
    torch.testing.assert_close(halved.half_width(0.9), bands.half_width(0.9), rtol=0.02, atol=0)


def test_stored_bands_are_the_same_bands():
    bands = calibrate(residuals(8, 4, 7))
    again = Bands.from_state(*bands.state())
    assert torch.equal(again.half_width(0.9), bands.half_width(0.9))


def test_bands_of_other_fields_are_not_merged():
    bands = calibrate(residuals(6, 2, 8))
    other = calibrate(residuals(6, 2, 8, shape=(2, 4, 5, 1)))
    with pytest.raises(ShapeError, match="bands of shape"):
        bands.merge(other)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.5, 90, float("nan"), "0.9", None])
def test_a_coverage_that_is_none_is_refused(coverage):
    with pytest.raises(ConfigError, match="coverage"):
        checked_coverage(coverage)


def test_too_few_groups_say_how_many_it_takes():
    tiny = residuals(8, 1, 10, shape=(1, 1, 1, 1))
    bands = calibrate(tiny)
    assert bands.factor(0.5) > 0
    with pytest.raises(EmptySplitError, match=r"needs about \d+ held-out blocks, but .* had 8"):
        bands.factor(0.99)
