import torch

from r2no.data import Normaliser


def test_missing_values_do_not_count_in_the_statistics(rng: torch.Generator) -> None:
    values = 3 * torch.randn(40, 5, 6, 2, generator=rng, dtype=torch.float64) + 7
    mask = torch.rand(values.shape, generator=rng) > 0.4
    hidden = torch.where(mask, values, 1e9)
    found = Normaliser.gaussian(zip(hidden.split(7), mask.split(7), strict=True))
    for channel in range(2):
        known = values[..., channel][mask[..., channel]]
        torch.testing.assert_close(found.shift[channel], known.mean().float())
        torch.testing.assert_close(found.scale[channel], known.std(correction=0).float())


def test_channel_without_values_stays_as_it_is() -> None:
    values, mask = torch.ones(4, 3, 2), torch.zeros(4, 3, 2, dtype=torch.bool)
    mask[..., 0] = True
    found = Normaliser.gaussian([(values, mask), (values, mask)])
    assert found.shift.tolist() == [1, 0]
    assert found.scale.tolist() == [1, 1]
