"""How much of the weights carries over to other recordings."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from tests.support.adapting import SETTINGS, Source, split
from tests.support.waves import travelling_wave

import r2no
from r2no.adaptation import task
from r2no.adaptation.carrying import _carried, carried
from r2no.data import ArrayWindows
from r2no.ensemble import GramSums
from r2no.ensemble.nested import ENOUGH_RECORDINGS
from r2no.progress import Reporter


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


INSTANT = SETTINGS.model_copy(update={"members": 0})


@pytest.mark.parametrize(("train", "fit"), [(1, 1), (3, 3), (1, 2)])
def test_as_many_train_recordings_are_other_recordings_too(train, fit):
    """Seven recordings are split into 3, 3 and 1; that is no split in time."""
    model = r2no.adapt(Source(), split(range(train)), split(range(10, 10 + fit)), settings=INSTANT)
    assert model.ensemble.plan.recordings == fit
    assert model.ensemble.plan.variation not in (0.0, 1.0)
    assert model.ensemble.plan.spread > 0


@pytest.mark.parametrize("copied", [False, True], ids=["slices", "copies"])
def test_stretches_of_one_recording_keep_all_of_their_weights(copied):
    whole = travelling_wave(0)
    parts = [part.clone() if copied else part for part in (whole[:14], whole[14:])]
    splits, said = [ArrayWindows([part], 4, 4) for part in parts], io.StringIO()
    reporter = Reporter(Console(file=said, width=400))
    model = r2no.adapt(Source(), *splits, settings=INSTANT, reporter=reporter)
    assert model.ensemble.plan.recordings is None
    assert ("count as stretches of the same ones" in said.getvalue()) == copied


def test_two_recordings_are_said_to_tell_little():
    said = io.StringIO()
    reporter = Reporter(Console(file=said, width=400))
    model = r2no.adapt(Source(), split([0]), split([10]), settings=INSTANT, reporter=reporter)
    assert model.ensemble.plan.recordings == 1
    assert "give slices of one array, not copies" in said.getvalue()


def waves(*numbers):
    """Recordings of a wave each, by its number along the grid, that all travel alike."""
    x = torch.arange(24) * 2 * torch.pi / 24
    noise = torch.Generator().manual_seed(sum(numbers))
    found = []
    for number in numbers:
        phase = number * (x - 0.35 * torch.arange(40)[:, None])
        wave = phase.cos()[:, None, :, None].expand(-1, 16, -1, 1)
        found.append(wave + 0.1 * torch.randn(wave.shape, generator=noise))
    return ArrayWindows(found, 4, 4, stride=2)


class Slow(torch.nn.Module):
    """Carries the last frame on, but too slowly."""

    def forward(self, history):
        spectrum = torch.fft.rfft(history[:, -1], dim=2)
        angle = 0.25 * torch.arange(spectrum.shape[2])[:, None] * torch.arange(1, 5)[:, None, None]
        later = spectrum[:, None] * torch.exp(-1j * angle)[None, :, None]
        return torch.fft.irfft(later, n=history.shape[3], dim=3)


def test_one_recording_does_not_speak_for_others_that_differ():
    """Each knows one wave; the weights for the waves it lacks are those of noise."""
    model = r2no.adapt(Slow(), waves(1), waves(3), settings=INSTANT)
    nothing = torch.zeros_like(model.ensemble.weights)
    source = replace(model, ensemble=replace(model.ensemble, weights=nothing))
    new = waves(2, 4)
    assert model.evaluate(new)["rmse"] <= 1.02 * source.evaluate(new)["rmse"]


def test_how_much_recordings_differ_is_seen_on_those_of_both_splits(monkeypatch):
    """Two train recordings that happen to agree do not speak for a third one of the fit split."""
    seen = []

    def listed(groups, loops, splits, settings, reporter, *, recordings):
        seen.extend(len(windows.origins[:, 0].unique()) for windows, _ in splits)
        return carried(groups, loops, splits, settings, reporter, recordings=recordings)

    monkeypatch.setattr(task, "carried", listed)
    few = r2no.adapt(Slow(), waves(1, 1), waves(3), settings=INSTANT)
    assert seen == [2, 1]
    assert few.ensemble.plan.variation > 1.0
    assert not few.verdict.deploy
