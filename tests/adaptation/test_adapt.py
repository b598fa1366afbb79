import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.adapting import SETTINGS, Source
from tests.support.ensembles import refit_chains
from tests.support.waves import travelling_wave

import r2no
from r2no.adaptation import (
    EnsembleSettings,
    readouts,
    score_readouts,
)
from r2no.checks import changed
from r2no.data import ArrayWindows, collate
from r2no.ensemble import FittedEnsemble, learning_curve, quadratic_error
from r2no.errors import (
    ConfigError,
    DataError,
    DeviceMemoryError,
    EmptySplitError,
    FileDamagedError,
    FileMissingError,
    FingerprintError,
    GridMismatchError,
    NonFiniteError,
    ShapeError,
)
from r2no.repair_loop import RepairObjective, repair
from r2no.training import Persistence, cached_source


@pytest.fixture(scope="module")
def model(splits):
    return r2no.adapt(Source(), splits["train"], splits["fit"], settings=SETTINGS)


def test_adapted_model_beats_its_source_on_new_trajectories(model, splits):
    scores, _ = score_readouts(model, splits["test"], readouts(model))
    assert scores["r2no_m2"]["rmse"] < scores["source"]["rmse"]
    assert scores["r2no_m1"]["rmse"] < scores["source"]["rmse"]


class Unasked:
    """A source that must not be asked."""

    def __call__(self, history):
        raise AssertionError("the source was asked before the data were checked")


def test_data_that_cannot_be_adapted_to_are_refused_before_any_work():
    line = ArrayWindows([torch.randn(40, 16, 1)] * 4, 4, 4)
    with pytest.raises(GridMismatchError, match="two spatial axes"):
        r2no.adapt(Unasked(), line, line, settings=SETTINGS)
    plane = ArrayWindows([torch.randn(40, 8, 8, 1)], 4, 4)
    short = ArrayWindows([torch.randn(9, 8, 8, 1)], 4, 4)
    with pytest.raises(EmptySplitError, match="too close to part"):
        r2no.adapt(Unasked(), plane, short, settings=SETTINGS)


def test_a_fit_that_does_not_fit_into_memory_is_named(splits, monkeypatch):
    def full(*arguments, **options):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 50 bytes")

    monkeypatch.setattr(FittedEnsemble, "solve", full)
    with pytest.raises(DeviceMemoryError, match=r"fit of the weights.*fewer cells \(`radial`"):
        r2no.adapt(Source(), splits["train"], splits["fit"], settings=changed(SETTINGS, members=0))


def test_a_fixed_penalty_needs_nothing_held_out(splits):
    one = ArrayWindows([travelling_wave(10)[:8]], 4, 4, measured=(0,))
    fixed = EnsembleSettings(cells="published", radial=2, angular=1, ridge=0.1)
    settings = SETTINGS.model_copy(update={"ensemble": fixed, "members": 1})
    model = r2no.adapt(Source(), splits["train"], one, settings=settings)
    assert model.ensemble.ridge == 0.1


def test_fields_agree_but_for_rounding(model, splits):
    fields = splits["fit"].fields
    assert fields.agrees(replace(fields, time_step=fields.time_step * (1 + 1e-12)))
    assert not fields.agrees(replace(fields, time_step=fields.time_step * 1.01))
    swapped = ArrayWindows([travelling_wave(20)], 4, 4, measured=(0,), channels=("b", "a"))
    with pytest.raises(ShapeError, match="the model's channels"):
        model.evaluate(swapped)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"history": 5}, ShapeError, r"of 4 \+ 4 frames"),
        ({"horizon": 3}, ShapeError, r"of 4 \+ 4 frames"),
        ({"turned": True}, GridMismatchError, "order of their axes"),
        ({"units": ("mm/s", "mm/s")}, DataError, "in 'mm/s', but the model was adapted in 'm/s'"),
        ({"time_step": 0.3}, DataError, "time step of the data is 0.3"),
        ({"spacing": (0.5, 0.25)}, GridMismatchError, "spacing of 0.5"),
        ({"units": ("m s-1", "m/s")}, None, ""),
        ({}, None, ""),  # what the windows do not say is not compared
    ],
)
def test_scores_need_windows_that_are_alike(model, splits, change, error, message):
    """A longer history or another unit was scored without a word, another grid broke raw."""
    known = replace(
        model.fields, units=("m/s", "m/s"), time_step=0.1, spacing=(0.25, 0.25), falling=()
    )
    labelled = replace(model, fields=known)
    options = {"history": 4, "horizon": 4, "measured": (0,), **change}
    recording = travelling_wave(20)
    if options.pop("turned", False):
        recording = recording.transpose(1, 2)
    windows = ArrayWindows([recording], channels=model.fields.channels, **options)
    for scored in (labelled.evaluate, lambda one: score_readouts(labelled, one, {})):
        if error is None:
            scored(windows)
            continue
        with pytest.raises(error, match=message):
            scored(windows)


def test_streamed_prediction_equals_the_public_pieces(model, splits):
    window = collate([splits["test"][0], splits["test"][1]])
    loops = model.loops
    source = model.source(window.history).detach()
    iterates = torch.stack(
        [
            loops.of_field.inverse(
                repair(
                    module,
                    loops.of_history(window.history),
                    loops.of_field(source),
                    steps=3,
                    step_size=0.2,
                )[1:]
            )
            for module in loops.modules
        ]
    ).detach()
    composition = model.ensemble.compose(source)
    for group in model.groups:
        for label, forecast in group.forecasts(window.history, source):
            composition.put(label, forecast)
    for member, depth in itertools.product(range(len(iterates)), (1, 2, 3)):
        composition.add(member, depth, iterates[member, depth - 1])
    expected = composition.result()
    torch.testing.assert_close(model.predict(window.history), expected, atol=1e-4, rtol=1e-4)


def test_evaluate_agrees_with_the_readout_of_the_same_name(model, splits):
    scores, _ = score_readouts(model, splits["test"], readouts(model))
    assert model.evaluate(splits["test"])["rmse"] == pytest.approx(scores["r2no_m2"]["rmse"])


def test_readouts_are_what_their_names_say(model, splits):
    window = collate([splits["test"][0]])
    source = model.source(window.history).detach()
    iterates = {(m, d): h for m, d, h in model.loops(window.history, source)}
    found = {}
    for name, ensemble in readouts(model).items():
        composition = ensemble.compose(source)
        for (member, depth), iterate in iterates.items():
            composition.add(member, depth, iterate)
        found[name] = composition.result().detach()[..., 0]
    close = lambda a, b: torch.testing.assert_close(a, b.detach()[..., 0])  # noqa: E731
    close(found["irno_final"], iterates[0, 3])
    close(found["mean_final"], (iterates[0, 3] + iterates[1, 3]) / 2)
    close(found["mean_all"], torch.stack(list(iterates.values())).mean(0))
    depth = model.fit_errors.best_depth()
    close(found["irno_selected"], iterates[0, depth] if depth else source)


def test_source_is_frozen_and_untouched(splits):
    source = Source()
    before = copy.deepcopy(source.state_dict())
    r2no.adapt(source, splits["train"], splits["fit"], members=1, settings=SETTINGS)
    assert all(torch.equal(before[name], value) for name, value in source.state_dict().items())
    assert not any(parameter.requires_grad for parameter in source.parameters())


class Interrupted(Exception):
    """What stops an adaptation in a test."""


def run_for(updates, splits, folder):
    """An adaptation that is stopped after so many updates; its result and the updates it made."""
    made, value = 0, RepairObjective.__call__

    def counted(self, *arguments, **named):
        nonlocal made
        if made == updates:
            raise Interrupted
        made += 1
        return value(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RepairObjective, "__call__", counted)
        train, fit = splits["train"], splits["fit"]
        return r2no.adapt(Source(), train, fit, settings=SETTINGS, folder=folder), made


def equal_bits(found, expected):
    states = [[m.state_dict() for m in one.loops.modules] for one in (found, expected)]
    for mine, theirs in zip(*states, strict=True):
        assert all(torch.equal(mine[name], value) for name, value in theirs.items())
    assert torch.equal(found.ensemble.weights, expected.ensemble.weights)


def test_finished_work_is_used_again(model, splits, tmp_path):
    first, made = run_for(None, splits, tmp_path)
    equal_bits(first, model)  # the same seed, without a folder
    assert made == 2 * 3 * -(-len(splits["train"]) // 6)  # members, epochs, batches
    again, made = run_for(0, splits, tmp_path)
    equal_bits(again, model)
    assert made == 0


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_interrupted_adaptation_goes_on_and_ends_in_the_same_bits(share, model, splits, tmp_path):
    whole = 2 * 3 * -(-len(splits["train"]) // 6)
    with pytest.raises(Interrupted):
        run_for(round(share * whole), splits, tmp_path)
    resumed, made = run_for(None, splits, tmp_path)
    equal_bits(resumed, model)
    assert made < whole  # epochs that were whole are not repeated


def test_artifact_round_trip_gives_the_same_bits(model, splits, tmp_path):
    history = collate([splits["test"][0]]).history
    path = model.save(tmp_path / "wave.r2no")
    again = r2no.load(path, source=Source())
    assert torch.equal(again.predict(history), model.predict(history))
    assert again.fields == model.fields
    assert again.fit_errors.best_depth() == model.fit_errors.best_depth()


def test_damaged_artifact_is_refused_by_name(model, tmp_path):
    path = model.save(tmp_path / "a.r2no")
    victim = path / "repair-1.safetensors"
    content = bytearray(victim.read_bytes())
    content[-3] ^= 1
    victim.write_bytes(content)
    with pytest.raises(FileDamagedError, match=r"repair-1\.safetensors"):
        r2no.load(path, source=Source())
    (path / "manifest.json").unlink()
    with pytest.raises(FileDamagedError, match=r"manifest\.json"):
        r2no.load(path, source=Source())
    with pytest.raises(FileMissingError, match=r"no artifact .*nowhere.*Check the path"):
        r2no.load(tmp_path / "nowhere", source=Source())


def test_artifact_refuses_another_source(model, tmp_path):
    path = model.save(tmp_path / "a.r2no")
    other = Source()
    other.factor.data += 0.1
    with pytest.raises(FingerprintError, match="not the operator"):
        r2no.load(path, source=other)


def test_source_predictions_are_cached_by_source_and_data(splits, tmp_path):
    calls = []

    def source(history):
        calls.append(len(history))
        return Source()(history).detach()

    first = cached_source(source, splits["fit"], tmp_path)
    made = len(calls)
    again = cached_source(source, splits["fit"], tmp_path)
    assert again.path == first.path
    assert len(calls) == made + 1  # the probe for the fingerprint only
    torch.testing.assert_close(
        first[[3, 1]], source(torch.stack([splits["fit"][n].history for n in (3, 1)]))
    )
    other = cached_source(lambda h: source(h) * 2, splits["fit"], tmp_path)
    assert other.path != first.path
    assert cached_source(source, splits["test"], tmp_path).path != first.path


def test_half_filled_cache_goes_on_where_it_stopped(splits, tmp_path, monkeypatch):
    monkeypatch.setattr("r2no.training.source_cache._SAVE_EVERY", 1)
    budget = [5]

    def source(history):
        if budget[0] == 0:
            raise KeyboardInterrupt
        budget[0] -= 1
        return Source()(history).detach()

    with pytest.raises(KeyboardInterrupt):
        cached_source(source, splits["fit"], tmp_path, batch_size=4)
    budget[0] = 10**6
    found = cached_source(source, splits["fit"], tmp_path, batch_size=4)
    assert 10**6 - budget[0] < 1 + -(-len(splits["fit"]) // 4)
    fresh = cached_source(source, splits["fit"], tmp_path / "fresh", batch_size=4)
    everything = list(range(len(splits["fit"])))
    assert torch.equal(found[everything], fresh[everything])


def test_bad_sources_and_splits_get_named_errors(splits):
    train, fit = splits["train"], splits["fit"]
    adapt = lambda source, a=train, b=fit: r2no.adapt(source, a, b, settings=SETTINGS)  # noqa: E731
    with pytest.raises(ShapeError, match="`source` must return"):
        adapt(lambda h: h[:, :2])
    with pytest.raises(NonFiniteError, match="`source` returned"):
        adapt(lambda h: h * float("inf"))
    with pytest.raises(FingerprintError, match="differently each time"):
        adapt(lambda h: h + torch.rand(()))
    other = ArrayWindows([travelling_wave(5, grid=(8, 10))], 4, 4, measured=(0,))
    with pytest.raises(GridMismatchError, match="`train` and `fit`"):
        adapt(Source(), train, other)

    class Empty(ArrayWindows):
        def __len__(self) -> int:
            return 0

    with pytest.raises(EmptySplitError, match="`fit` holds no windows"):
        adapt(Source(), train, Empty([travelling_wave(5)], 4, 4, measured=(0,)))


def test_wrong_history_is_named(model):
    with pytest.raises(ShapeError, match="`history` must be"):
        model.predict(torch.zeros(1, 3, 8, 12, 2))


def test_gaps_have_no_influence_on_fit_or_score():
    """Other values under the mask: the same bits in the weights and in the scores."""

    def split(seeds, hidden):
        fields, masks = [], []
        for seed in seeds:
            wave = travelling_wave(seed)
            valid = torch.rand(wave.shape, generator=torch.Generator().manual_seed(seed)) > 0.1
            valid[..., 1] = True
            fields.append(torch.where(valid, wave, hidden))
            masks.append(valid.numpy())
        return ArrayWindows(fields, 4, 4, stride=3, measured=(0,), mask=masks)

    found = []
    for hidden in (0.0, 1e6, float("nan")):
        train, fit = split(range(2), hidden), split(range(10, 12), hidden)
        model = r2no.adapt(Source(), train, fit, members=1, settings=SETTINGS)
        found.append((model.ensemble.weights, model.evaluate(fit)["rmse"]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][0], found[2][0])
    assert found[0][1] == found[1][1] == found[2][1]
    assert np.isfinite(found[0][1])


def test_budget_ends_at_the_whole_fit_less_its_folds_variance(model):
    points = model.cost_curve()
    depths = model.ensemble.columns.depths
    assert depths == (1, 3)
    assert {(p.members, p.depth) for p in points} == {
        (0, 0),
        *itertools.product((1, 2), depths),
    }
    assert all(p.evaluations == p.members * p.depth for p in points)
    ensemble = model.ensemble
    options = {"leads": ensemble.plan.lead_groups, "columns": ensemble.columns}
    fits = [
        refit_chains(ensemble.sums.total(fit), ensemble.cells, ensemble.nested.main, **options)
        for fit, _ in ensemble.folds
    ]
    mean = sum(fits) / len(fits)
    after = before = 0.0
    for weights, (_, score) in zip(fits, ensemble.folds, strict=True):
        moments = ensemble.sums.total(score).moments[0]
        away = torch.nn.functional.pad(weights - mean, (0, 1))
        after += float(quadratic_error(moments, weights).sum())
        after -= float(torch.einsum("...i,...ij,...j->...", away, moments, away).sum())
        before += float(moments[..., -1, -1].sum())
    assert points[-1].error == pytest.approx((after / before) ** 0.5)


def test_truncated_model_equals_one_fitted_to_fewer_columns(model, splits):
    cheap = model.truncate(evaluations=2)
    assert len(cheap.loops.modules) * cheap.loops.steps <= 2
    members = len(cheap.loops.modules)
    expected = model.ensemble.derive(members=members, depth=cheap.loops.steps if members else None)
    assert torch.equal(cheap.ensemble.weights, expected.weights)
    history = collate([splits["test"][0]]).history
    assert cheap.predict(history).shape == model.predict(history).shape
    assert cheap.evaluate(splits["test"])["rmse"] > 0


def test_a_model_of_the_base_column_alone_cannot_be_truncated(splits):
    settings = changed(SETTINGS, ensemble=EnsembleSettings(recall=0, mean_field=False), members=0)
    alone = r2no.adapt(Persistence(4, 2), splits["train"], splits["fit"], settings=settings)
    assert alone.ensemble.columns.labels == ("base",)
    with pytest.raises(ConfigError, match="only one model"):
        alone.truncate(0)


def test_budget_argument_gives_the_truncated_model(splits, model):
    cheap = r2no.adapt(Source(), splits["train"], splits["fit"], settings=SETTINGS, budget=2)
    assert cheap.loops.steps * len(cheap.loops.modules) <= 2
    history = collate([splits["test"][0]]).history
    torch.testing.assert_close(
        cheap.predict(history), model.truncate(2).predict(history), rtol=0, atol=0
    )
    with pytest.raises(ConfigError, match="budget"):
        r2no.adapt(Source(), splits["train"], splits["fit"], settings=SETTINGS, budget=0)


def test_cells_argument_is_the_published_fit_on_that_partition(splits):
    cells = r2no.FourierCells.polar((8, 12), radial=3, angular=2, extent="ellipse")
    fitted = r2no.adapt(Source(), splits["train"], splits["fit"], 1, cells=cells, settings=SETTINGS)
    assert fitted.verdict is None
    assert torch.equal(fitted.ensemble.cells.index, cells.index)
    assert fitted.ensemble.ridge in fitted.ensemble.plan.ridge_grid
    other = r2no.FourierCells.polar((8, 8), radial=3, angular=2)
    with pytest.raises(GridMismatchError, match=r"polar\(\(8, 12\)"):
        r2no.adapt(Source(), splits["train"], splits["fit"], cells=other, settings=SETTINGS)


@pytest.mark.parametrize("target", ["rmse", "rel_l2"])
def test_the_weighting_is_chosen_on_held_out_blocks_for_the_target(target):
    """Trajectories of very different size, whose source errs in opposite ways."""

    def split(seeds):
        waves = [travelling_wave(s) * (20.0 if s % 2 else 0.2) for s in seeds]
        return ArrayWindows(waves, 4, 4, stride=3, measured=(0,))

    def source(history):
        large = history.abs().amax((1, 2, 3, 4), keepdim=True) > 5
        return torch.where(large, 0.7, 1.4) * history[:, -1:].expand(-1, 4, -1, -1, -1)

    train, fit = split(range(4)), split(range(10, 18))
    model = r2no.adapt(source, train, fit, 1, target=target, settings=SETTINGS)
    table = {row["exponent"]: row for row in model.provenance["exponents"]}
    assert set(table) == {0.0, 1.0, 2.0}
    chosen = table[model.ensemble.plan.weight_exponent]
    assert chosen[target] == min(row[target] for row in table.values())
    judge = {"rmse": 0.0, "rel_l2": 2.0}[target]
    alone = r2no.adapt(
        source,
        train,
        fit,
        1,
        settings=SETTINGS.model_copy(
            update={"ensemble": EnsembleSettings(radial=4, angular=4, weight_exponent=judge)}
        ),
    )  # fitted and judged with the target's own exponent: a row of the table
    nested = alone.ensemble.nested
    ratio = float(((nested.before - nested.gains).sum() / nested.before.sum()).sqrt())
    assert table[judge][target] == pytest.approx(ratio)
    again = model.ensemble.derive()  # judged as the fit was
    torch.testing.assert_close(again.weights, model.ensemble.weights)
    stored = FittedEnsemble.from_state(*model.ensemble.state())
    torch.testing.assert_close(stored.derive().weights, again.weights, rtol=1e-4, atol=1e-4)
    pooled = model.update(split(range(18, 22))).ensemble
    assert pooled.plan.weight_exponent == model.ensemble.plan.weight_exponent
    assert (pooled.scoring_sums is None) == (pooled.plan.weight_exponent == judge)


def test_learning_curve_shows_blocks_windows_and_spread(model):
    points = model.learning_curve(repeats=3)
    assert [point.blocks for point in points] == list(range(1, len(points) + 1))
    assert [point.windows for point in points] == sorted(point.windows for point in points)
    assert points[-1].error < 1.01 * points[0].error
    assert points[-1].spread < points[0].spread
    few = learning_curve(model.ensemble, repeats=1, points=2)
    assert [point.blocks for point in few] == [1, len(points)]


def test_merged_sites_equal_the_pooled_fit(model, splits):
    """Two sites with the same source and modules against one fit on all their windows."""
    fit = splits["fit"]
    parts = [fit.subset([0, 1]), fit.subset([2, 3])]
    sites = []
    for part in parts:
        site = model.update(part)
        sites.append(site)
    one = sites[0].ensemble.sums.total().moments
    expected = model.ensemble.sums.total().moments
    sums = [site.ensemble.sums.total().moments - expected for site in sites]
    torch.testing.assert_close(sums[0] + sums[1], expected, rtol=1e-8, atol=1e-10)
    assert one.shape == expected.shape
    assert sites[0].fit_errors.windows == len(fit) + len(parts[0])


def test_a_recording_too_short_to_part_is_added_as_one_block(model, splits):
    """Judged by fits without it, and seen by those of all other folds but one."""
    wider = model
    for seed in (30, 31):
        short = ArrayWindows([travelling_wave(seed)[:10]], 4, 4, measured=(0,))
        before, wider = wider, wider.update(short)
        sums, folds, new = (
            wider.ensemble.sums,
            wider.ensemble.folds,
            len(before.ensemble.sums.windows),
        )
        assert float(sums.windows[new]) == len(short) == 3
        assert len(folds) == len(model.ensemble.folds)
        judging = [place for place, (_, score) in enumerate(folds) if new in score]
        assert len(judging) == 1
        assert new not in folds[judging[0]][0]
        assert all(new in fit for place, (fit, _) in enumerate(folds) if place not in judging)
        assert wider.verdict.blocks == before.verdict.blocks + 1
        assert wider.ensemble.plan.units[-1] not in before.ensemble.plan.units
        bands, old = wider.calibration.bands, before.calibration.bands
        assert bands.groups == old.groups + 1
        assert wider.fit_errors.windows == before.fit_errors.windows + 3
    sizes = wider.calibration.bands.residuals  # of the model before, which had not seen them
    window = collate([short[n] for n in range(3)])
    expected = (window.target - before.predict(window.history))[..., :1].abs().sum(0)
    torch.testing.assert_close(sizes.totals[-1], expected, rtol=1e-4, atol=1e-5)
    judged = [[n for n in score if n >= new - 1] for _, score in wider.ensemble.folds]
    assert sorted(map(len, judged))[-1] == 1  # not both by one fold
    assert float(wider.half_widths(0.8)[..., 0].min()) > 0


def test_a_short_recording_is_added_under_published_cells_too(splits):
    short = ArrayWindows([travelling_wave(30)[:10]], 4, 4, measured=(0,))
    chosen = EnsembleSettings(cells="published", radial=2, angular=1, ridge="auto")
    settings = SETTINGS.model_copy(update={"ensemble": chosen, "members": 1})
    model = r2no.adapt(Source(), splits["train"], splits["fit"], settings=settings)
    wider = model.update(short)
    assert float(wider.ensemble.sums.windows.sum()) == len(splits["fit"]) + len(short)
    assert wider.ensemble.ridge in wider.ensemble.ridge_scores


def test_windows_that_a_model_has_are_not_added_again(model, splits, tmp_path):
    with pytest.raises(ConfigError, match="in the model already"):
        model.update(splits["fit"])
    more, most = (
        ArrayWindows([travelling_wave(n) for n in seeds], 4, 4, measured=(0,))
        for seeds in (range(30, 32), range(32, 34))
    )
    wider = model.update(more).update(most)
    again = r2no.load(wider.save(tmp_path / "wider.r2no"), Source())
    for known in (splits["fit"], more, most):
        for each in (wider, again):
            with pytest.raises(ConfigError, match="in the model already"):
                each.update(known)


def test_merge_refuses_other_sources_and_modules(model, splits):
    from dataclasses import replace

    source = Source()
    source.factor.data.fill_(0.8)
    for other in (source, lambda history: model.source(history) + 0.01):
        with pytest.raises(FingerprintError, match="source"):
            model.merge(replace(model, source=other))
    fewer = model.truncate(evaluations=3)
    if len(fewer.loops.modules) == 1:
        with pytest.raises(FingerprintError, match="modules"):
            model.merge(fewer)
