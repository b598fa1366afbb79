"""How much of the weights carries over to other recordings."""

from dataclasses import replace

import pytest
import torch
from tests.support.adapting import SETTINGS, Source, split

import r2no
from r2no.adaptation.carrying import _carried
from r2no.ensemble import GramSums
from r2no.ensemble.nested import ENOUGH_RECORDINGS


def sums(weights):
    """Gram matrices of one cell and channel in which each recording has weights of its own."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(len(weights), 200, 2, generator=generator, dtype=torch.float64)
    target = torch.einsum("rni,ri->rn", columns, torch.tensor(weights, dtype=torch.float64))
    together = torch.cat([columns, target[..., None]], -1)
    moments = together.transpose(1, 2) @ together
    return GramSums(moments[:, None, None], torch.full((len(weights),), 200.0))


def test_recordings_that_agree_do_not_vary():
    found = _carried(sums([[1.0, -2.0]] * 6), 1)
    assert found.variation == pytest.approx(0, abs=0.01)
    assert found.spread == pytest.approx(0, abs=0.01)  # all of every recording's error is removed


def test_the_more_recordings_disagree_the_less_is_kept():
    few = _carried(sums([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]] * 2), 1)
    assert few.variation > 1  # a share below one half
    more = _carried(sums([[1.0, 0.0], [1.0, 0.0], [0.5, 0.0]] * 2), 1)
    assert 0 <= more.variation < few.variation
    assert 0 < more.spread < few.spread


def test_few_fit_recordings_take_it_from_the_train_split_and_keep_it():
    settings = SETTINGS.model_copy(update={"members": 0})
    few = r2no.adapt(Source(), split(range(4)), split(range(10, 11)), settings=settings)
    plan = few.ensemble.plan
    assert plan.recordings == 1 < ENOUGH_RECORDINGS
    assert plan.variation != 1.0
    again = few.update(split(range(12, 13)))
    assert again.ensemble.plan.recordings == 2
    assert again.ensemble.plan.variation == pytest.approx(plan.variation)
    assert again.ensemble.plan.spread == pytest.approx(plan.spread)
    alone = replace(few.ensemble.nested, spread=0.0).verdict.interval
    low, high = few.verdict.interval
    assert low < alone[0] < alone[1] < high
