"""Scores of bands against a dense reference in NumPy."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from r2no.errors import ConfigError, EmptySplitError, ShapeError
from r2no.metrics import BandScores

COVERAGES = (0.5, 0.9)


def sample(windows=6, seed=0):
    rng = torch.Generator().manual_seed(seed)
    target = torch.randn(windows, 3, 8, 10, 2, generator=rng)
    middle = 0.3 * torch.randn(target.shape, generator=rng)
    half = torch.rand(len(COVERAGES), 1, 3, 8, 10, 2, generator=rng) + 0.4
    mask = torch.rand(target.shape, generator=rng) > 0.3
    return middle - half, middle + half, target, mask


def dense(lower, upper, target, mask):
    """Everything at once."""
    rows, crps = [], [(0.0, np.abs(target - (lower[0] + upper[0]) / 2)[mask].mean())]
    for p, low, high in zip(COVERAGES, lower, upper, strict=True):
        y, a = target, 1 - p
        score = high - low + 2 / a * np.where(y < low, low - y, 0)
        score = score + 2 / a * np.where(y > high, y - high, 0)
        inside = (y >= low) & (y <= high)
        rows.append((p, inside[mask].mean(), (high - low)[mask].mean(), score[mask].mean()))
        crps.append((p, a / 2 * score[mask].mean()))
    x, y = np.array([*crps, (1.0, 0.0)]).T
    return np.array(rows), np.sum((y[1:] + y[:-1]) / 2 * np.diff(x))


def test_scores_are_those_of_the_dense_reference():
    lower, upper, target, mask = sample()
    found = BandScores(COVERAGES).update(lower, upper, target, mask).compute()
    rows, crps = dense(*(part.double().numpy() for part in (lower, upper, target)), mask.numpy())
    np.testing.assert_allclose([list(row.values()) for row in found["rows"]], rows, rtol=1e-9)
    assert found["crps"] == pytest.approx(crps)
    inside = ((target >= lower) & (target <= upper) & mask).double()
    edge = torch.ones(8, 10, dtype=torch.bool)
    edge[1:-1, 1:-1] = False
    shares = inside[:, :, :, edge].sum((1, 2, 3, 4)) / mask[:, :, edge].sum()
    np.testing.assert_allclose(found["by_region"]["edge"], shares)
    by_lead = inside.sum((1, 3, 4, 5)) / mask.sum((0, 2, 3, 4))
    np.testing.assert_allclose(found["by_lead"], by_lead.T)
    by_channel = inside.sum((1, 2, 3, 4)) / mask.sum((0, 1, 2, 3))
    np.testing.assert_allclose(found["by_channel"], by_channel.T)


def test_batches_and_merging_change_nothing_but_rounding():
    lower, upper, target, mask = sample()
    whole = BandScores(COVERAGES).update(lower, upper, target, mask).compute()
    first, second = BandScores(COVERAGES), BandScores(COVERAGES)
    first.update(lower[:, :2], upper[:, :2], target[:2], mask[:2])
    second.update(lower[:, 2:], upper[:, 2:], target[2:], mask[2:])
    assert first.merge(second).compute()["crps"] == pytest.approx(whole["crps"], rel=1e-12)


def test_values_under_the_mask_do_not_count():
    lower, upper, target, mask = sample()
    hidden = target.masked_fill(~mask, torch.nan)
    found, expected = (
        BandScores(COVERAGES).update(lower, upper, t, mask).compute() for t in (hidden, target)
    )
    assert found == expected


def test_the_crps_of_normal_bands_is_that_of_the_normal_distribution():
    levels = np.arange(0.005, 1, 0.005)
    half = torch.tensor(norm.ppf((1 + levels) / 2))[:, None, None, None, None]
    target = torch.randn(2000, 1, 1, 1, generator=torch.Generator().manual_seed(0)).double()
    half = half.expand(-1, *target.shape)
    found = BandScores(levels.tolist()).update(-half, half, target).compute()["crps"]
    y = target.numpy()
    exact = y * (2 * norm.cdf(y) - 1) + 2 * norm.pdf(y) - 1 / np.sqrt(np.pi)
    assert found == pytest.approx(float(exact.mean()), rel=2e-3)


def test_bad_input_is_refused():
    lower, upper, target, mask = sample()
    with pytest.raises(ConfigError, match="coverages"):
        BandScores((0.9, 0.5))
    with pytest.raises(ShapeError, match="Bounds"):
        BandScores(COVERAGES).update(lower[:1], upper[:1], target)
    with pytest.raises(ShapeError, match="coverages"):
        BandScores(COVERAGES).merge(BandScores((0.5,)))
    with pytest.raises(EmptySplitError, match="No value"):
        BandScores(COVERAGES).update(lower, upper, target, mask & False).compute()
