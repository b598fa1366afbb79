"""Bands of held-out residuals (M14): what they promise, on residuals whose law is known."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from r2no.ensemble import residuals as residuals_module
from r2no.ensemble.bands import Bands, checked_coverage
from r2no.ensemble.residuals import ResidualGatherer
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


def calibrate(values, folds=None, outer=()):
    """Bands from residuals (group, window, ...), NaN in gaps."""
    group = torch.arange(len(values)).repeat_interleave(values.shape[1])
    folds = folds or folds_of(len(values))
    gathered = ResidualGatherer(group, folds, values.shape[2:], outer=outer)
    gathered.add(torch.arange(len(group)), values.abs().flatten(0, 1))
    return Bands.of(gathered.residuals())


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


def going_on(seed, *, beyond):
    """Six stretches, forecast worse by a factor where nothing was fitted on one side; then more."""
    values = residuals(7, 6, seed, apart=0.0)
    values[[0, 5, 6]] *= beyond
    return values[:-1], values[-1]


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_bands_hold_beyond_the_fit_as_outer_folds_do(coverage):
    found = {(): [], (0, 5): []}
    for seed in range(40):
        old, new = going_on(seed, beyond=1.5)
        for outer, shares in found.items():
            bands = calibrate(old, outer=outer)
            shares.append(float((new.abs() <= bands.half_width(coverage)).float().mean()))
    assert np.mean(found[()]) < coverage - 0.04
    assert coverage <= np.mean(found[0, 5]) <= coverage + 0.04


def test_bands_of_outer_folds_are_nested():
    old, _ = going_on(0, beyond=2.0)
    old[[0, 5]] = old[[0, 5]].clamp(-1.5, 1.5)  # lighter tails than all scores have
    bands = calibrate(old, outer=(0, 5))
    factors = [bands.factor(p) for p in np.linspace(0.02, 0.98, 49).tolist()]
    assert all(a < b for a, b in pairwise(factors))


def test_outer_folds_make_no_difference_where_all_are():
    values = residuals(2, 6, 0)
    assert calibrate(values, outer=(0, 1)).factor(0.5) == calibrate(values).factor(0.5)


def test_outer_folds_without_a_measurement_say_nothing():
    values = residuals(6, 6, 0)
    values[[0, 5]] = torch.nan
    assert calibrate(values, outer=(0, 5)).factor(0.9) == calibrate(values).factor(0.9)


def test_a_channel_that_is_met_exactly_has_no_say_in_the_bands_of_others():
    values = residuals(8, 6, 0)
    alone = calibrate(values[..., :1])
    values[..., 1] = 0  # such as a constant one
    both = calibrate(values)
    for coverage in (0.5, 0.9):
        width = both.half_width(coverage)
        torch.testing.assert_close(width[..., :1], alone.half_width(coverage))
        assert float(width[..., 1].max()) == 0


def test_what_is_met_everywhere_has_bands_of_no_width():
    bands = calibrate(torch.zeros(6, 3, *SHAPE))
    assert float(bands.half_width(0.9).max()) == 0


def test_merged_bands_have_no_outer_folds():
    parts = [going_on(seed, beyond=1.5)[0] for seed in (1, 2)]
    whole, plain = (
        calibrate(parts[0], outer=one).merge(calibrate(parts[1], outer=two))
        for one, two in (((0, 5), (0, 5)), ((), ()))
    )
    assert torch.equal(whole.half_width(0.9), plain.half_width(0.9))


def test_stored_outer_folds_are_kept_and_may_be_missing():
    bands = calibrate(going_on(3, beyond=1.5)[0], outer=(0, 5))
    tensors, settings = bands.state()
    assert Bands.from_state(tensors, settings).factor(0.9) == bands.factor(0.9)
    older = {name: part for name, part in settings.items() if name != "outer"}
    assert Bands.from_state(tensors, older).factor(0.9) < bands.factor(0.9)
    with pytest.raises(ValueError, match="bands"):
        Bands.from_state(tensors, {**settings, "outer": [6]})


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


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
@pytest.mark.parametrize("shape", [SHAPE, (6, 15, 16, 2)], ids=["all kept", "sampled"])
def test_merged_bands_are_those_of_one_pass_over_both(shape, gaps):
    rng = torch.Generator().manual_seed(5)
    values = torch.randn(11, 3, *shape, generator=rng) * torch.rand(shape, generator=rng)
    values[6:] *= 1 + 3 * torch.rand(shape, generator=rng)  # another site, another map of errors
    if gaps:
        values[torch.rand(values.shape, generator=rng) < 0.2] = torch.nan
    one_out = [(tuple(g for g in range(11) if g != out), (out,)) for out in range(11)]
    pooled = calibrate(values, one_out)
    merged = calibrate(values[:6]).merge(calibrate(values[6:]))
    assert merged.residuals.folds == pooled.residuals.folds
    assert merged.pulls == pooled.pulls
    assert torch.equal(merged.scores, pooled.scores)
    for coverage in (0.5, 0.8, 0.9):
        assert torch.equal(merged.half_width(coverage), pooled.half_width(coverage))


def test_merging_in_any_order_gives_the_same_bands():
    parts = [calibrate(k * residuals(4, 3, k)) for k in (1, 2, 3)]
    found = [
        parts[0].merge(parts[1]).merge(parts[2]),
        parts[0].merge(parts[1].merge(parts[2])),
        parts[2].merge(parts[0]).merge(parts[1]),
    ]
    widths = [bands.half_width(0.9) for bands in found]
    for other in widths[1:]:
        torch.testing.assert_close(other, widths[0], rtol=1e-3, atol=0)


def test_a_sample_of_the_residuals_gives_the_factor_of_all(monkeypatch):
    shape = (5, 24, 25, 2)  # 6000 residuals of a window, of which 2048 are kept
    rng = torch.Generator().manual_seed(1)
    scale = torch.rand(shape, generator=rng) + 0.2
    values = torch.randn(6, 4, *shape, generator=rng) * scale
    values[:, :, :, ::2] *= 3  # what a regular thinning would miss
    some = calibrate(values)
    assert len(some.residuals.sizes) == 24 * 2048
    monkeypatch.setattr(residuals_module, "_KEPT", 10**6)
    whole = calibrate(values)
    assert len(whole.residuals.sizes) == 24 * 6000
    for coverage in (0.5, 0.8, 0.9, 0.95):
        assert some.factor(coverage) == pytest.approx(whole.factor(coverage), rel=0.02)
        shares = [
            float((values.abs() <= b.half_width(coverage)).float().mean()) for b in (some, whole)
        ]
        assert shares[0] == pytest.approx(shares[1], abs=3 * 0.5 / (24 * 2048) ** 0.5)


def test_samples_reach_every_place_and_forget_the_window():
    shape = (4, 16, 17, 2)
    values = torch.arange(12.0)[None, :, None, None, None, None].expand(2, 12, *shape) + 1
    kept = calibrate(values).residuals
    assert kept.places.unique().numel() == 4 * 16 * 17 * 2
    sizes, places = kept.of(1)
    assert bool((places.diff() >= 0).all())
    assert sizes.unique().tolist() == list(range(1, 13))


def test_stored_bands_are_the_same_bands():
    bands = calibrate(residuals(8, 4, 7))
    again = Bands.from_state(*bands.state())
    assert torch.equal(again.half_width(0.9), bands.half_width(0.9))
    assert bands.state()[0]["counts"].numel() == 8  # one number per group where there are no gaps
    more = calibrate(residuals(6, 4, 8))
    assert torch.equal(again.merge(more).half_width(0.9), bands.merge(more).half_width(0.9))


def test_stored_gaps_are_the_same_gaps():
    values = residuals(8, 4, 7)
    values[:, :2, :, 1:3] = torch.nan
    bands = calibrate(values)
    again = Bands.from_state(*bands.state())
    assert torch.equal(again.residuals.counts, bands.residuals.counts)


@pytest.mark.parametrize(
    "damage",
    [
        {"size_places": lambda t: t + 10**6},
        {"sizes": lambda t: t[1:]},
        {"sizes": lambda t: -t},
        {"sizes_kept": lambda t: t[1:]},
        {"counts": lambda t: t[:2]},
        {"scores": lambda t: t[:1]},
        {"pulls": lambda t: -t},
        {"pulls": lambda t: t[1:]},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_stored_parts_that_do_not_fit_are_refused(damage):
    tensors, settings = calibrate(residuals(6, 2, 8)).state()
    ((name, change),) = damage.items()
    with pytest.raises(ValueError, match=r"bands|zip"):
        Bands.from_state({**tensors, name: change(tensors[name])}, settings)


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
