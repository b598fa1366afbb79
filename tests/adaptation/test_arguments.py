"""Python arguments are checked as YAML is: a named error, with the nearest right name."""

import io
import sys

import pytest
from tests.support.adapting import SETTINGS, Source, split
from tests.support.waves import travelling_wave

import r2no
from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairSettings
from r2no.checks import changed
from r2no.data import ArrayWindows
from r2no.data.window import Chosen
from r2no.errors import ConfigError, EmptySplitError
from r2no.progress import Reporter
from r2no.training import TrainSettings


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AdaptSettings(members=-1), "AdaptSettings: `members`"),
        (lambda: AdaptSettings(membrs=2), "`membrs` is not known. Did you mean 'members'"),
        (lambda: AdaptSettings(repair={"widht": 4}), r"`repair\.widht` is not known. Did.*'width'"),
        (lambda: RepairSettings(train={"epocs": 1}), r"`train\.epocs` is not known.*'epochs'"),
        (lambda: RepairSettings(norm="orto"), "`norm` cannot be 'orto'. Did you mean 'ortho'"),
        (lambda: EnsembleSettings(cells="publishd"), "`cells` cannot be 'publishd'.*'published'"),
        (lambda: TrainSettings(lr="fast"), "`lr`"),
        (lambda: TrainSettings(epochs=1, updates=2), "either `epochs` or `updates`"),
        (lambda: changed(SETTINGS, members=-1), "`members`"),
    ],
)
def test_wrong_settings_are_named(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cells": "publishd"}, "`cells` cannot be 'publishd'. Did you mean 'published'"),
        ({"target": "bad"}, "`target` cannot be 'bad'"),
        ({"target": "rmsee"}, "Did you mean 'rmse'"),
        ({"members": -1}, "`members`"),
        ({"budget": -1}, "`budget`"),
    ],
)
def test_wrong_arguments_of_adapt_are_named_before_any_work(options, message):
    def unasked(history):
        raise AssertionError("the source was asked")

    with pytest.raises(ConfigError, match=message):
        r2no.adapt(unasked, split([0]), split([1]), **options)


def test_settings_are_still_read_from_what_they_were_dumped_to():
    assert AdaptSettings(**SETTINGS.model_dump(mode="json")) == SETTINGS
    assert changed(SETTINGS, members=5).repair == SETTINGS.repair


def test_train_windows_given_as_fit_are_refused_without_consent():
    train, again = split(range(2)), split(range(2))
    array = travelling_wave(7)
    shared = [ArrayWindows([a, array], 4, 4, measured=(0,)) for a in map(travelling_wave, (8, 9))]
    for left, right in ((train, train), (train, again), shared):
        with pytest.raises(ConfigError, match="shared_data=True"):
            r2no.adapt(Source(), left, right, settings=SETTINGS)
    model = r2no.adapt(Source(), train, train, members=1, settings=SETTINGS, shared_data=True)
    assert model.provenance["train"] == model.provenance["fit"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "quiet"), [(Terminal, False), (io.StringIO, True)])
def test_progress_is_shown_where_someone_watches(stream, quiet, monkeypatch):
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", stream())
    assert Reporter.default().quiet == quiet


def test_update_names_its_windows_where_there_are_none():
    model = r2no.adapt(Source(), split(range(2)), split(range(10, 14)), members=0)
    with pytest.raises(EmptySplitError, match="`windows` holds no windows"):
        model.update(Chosen(split([20]), []))
