"""Adapting within a time: something usable at once, and never worse than that in the end."""

import pytest
import torch
from tests.support.adapting import FIT, HISTORY, SETTINGS, TRAIN, Source

import r2no
from r2no.adaptation import AdaptSettings
from r2no.adaptation import minutes as within
from r2no.adaptation.minutes import Size, fitting, held_out_error
from r2no.data import ArrayWindows
from r2no.data.window import collate
from r2no.errors import ConfigError
from r2no.training import Persistence


def adapted(folder=None, **options):
    seen = []
    model = r2no.adapt(
        Source(), TRAIN, FIT, settings=SETTINGS, folder=folder, improved=seen.append, **options
    )
    return model, seen


def test_the_instant_model_comes_first_and_the_last_is_the_best(tmp_path, monkeypatch):
    monkeypatch.setattr(within, "fitting", lambda *_: Size(2, 4, 6))
    model, seen = adapted(tmp_path, minutes=5)
    assert seen[0].settings.members == 0
    assert len(seen[0].loops.modules) == 0
    assert model is seen[-1]
    errors = [held_out_error(each) for each in seen]
    assert errors == sorted(errors, reverse=True)
    instant = r2no.adapt(Source(), TRAIN, FIT, settings=SETTINGS, members=0)
    assert torch.equal(seen[0].forecast(HISTORY), instant.forecast(HISTORY))


def test_a_run_that_was_stopped_goes_on_with_the_size_it_chose(tmp_path, monkeypatch):
    monkeypatch.setattr(within, "fitting", lambda *_: Size(1, 4, 6))
    first, _ = adapted(tmp_path, minutes=5)
    monkeypatch.setattr(within, "fitting", lambda *_: pytest.fail("chosen again"))
    again, _ = adapted(tmp_path, minutes=5)
    assert torch.equal(again.forecast(HISTORY), first.forecast(HISTORY))


def test_no_time_leaves_the_instant_model():
    model, seen = adapted(minutes=1e-4)
    assert seen == [model]
    assert model.settings.members == 0
    with pytest.raises(ConfigError, match="minutes"):
        adapted(minutes=-1)


def test_sizes_fit_the_time(monkeypatch):
    monkeypatch.setattr(within, "step_seconds", lambda settings, train: settings.repair.width / 100)
    settings = r2no.AdaptSettings()
    assert fitting(1e6, settings, TRAIN) == Size(3, 32, 1200, both=True)
    assert fitting(120, settings, TRAIN) == Size(1, 32, 225)
    short = fitting(20, settings, TRAIN)
    assert (short.members, short.width) == (1, 8)
    assert fitting(1, settings, TRAIN) is None


def test_a_step_is_timed_on_the_data_at_hand():
    assert 0 < within.step_seconds(SETTINGS, TRAIN) < 60
    assert collate([TRAIN[0]]).history.shape[1] == 4


def test_modules_are_not_deeper_than_small_data_allow():
    fields = [torch.randn(12, 4, 4, 1).cumsum(0) for _ in range(2)]
    train, fit = (
        ArrayWindows([one], 2, 2, stride=stride, measured=(0,))
        for one, stride in zip(fields, (9, 1), strict=True)
    )
    assert len(train) == 1
    source = Persistence(horizon=2, channels=1)
    with pytest.raises(ConfigError, match=r"repair\.depth"):
        r2no.adapt(source, train, fit, members=1, cells="published")
    tried = AdaptSettings().within_reach(train.fields.grid, len(train))
    assert tried.repair.depth == 1
    assert within.step_seconds(tried, train) > 0  # a step runs
    assert SETTINGS.within_reach(TRAIN.fields.grid, len(TRAIN)) is SETTINGS
