"""The alarm for windows unlike those of the fit (M15)."""

import math

import pytest
import torch

from r2no.ensemble.familiar import Familiar, _upper_tail, described
from r2no.errors import ShapeError


def histories(number, seed, *, waves=2.0, size=1.0):
    """Travelling waves of some wavenumber with noise, (window, time, height, width, channel)."""
    rng = torch.Generator().manual_seed(seed)
    phase = 6.28 * torch.rand(number, 1, 1, 1, generator=rng)
    x, t = torch.arange(16) / 16 * 6.283, torch.arange(5)[:, None, None] * 0.3
    field = size * torch.sin(waves * x[None, None, None] - t + phase).expand(number, 5, 12, 16)
    noise = 0.1 * torch.randn(number, 5, 12, 16, generator=rng)
    return (field + noise)[..., None]


def known(number=40, seed=0):
    places = torch.stack([torch.arange(number) // 10, 3 * (torch.arange(number) % 10)], 1)
    return Familiar(described(histories(number, seed)), places, reach=8)


def test_windows_of_the_same_kind_ring_as_rarely_as_the_level_says():
    p = known().p_values(described(histories(200, 1)))
    assert float((p <= 0.1).float().mean()) <= 0.15
    assert float(p.mean()) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("other", [{"waves": 5.0}, {"size": 3.0}], ids=["wavelength", "energy"])
def test_windows_of_another_kind_ring(other):
    p = known().p_values(described(histories(50, 2, **other)))
    assert float((p <= 0.1).float().mean()) >= 0.9


def test_units_do_not_change_the_p_values():
    places = known().places
    millimetres = Familiar(described(1000 * histories(40, 0)), places, reach=8)
    new = histories(10, 3)
    expected = known().p_values(described(new))
    found = millimetres.p_values(described(1000 * new))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)  # histories are float32


def test_merged_windows_are_those_of_both():
    first, second = known(40, 0), known(40, 5)
    merged = first.merge(second)
    places = second.places + torch.tensor([4, 0])
    both = Familiar(
        torch.cat([first.features, second.features]), torch.cat([first.places, places]), reach=8
    )
    new = described(histories(10, 6))
    assert torch.equal(merged.p_values(new), both.p_values(new))
    again = Familiar.from_tensors(merged.tensors())
    assert torch.equal(again.p_values(new), both.p_values(new))


def test_windows_of_another_reach_are_not_merged():
    with pytest.raises(ShapeError, match="another kind"):
        known().merge(Familiar(known().features, known().places, reach=9))


def drawn(recordings, windows, seed, *, between=1.0, features=8):
    """Features of exchangeable recordings; windows follow each other and fluctuate slowly."""
    rng = torch.Generator().manual_seed(seed)
    effect = torch.randn(recordings, 1, features, generator=rng, dtype=torch.float64)
    steps = torch.randn(recordings, windows, features, generator=rng, dtype=torch.float64)
    for number in range(1, windows):
        steps[:, number] = 0.9 * steps[:, number - 1] + 0.19**0.5 * steps[:, number]
    return between * effect + 0.5 * steps


@pytest.mark.parametrize("between", [0.0, 1.0], ids=["alike", "different"])
@pytest.mark.parametrize("recordings", [4, 8])
def test_windows_of_a_new_recording_ring_no_more_often_than_the_level(recordings, between):
    shares, others = [], []
    for seed in range(100):
        values = drawn(recordings + 1, 12, seed, between=between)
        places = torch.cartesian_prod(torch.arange(recordings), 2 * torch.arange(12))
        alarm = Familiar(values[:-1].flatten(0, 1), places, reach=10)
        shares.append((alarm.p_values(values[-1]) <= 0.1).double().mean())
        others.append((alarm.p_values(values[-1] + 8) <= 0.1).double().mean())
    rate, error = torch.stack(shares).mean(), torch.stack(shares).std() / 10
    assert rate - 2 * error <= 0.1
    assert torch.stack(others).mean() >= 0.8


def test_windows_that_follow_a_single_recording_ring_no_more_often_than_the_level():
    shares = []
    for seed in range(100):
        values = drawn(1, 150, seed)[0]
        places = torch.stack([torch.zeros(100, dtype=torch.long), torch.arange(100)], 1)
        alarm = Familiar(values[:100], places, reach=10)
        shares.append((alarm.p_values(values[110:]) <= 0.1).double().mean())
    rate, error = torch.stack(shares).mean(), torch.stack(shares).std() / 10
    assert rate - 2 * error <= 0.1


def test_repeated_windows_prove_nothing():
    values = drawn(6, 12, 0)
    places = torch.cartesian_prod(torch.arange(6), 2 * torch.arange(12))
    new = drawn(6, 12, 1).flatten(0, 1)
    once = Familiar(values.flatten(0, 1), places, reach=10).p_values(new)
    often = values.flatten(0, 1).repeat_interleave(3, 0)
    thrice = Familiar(often, places.repeat_interleave(3, 0), reach=10).p_values(new)
    assert float(thrice.min()) > 0.3 * float(once.min())


def test_one_short_recording_cannot_tell():
    alarm = Familiar(drawn(1, 8, 0)[0], known().places[:8], reach=100)
    assert torch.equal(alarm.p_values(drawn(1, 3, 1)[0]), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 6.314), (2, 2.920), (5, 2.015), (6, 1.943), (12, 1.782)]
)
def test_the_tail_is_that_of_students_t(freedom, quantile):
    t = torch.tensor([quantile, 0.0, -quantile], dtype=torch.float64)
    expected = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    torch.testing.assert_close(_upper_tail(t, freedom), expected, rtol=0, atol=5e-5)


def test_energies_of_large_values_are_finite():
    history = torch.rand(2, 3, 8, 12, 1, generator=torch.Generator().manual_seed(0))
    moved = described(2.0**80 * history) - described(history)
    torch.testing.assert_close(moved, torch.full_like(moved, 160 * math.log(2)))
