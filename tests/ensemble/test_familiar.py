"""The alarm for windows unlike those of the fit (M15)."""

import pytest
import torch

from r2no.ensemble.familiar import Familiar, described
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
    torch.testing.assert_close(millimetres.p_values(described(1000 * new)), expected)


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
