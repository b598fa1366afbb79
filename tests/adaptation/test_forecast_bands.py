"""Forecasts with bands: what predict returns, files, and what carries the calibration on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from tests.support.adapting import SETTINGS, Source, own_operator, split
from tests.support.recordings import HISTORY, HORIZON, recording
from tests.support.waves import travelling_wave
from typer.testing import CliRunner

import r2no
from r2no.adaptation import Prediction, unfamiliar, write_predictions
from r2no.cli.main import app
from r2no.data import ArrayWindows, collate
from r2no.errors import ConfigError, FileDamagedError, NotFittedError

COVERAGES = (0.5, 0.8, 0.9)


def instant(fit, train=None, **options):
    return r2no.adapt(Source(), train or split(range(3)), fit, members=0, **options)


@pytest.fixture(scope="module")
def fit():
    return split(range(10, 16))


@pytest.fixture(scope="module")
def model(fit):
    return instant(fit)


@pytest.fixture(scope="module")
def histories():
    windows = split(range(20, 24))
    return collate([windows[number] for number in range(len(windows))])


def test_bounds_are_nested_and_hold_the_forecast(model, histories):
    found = model.predict(histories.history, coverage=COVERAGES)
    assert isinstance(found, Prediction)
    assert found.coverage == COVERAGES
    assert torch.equal(found.forecast, model.predict(histories.history))
    lower, upper = found.lower[..., 0], found.upper[..., 0]
    assert bool((lower[0] < found.forecast[..., 0]).all())
    assert bool((upper[0] > found.forecast[..., 0]).all())
    assert bool((lower[1:] < lower[:-1]).all())
    assert bool((upper[1:] > upper[:-1]).all())
    assert bool(found.lower[..., 1].isnan().all())  # nothing was measured there
    assert found.familiar.shape == (len(histories.history),)


def test_bands_hold_about_as_often_as_they_say(model, histories):
    found = model.predict(histories.history, coverage=0.8)
    target = histories.target[..., 0]
    inside = (target >= found.lower[..., 0]) & (target <= found.upper[..., 0])
    assert 0.65 < float(inside.float().mean()) < 0.95


def test_one_coverage_gives_bounds_of_the_shape_of_the_forecast(model, histories):
    several = model.predict(histories.history[:2], coverage=[0.9])
    for given in (histories.history[:2], histories.history[:2].numpy()):
        found = model.predict(given, coverage=0.9)
        assert type(found.lower) is type(given)
        assert found.lower.shape == found.forecast.shape
        np.testing.assert_array_equal(np.asarray(found.upper), np.asarray(several.upper[0]))
    listed = model.predict([histories.history[0], histories.history[1]], coverage=COVERAGES)
    assert [part.shape[0] for part in listed.lower] == [3, 3]


def test_values_under_masks_change_no_band(fit):
    def masked(filling):
        waves = [travelling_wave(seed) for seed in range(10, 16)]
        masks = [
            torch.rand(w.shape, generator=torch.Generator().manual_seed(5)) > 0.2 for w in waves
        ]
        filled = [w.masked_fill(~m, filling) for w, m in zip(waves, masks, strict=True)]
        return ArrayWindows(filled, 4, 4, stride=3, measured=(0,), mask=masks)

    bands = [instant(masked(filling)).calibration.bands for filling in (0.0, 1e6)]
    assert torch.equal(bands[0].half_width(0.9), bands[1].half_width(0.9))
    counts = bands[0].residuals.count
    assert float(counts.min()) < float(counts.max())


def test_bands_change_with_the_unit(model, histories):
    def scaled(seeds):
        waves = [1000 * travelling_wave(seed) for seed in seeds]
        return ArrayWindows(waves, 4, 4, stride=3, measured=(0,))

    source = Source()
    other = r2no.adapt(
        lambda history: 1000 * source(history / 1000),
        scaled(range(3)),
        scaled(range(10, 16)),
        members=0,
    )
    expected = 1000 * model.half_widths(0.9)[..., 0]
    torch.testing.assert_close(other.half_widths(0.9)[..., 0], expected, rtol=1e-2, atol=0)


def test_an_artifact_carries_the_bands(model, histories, tmp_path):
    again = r2no.load(model.save(tmp_path / "model"), Source())
    found, expected = (m.predict(histories.history, coverage=0.9) for m in (again, model))
    assert torch.equal(found.lower[..., 0], expected.lower[..., 0])
    np.testing.assert_array_equal(found.familiar, expected.familiar)


def test_a_model_without_bands_says_so(model, histories, tmp_path):
    without = replace(model, calibration=None)  # as artifacts of earlier versions are
    again = r2no.load(without.save(tmp_path / "old"), Source())
    assert torch.equal(again.predict(histories.history), model.predict(histories.history))
    with pytest.raises(NotFittedError, match="has no bands"):
        again.predict(histories.history, coverage=0.9)
    assert again.merge(model).calibration is None


def test_bands_can_be_left_out_and_are_for_published_cells(fit):
    settings = SETTINGS.model_copy(update={"bands": False, "members": 0})
    train = split(range(3))
    assert r2no.adapt(Source(), train, fit, settings=settings).calibration is None
    assert instant(fit, cells="published").calibration is None
    update = {"ensemble": SETTINGS.ensemble.model_copy(update={"cells": "published"})}
    published = SETTINGS.model_copy(update={**update, "bands": True, "members": 1})
    assert r2no.adapt(Source(), train, fit, settings=published).half_widths(0.8).shape[0] == 1


@pytest.mark.parametrize("coverage", [0, 1.0, 90, -0.1, (0.5, 2.0), float("nan"), ()])
def test_a_coverage_that_is_none_is_refused(model, histories, coverage):
    with pytest.raises(ConfigError, match="coverage"):
        model.predict(histories.history, coverage=coverage)


def test_what_keeps_its_source_has_the_bands_of_the_source(fit, histories):
    rng = torch.Generator().manual_seed(3)
    noise = [torch.randn(40, 8, 8, 1, generator=rng) for _ in range(9)]
    windows = [ArrayWindows(noise[n : n + k], 4, 4) for n, k in ((0, 3), (3, 6))]
    model = r2no.adapt(lambda h: 0 * h, *windows, members=0)
    assert not model.verdict.deploy
    width = model.half_widths(0.9)
    assert float(width.mean()) == pytest.approx(1.645, rel=0.05)  # of a normal distribution


def test_update_and_merge_carry_the_bands_of_both(model, fit):
    more = split(range(30, 36))
    updated = model.update(more)
    bands = updated.calibration.bands
    old, new = model.calibration.bands, instant(more).calibration.bands
    assert bands.groups == old.groups + new.groups
    sums, before, added = (each.residuals for each in (bands, old, new))
    torch.testing.assert_close(sums.count, before.count + added.count)
    torch.testing.assert_close(sums.total, before.total + added.total, rtol=0.3, atol=0)
    known = len(split(range(3))) + len(fit) + len(more)  # those of the train split too
    assert len(updated.calibration.familiar.features) == known
    assert r2no.AdaptedModel.merge(model, updated).calibration.bands.groups > bands.groups


@pytest.mark.parametrize("seeds", [[30], [30, 31]])
def test_update_with_few_recordings_leaves_bands_as_narrow_as_they_are(model, histories, seeds):
    """Fits of these alone keep half of their weights or none, which the pooled model does not."""
    updated = model.update(split(seeds))
    assert model.verdict.deploy
    assert updated.verdict.deploy
    before, after = (one.predict(histories.history, coverage=0.9) for one in (model, updated))
    widths = [float((found.upper - found.lower)[..., 0].mean()) for found in (before, after)]
    assert widths[1] == pytest.approx(widths[0], rel=0.2)
    target = histories.target[..., 0]
    inside = (target >= after.lower[..., 0]) & (target <= after.upper[..., 0])
    assert float(inside.double().mean()) == pytest.approx(0.9, abs=0.05)


def test_bands_of_one_recording_have_the_level_of_its_ends(model, tmp_path):
    wave = travelling_wave(40)
    one = instant(ArrayWindows([wave], 4, 4, measured=(0,)))
    folds, found = one.calibration.bands.residuals.folds, one.calibration.bands.residuals.outer
    assert {0, len(folds) - 1} <= set(found) < set(range(len(folds)))
    again = r2no.load(one.save(tmp_path / "model"), Source())
    assert again.calibration.bands.residuals.outer == found
    assert model.calibration.bands.residuals.outer == ()  # of several recordings


@pytest.mark.parametrize("number", [2, 3])
def test_bands_of_few_recordings_are_those_of_a_choice_without_each(number):
    """Stretches of recordings that the fit has seen are forecast better than a further one."""
    few = instant(split(range(10, 10 + number)))
    folds = few.calibration.bands.residuals.folds
    assert len(folds) == number
    scored = [group for _, score in folds for group in score]
    assert all(sorted([*fit, *score]) == sorted(scored) for fit, score in folds)
    assert all(score == tuple(range(score[0], score[-1] + 1)) for _, score in folds)  # one each


def test_a_truncated_model_has_no_bands_unless_it_was_adapted_so(model, fit):
    settings = SETTINGS.model_copy(update={"members": 1, "budget": 1})
    assert r2no.adapt(Source(), split(range(3)), fit, settings=settings).calibration is not None
    assert model.truncate(1).calibration is None


def test_damaged_bands_are_noticed(model, tmp_path):
    bands = model.calibration.bands
    totals, counts = (part[:, :2] for part in (bands.residuals.totals, bands.residuals.counts))
    fewer = bands.residuals.places * 0
    residuals = replace(bands.residuals, totals=totals, counts=counts, places=fewer)
    broken = replace(model.calibration, bands=replace(bands, residuals=residuals))
    folder = replace(model, calibration=broken).save(tmp_path / "model")
    with pytest.raises(FileDamagedError, match="bands"):
        r2no.load(folder, Source())


def test_a_file_of_bands_without_their_sums_is_noticed(model, tmp_path, monkeypatch):
    tensors, settings = model.calibration.state()
    without = {name: value for name, value in tensors.items() if name != "totals"}
    monkeypatch.setattr(type(model.calibration), "state", lambda _: (without, settings))
    folder = model.save(tmp_path / "model")
    with pytest.raises(FileDamagedError, match="lack something"):
        r2no.load(folder, Source())


@pytest.mark.parametrize("coverage", [0.9, COVERAGES], ids=["one", "several"])
def test_an_exported_program_gives_the_bounds(model, histories, coverage, tmp_path):
    path = model.export(tmp_path / "model.pt2", coverage=coverage)
    program = torch.export.load(path).module()
    found = model.predict(histories.history[:3], coverage=coverage)
    expected = (found.forecast, found.lower, found.upper)
    for one, other in zip(program(histories.history[:3]), expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-4, atol=1e-4)


# -- labelled data and files ------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    data = r2no.data.open([recording(seed) for seed in range(8)])
    found = data.split(HISTORY, HORIZON, stride=3, measured=("u",))
    return r2no.adapt(own_operator(), found.train, found.fit, members=0)


def test_labelled_histories_have_labelled_bounds(measured):
    history = recording(20).isel(time=slice(0, HISTORY))
    found = measured.predict(history, coverage=(0.5, 0.9))
    assert found.lower["u"].dims == ("coverage", *found.forecast["u"].dims)
    assert found.lower["coverage"].values.tolist() == [0.5, 0.9]
    assert bool((found.lower["u"] < found.forecast["u"]).all())
    assert found.upper["u"].attrs["units"] == "m/s"
    alone = measured.predict(history, coverage=0.9)
    xr.testing.assert_allclose(alone.upper["u"], found.upper["u"].isel(coverage=1))


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_files_hold_bounds_and_the_alarm(measured, suffix, tmp_path):
    data = r2no.data.open([recording(20), recording(21)])
    path = write_predictions(measured, data, tmp_path / f"f{suffix}", coverage=(0.5, 0.9))
    options = {"engine": "zarr"} if suffix == ".zarr" else {}
    with xr.open_dataset(path, **options) as opened:
        found = opened.load()
    assert found["u_lower"].dims == ("origin", "coverage", "lead", "lat", "lon")
    assert found["u"].attrs["ancillary_variables"] == "u_lower u_upper"
    assert found["u_upper"].attrs["units"] == "m/s"
    assert found["coverage"].values.tolist() == [0.5, 0.9]
    assert bool((found["u_lower"] < found["u"]).all())
    width = found["u_upper"] - found["u_lower"]
    assert bool((width.isel(coverage=1) > width.isel(coverage=0)).all())
    assert found["familiar"].dims == ("origin",)
    assert bool(((found["familiar"] > 0) & (found["familiar"] <= 1)).all())
    with pytest.raises(ConfigError, match="another model, data or choice"):
        write_predictions(measured, data, path, coverage=0.9)


def test_the_command_writes_bands_and_names_unfamiliar_windows(measured, tmp_path):
    folder = measured.save(tmp_path / "model")
    usual, strange = recording(20), recording(21)
    strange["u"] = 5 * strange["u"] ** 2
    strange["u"].attrs = usual["u"].attrs
    for name, data in (("usual", usual), ("strange", strange)):
        data.to_netcdf(tmp_path / f"{name}.nc")
    files = [str(tmp_path / "usual.nc"), str(tmp_path / "strange.nc")]
    out = tmp_path / "forecast.nc"
    command = ["predict", str(folder), *files, "--out", str(out), "--coverage", "0.5", "0.9"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "look unlike all windows of the fit" in result.output
    named = unfamiliar(out)
    assert any("strange" in text for text in named)
    assert sum("strange" in text for text in named) > sum("usual" in text for text in named)
    with xr.open_dataset(out) as found:
        assert found["coverage"].values.tolist() == [0.5, 0.9]
