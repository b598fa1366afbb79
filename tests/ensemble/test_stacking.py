"""Shares of fits: optimal, deterministic, and none for what forecasts the same."""

import itertools

import pytest
import torch

from r2no.ensemble.stacking import stacking_shares
from r2no.errors import NonFiniteError


def problem(number, rank, seed, *, gain=1.0):
    """P and c of fits W that explain a target, as held-out sums give them."""
    generator = torch.Generator().manual_seed(seed)
    fits = torch.randn(rank, number, generator=generator, dtype=torch.float64)
    target = torch.randn(rank, generator=generator, dtype=torch.float64)
    return fits.T @ fits, gain * fits.T @ (target + fits.mean(1))


def value(quadratic, linear, shares):
    return float(shares @ quadratic @ shares - 2 * linear @ shares)


def by_enumeration(quadratic, linear):
    """The best of all supports, with and without the bound on the sum active."""
    number, best = len(linear), (0.0, torch.zeros_like(linear))
    for size in range(1, number + 1):
        for support in map(list, itertools.combinations(range(number), size)):
            part, right = quadratic[support][:, support], linear[support]
            free = torch.linalg.lstsq(part, right[:, None]).solution[:, 0]
            ones = torch.ones(size, 1, dtype=part.dtype)
            system = torch.cat([torch.cat([part, ones], 1), torch.cat([ones.T, ones[:1] * 0], 1)])
            bound = torch.linalg.lstsq(system, torch.cat([right, ones[0]])[:, None]).solution
            for found in (free, bound[:-1, 0]):
                if float(found.min()) >= -1e-12 and float(found.sum()) <= 1 + 1e-9:
                    shares = torch.zeros_like(linear)
                    shares[support] = found
                    best = min(best, (value(quadratic, linear, shares), shares), key=lambda x: x[0])
    return best


@pytest.mark.parametrize("gain", [0.1, 1.0, 10.0], ids=["inside", "near", "on the bound"])
@pytest.mark.parametrize("seed", range(12))
def test_shares_are_optimal(seed, gain):
    quadratic, linear = problem(6, 8, seed, gain=gain)
    shares = stacking_shares(quadratic, linear)
    assert float(shares.min()) >= 0
    assert float(shares.sum()) <= 1 + 1e-9
    expected, _ = by_enumeration(quadratic, linear)
    assert value(quadratic, linear, shares) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_optimality_conditions_hold_for_many_fits(seed):
    quadratic, linear = problem(60, 90, seed, gain=3.0)
    shares = stacking_shares(quadratic, linear)
    slope = linear - quadratic @ shares
    price = float(slope[shares > 0].mean()) if float(shares.sum()) > 1 - 1e-9 else 0.0
    torch.testing.assert_close(
        slope[shares > 0], torch.full_like(slope[shares > 0], price), rtol=0, atol=1e-6
    )
    assert float(slope[shares == 0].max()) <= price + 1e-6


def test_equal_fits_count_once_and_the_first_is_taken():
    quadratic, linear = problem(3, 5, 0)
    order = [0, 1, 1, 2, 0]
    twice = stacking_shares(quadratic[order][:, order], linear[order])
    once = stacking_shares(quadratic, linear)
    assert twice[2] == twice[4] == 0
    torch.testing.assert_close(twice[[0, 1, 3]], once)


def test_fits_that_explain_nothing_leave_the_source_alone():
    quadratic, linear = problem(4, 6, 0)
    assert float(stacking_shares(quadratic, -linear.abs()).abs().max()) == 0
    assert float(stacking_shares(0 * quadratic, linear).abs().max()) == 0


def test_negative_directions_are_left_out():
    quadratic, linear = problem(5, 7, 1)
    vector = torch.ones(5, dtype=torch.float64)
    shares = stacking_shares(quadratic - 100 * torch.outer(vector, vector), linear)
    assert bool(shares.isfinite().all())
    assert 0 <= float(shares.sum()) <= 1 + 1e-9


def test_sums_that_are_not_finite_are_named():
    quadratic, linear = problem(2, 3, 0)
    with pytest.raises(NonFiniteError):
        stacking_shares(quadratic * torch.nan, linear)
