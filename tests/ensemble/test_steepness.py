"""Bands that follow how steep a forecast is (M14), on residuals whose law is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from r2no.ensemble.bands import Bands
from r2no.ensemble.residuals import ResidualGatherer
from r2no.ensemble.scale import choose_exponent, relative, steepness

SHAPE = (4, 12, 14, 1)


def folds_of(groups):
    return tuple((tuple(g for g in range(groups) if g != out), (out,)) for out in range(groups))


def waves(groups, windows, seed, *, shape=SHAPE):
    """Forecasts (group, window, ...) whose steep parts lie elsewhere in every window."""
    rng = torch.Generator().manual_seed(seed)
    time, height, width, channels = shape
    centre = torch.rand(groups, windows, 1, 1, 1, channels, generator=rng) * width
    tall = (0.7 * torch.randn(groups, windows, 1, 1, 1, channels, generator=rng)).exp()
    x = torch.arange(float(width))[:, None]
    front = tall * torch.tanh((x - centre) / 2)
    return front.expand(groups, windows, time, height, width, channels)


def errors(forecast, seed, *, follow):
    """Residuals of the size of the slope to a power, with a size of each group."""
    rng = torch.Generator().manual_seed(seed)
    size = (0.2 * torch.randn(len(forecast), 1, 1, 1, 1, 1, generator=rng)).exp()
    noise = torch.randn(forecast.shape, generator=rng)
    slope = steepness(forecast.flatten(0, 1)).reshape(forecast.shape)
    return size * noise * (slope + 0.01) ** follow


def calibrate(forecast, values, folds=None):
    group = torch.arange(len(values)).repeat_interleave(values.shape[1])
    gathered = ResidualGatherer(group, folds or folds_of(len(values)), values.shape[2:], steep=True)
    found = values.abs().flatten(0, 1), steepness(forecast.flatten(0, 1))
    gathered.add(torch.arange(len(group)), *found)
    return Bands.of(gathered.residuals())


def made(groups=8, windows=6, seed=0, *, follow=1.0, **options):
    forecast = waves(groups, windows, seed, **options)
    return forecast, errors(forecast, seed + 1000, follow=follow)


def test_a_plane_has_its_slope_and_a_constant_none():
    x, y = torch.meshgrid(torch.arange(9.0), torch.arange(11.0), indexing="ij")
    plane = (3 * x + 4 * y)[None, None, ..., None].expand(2, 5, 9, 11, 2)
    inner = steepness(plane)[:, 1:-1, 2:-2, 2:-2]
    torch.testing.assert_close(inner, torch.full_like(inner, 5.0))
    assert not bool(steepness(torch.full((1, 3, 4, 5, 1), 7.0)).any())


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (2, 1, 1, 6, 1), (1, 2, 2, 2, 3)])
def test_small_grids_have_a_steepness(shape):
    found = steepness(torch.rand(shape))
    assert found.shape == shape
    assert bool(found.isfinite().all())


def test_bands_that_follow_where_errors_do_are_better_and_hold():
    forecast, values = made(follow=1.0)
    bands = calibrate(forecast, values)
    assert bands.exponent >= 0.75
    even = Bands.of(replace(bands.residuals, steepness=None))
    assert even.exponent == 0
    shares, scores = [], []
    for seed in range(20, 40):
        new, error = (part[0] for part in made(1, 6, seed, follow=1.0))
        size, row = error.abs(), []
        for each in (bands, even):
            half = each.half_width(0.9) * each.follow(new)
            row.append(float((half + 10 * (size - half).clamp_min(0)).mean()))
        shares.append(float((size <= bands.half_width(0.9) * bands.follow(new)).float().mean()))
        scores.append(row)
    assert np.mean(scores, 0)[0] < 0.8 * np.mean(scores, 0)[1]
    assert 0.85 < np.mean(shares) < 0.95


def test_bands_do_not_follow_where_errors_do_not():
    chosen = [calibrate(*made(seed=seed, follow=0.0)).exponent for seed in range(5)]
    assert chosen == [0.0] * 5


def test_coverage_of_exchangeable_groups_is_not_below_the_nominal():
    found = {0.5: [], 0.8: []}
    for seed in range(60):
        shape = (2, 4, 9, 1)
        follow = (0.0, 0.5, 1.0)[seed % 3]
        forecast, values = made(9, 3, seed, follow=follow, shape=shape)
        bands = calibrate(forecast[:-1], values[:-1])
        for coverage, shares in found.items():
            half = bands.half_width(coverage) * bands.follow(forecast[-1])
            shares.append(float((values[-1].abs() <= half).float().mean()))
    for coverage, shares in found.items():
        error = np.std(shares) / len(shares) ** 0.5
        assert coverage - 2 * error <= np.mean(shares) <= coverage + 0.04


@pytest.mark.parametrize(("unit", "offset"), [(1e-3, 0.0), (1000.0, 0.0), (1.0, 300.0)])
def test_the_factor_does_not_change_with_the_unit(unit, offset):
    forecast, values = made()
    expected = calibrate(forecast, values)
    found = calibrate(unit * forecast + offset, unit * values)
    assert found.exponent == expected.exponent > 0
    moved = found.follow(unit * forecast[0] + offset)
    torch.testing.assert_close(moved, expected.follow(forecast[0]), rtol=1e-2, atol=1e-3)


def test_a_field_without_any_slope_has_the_usual_width():
    flat = torch.ones(6, 4, *SHAPE)
    bands = calibrate(flat, torch.randn(flat.shape, generator=torch.Generator().manual_seed(1)))
    assert bands.exponent == 0
    usual = torch.zeros(SHAPE)
    assert bool((relative(steepness(flat[0]), usual) == 1).all())


def test_a_channel_that_never_was_steep_has_the_usual_width():
    forecast, values = made(shape=(4, 12, 14, 2))
    forecast = forecast.clone()
    forecast[..., 1], values[..., 1] = 3.0, values[..., 0] / 1e3
    bands = calibrate(forecast, values)
    assert bands.exponent > 0
    new = waves(1, 1, 9, shape=(4, 12, 14, 2))[0]
    found = bands.follow(new)
    assert torch.equal(found[..., 1], torch.ones_like(found[..., 1]))
    assert not torch.equal(found[..., 0], torch.ones_like(found[..., 0]))


def test_bands_follow_beside_a_channel_that_is_met_exactly():
    forecast, values = made(shape=(4, 12, 14, 2))
    forecast = forecast.clone()
    forecast[..., 1], values[..., 1] = 3.0, 0.0
    alone = calibrate(forecast[..., :1], values[..., :1])
    assert calibrate(forecast, values).exponent == alone.exponent > 0


def test_merged_bands_are_those_of_one_pass_over_both():
    forecast, values = made(11, 3, shape=(6, 20, 24, 1))
    values[torch.rand(values.shape, generator=torch.Generator().manual_seed(2)) < 0.2] = torch.nan
    pooled = calibrate(forecast, values)
    parts = [calibrate(forecast[part], values[part]) for part in (slice(6), slice(6, 11))]
    merged = parts[0].merge(parts[1])
    assert merged.exponent == pooled.exponent > 0
    assert torch.equal(merged.scores, pooled.scores)
    assert torch.equal(merged.half_width(0.8), pooled.half_width(0.8))
    assert torch.equal(merged.follow(forecast[0]), pooled.follow(forecast[0]))


def test_merging_with_bands_of_an_earlier_version_gives_bands_that_do_not_follow():
    bands = calibrate(*made())
    old = Bands.of(replace(calibrate(*made(seed=3)).residuals, steepness=None))
    for merged in (bands.merge(old), old.merge(bands)):
        assert merged.exponent == 0
        assert merged.residuals.steepness is None


def test_stored_bands_follow_as_before_and_older_ones_load():
    forecast, values = made()
    bands = calibrate(forecast, values)
    tensors, settings = bands.state()
    again = Bands.from_state(tensors, settings)
    assert torch.equal(again.follow(forecast[0]), bands.follow(forecast[0]))
    assert again.merge(again).exponent == bands.merge(bands).exponent
    older = {name: part for name, part in tensors.items() if not name.startswith("steep")}
    before = Bands.from_state(older, {"folds": settings["folds"]})
    assert before.exponent == 0
    assert before.follow(forecast[0]).numel() == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"steep_totals": lambda t: t[1:]},
        {"steep_totals": lambda t: -t - 1},
        {"steep_windows": lambda t: t[1:]},
        {"steep_sample": lambda t: t[1:]},
        {"steep_sample": lambda t: t * math.nan},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_stored_parts_that_do_not_fit_are_refused(damage):
    tensors, settings = calibrate(*made()).state()
    ((name, change),) = damage.items()
    with pytest.raises(ValueError, match="steepness"):
        Bands.from_state({**tensors, name: change(tensors[name])}, settings)


def test_an_exponent_without_steepness_is_refused():
    tensors, settings = calibrate(*made()).state()
    older = {name: part for name, part in tensors.items() if not name.startswith("steep")}
    with pytest.raises(ValueError, match="exponent"):
        Bands.from_state(older, settings)
    with pytest.raises(ValueError, match="exponent"):
        Bands.from_state(tensors, {**settings, "exponent": 3.0})


def test_nothing_to_choose_by_leaves_the_exponent_at_zero():
    assert choose_exponent([torch.zeros(0)], [torch.zeros(0)]) == 0


@pytest.mark.parametrize("scale", [2.0**-80, 2.0**80], ids=["cross-sections", "number densities"])
def test_steepness_is_in_units_of_the_field_whatever_its_size(scale):
    forecast = waves(1, 2, 0)[0]
    torch.testing.assert_close(steepness(scale * forecast) / scale, steepness(forecast))
