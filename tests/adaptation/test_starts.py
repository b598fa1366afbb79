"""Repair loops that start from the instant forecast instead of the source."""

from dataclasses import replace

import pytest
import torch
from tests.support.adapting import FIT, HISTORY, SETTINGS, Source, split
from typer.testing import CliRunner

import r2no
from r2no.adaptation import minutes as within
from r2no.adaptation.group_files import columns_in_words
from r2no.adaptation.groups import Instant
from r2no.adaptation.loops import StartCache
from r2no.adaptation.minutes import Size, held_out_error
from r2no.adaptation.named_readouts import readouts, score_readouts
from r2no.adaptation.stored import read_manifest
from r2no.checks import changed
from r2no.cli.main import app
from r2no.errors import ConfigError, FingerprintError
from r2no.training import SourceCache

TRAIN = split(range(4))


def started(start, **options):
    return changed(SETTINGS, repair=changed(SETTINGS.repair, start=start), **options)


@pytest.fixture(scope="module")
def model():
    return r2no.adapt(Source(), TRAIN, FIT, settings=started("instant"))


def test_loops_start_from_the_instant_forecast(model):
    start = model.loops.start
    assert isinstance(start, Instant)
    source = model.source_forecast(HISTORY)
    composed = start(HISTORY, source)
    assert not torch.equal(composed, source)
    forecasts = dict(model.forecasts(HISTORY, source))
    assert torch.equal(forecasts["instant"], composed)
    ((_, _, first), *_) = model.loops(HISTORY, composed, {0: 1})
    assert torch.equal(forecasts["repair:0.1"], first)
    ((_, _, other), *_) = model.loops(HISTORY, source, {0: 1})
    assert not torch.equal(other, first)


def test_weights_of_the_start_have_not_seen_the_fit_split(model):
    others = split(range(30, 34))
    again = r2no.adapt(Source(), TRAIN, others, settings=started("instant", members=1))
    assert torch.equal(again.loops.start.ensemble.weights, model.loops.start.ensemble.weights)
    assert not torch.equal(again.ensemble.weights.sum(), model.ensemble.weights.sum())


def test_depth_zero_is_the_start(model):
    batch = [FIT[number] for number in range(len(FIT))]
    history = torch.stack([window.history for window in batch])
    target = torch.stack([window.target for window in batch])[..., :1]
    start = model.loops.first(history, model.source_forecast(history))[..., :1]
    squared = (start - target).double().square().mean()
    errors = model.fit_errors
    torch.testing.assert_close(errors.rmse()[0, 0].double() ** 2, squared, rtol=1e-5, atol=0)
    scores, found = score_readouts(model, FIT, readouts(model))
    torch.testing.assert_close(found.squared, errors.squared)
    assert "r2no_m2" in scores
    assert "irno_final" not in scores


def test_starts_are_those_of_the_cached_source(model, tmp_path):
    from r2no.training import cached_source

    cache = cached_source(model.source, FIT, tmp_path)
    starts = StartCache(model.loops.start, FIT, cache)
    assert isinstance(starts, SourceCache)
    history = torch.stack([FIT[n].history for n in (3, 1)])
    expected = model.loops.first(history, model.source_forecast(history))
    torch.testing.assert_close(starts[[3, 1]], expected)
    assert starts.path != cache.path


def test_another_composition_is_another_start(model):
    one, settings = model.loops.start, started("instant", members=1)
    same = r2no.adapt(Source(), TRAIN, split(range(30, 34)), settings=settings).loops.start
    assert same.key == one.key
    fewer = changed(settings, ensemble=changed(settings.ensemble, recall=1))
    other = r2no.adapt(Source(), TRAIN, FIT, settings=fewer).loops.start
    assert other.key != one.key


def test_every_group_of_an_artifact_has_words(model, tmp_path):
    path = model.save(tmp_path / "model.r2no")
    words = columns_in_words(read_manifest(path))
    assert list(words) == ["repair", *(group.name for group in model.groups), "base"]
    assert "loops start from it" in words["instant"]
    shown = CliRunner().invoke(app, ["inspect", str(path)])
    assert shown.exit_code == 0
    assert words["instant"] in " ".join(shown.output.split())


def test_saved_merged_and_exported_as_others_are(model, tmp_path):
    path = model.save(tmp_path / "model.r2no")
    found = r2no.load(path, Source())
    assert torch.equal(found.forecast(HISTORY), model.forecast(HISTORY))
    assert isinstance(found.loops.start, Instant)
    pooled = model.merge(found)
    assert pooled.fit_errors.windows == 2 * model.fit_errors.windows
    program = torch.export.load(model.export(tmp_path / "model.pt2")).module()
    torch.testing.assert_close(program(HISTORY), model.forecast(HISTORY), rtol=1e-4, atol=1e-5)
    weights = replace(model.loops.start.ensemble, weights=model.loops.start.ensemble.weights + 1)
    start = replace(model.loops.start, ensemble=weights)
    other = replace(model, groups=(*model.groups[:-1], start))
    with pytest.raises(FingerprintError, match="repair modules"):
        model.merge(other)
    fewer = model.truncate(3)
    assert torch.isfinite(fewer.forecast(HISTORY)).all()


def test_held_out_blocks_decide_between_the_starts(tmp_path):
    model = r2no.adapt(Source(), TRAIN, FIT, settings=started("held_out"), folder=tmp_path)
    errors = model.provenance["starts"]
    assert set(errors) == {"source", "instant"}
    better = min(errors, key=errors.get)
    assert model.settings.repair.start == better
    assert (model.loops.start is not None) == (better == "instant")
    alone = r2no.adapt(Source(), TRAIN, FIT, settings=started(better), folder=tmp_path)
    assert torch.equal(alone.forecast(HISTORY), model.forecast(HISTORY))
    one = r2no.adapt(Source(), TRAIN, FIT, settings=started(better, members=1), folder=tmp_path)
    assert held_out_error(one) == errors[better]


def test_minutes_try_both_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(within, "fitting", lambda *_: Size(2, 4, 6, both=True))
    r2no.adapt(Source(), TRAIN, FIT, settings=SETTINGS, minutes=5, folder=tmp_path)
    assert (tmp_path / "repair-42").is_dir()
    assert (tmp_path / "repair-42-instant").is_dir()
    more = {folder.name for folder in tmp_path.glob("repair-43*")}
    assert len(more) == 1  # the second module is of the better start only


def test_where_there_is_nothing_to_compose_the_source_is_the_start():
    published = changed(SETTINGS.ensemble, cells="published", ridge=1e-3)
    with pytest.raises(ConfigError, match=r"repair\.start"):
        r2no.adapt(Source(), TRAIN, FIT, settings=started("instant", ensemble=published))
    settings = started("held_out", ensemble=published, members=1)
    model = r2no.adapt(Source(), TRAIN, FIT, settings=settings)
    assert model.loops.start is None
    assert model.settings.repair.start == "source"
