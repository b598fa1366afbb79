import math
from dataclasses import replace

import pytest
import torch

from r2no import FourierCells, SpectralEnsemble
from r2no.ensemble import FitBatch, FittedEnsemble, NestedFit, quadratic_error, solve_nested
from r2no.ensemble.chains import Chain
from r2no.ensemble.columns import Columns
from r2no.ensemble.gram import GramSums
from r2no.ensemble.holdout import join_folds
from r2no.ensemble.nested import Carried, _shortfall, judging_folds
from r2no.ensemble.planning import contributions, cost_curve, learning_curve
from r2no.ensemble.ridge import scaled_ridge
from r2no.ensemble.verdict import judge
from r2no.errors import ConfigError, EmptySplitError
from tests.support.ensembles import problem, refit_chains
from tests.support.rounding import other_rounding

GRID = (12, 14)
CELLS = FourierCells.polar(GRID, radial=8, angular=4)
FOLDS = tuple(
    (tuple(g for g in range(6) if g not in pair), pair) for pair in ((0, 1), (2, 3), (4, 5))
)


def grouped(data, groups=6):
    source, iterates, target = data
    group = torch.arange(len(source)) * groups // len(source)
    return [FitBatch(source, iterates, target, None, group)]


def nested(data, cells=CELLS, **more):
    model = SpectralEnsemble(cells, "nested", (0, 2), weight_exponent=0, **more)
    return model.fit(grouped(data), folds=FOLDS)


def structured(seed, windows, noise):
    """Targets composed with weights that differ in every fine cell, plus noise."""
    source, iterates, _ = problem(seed=seed, grid=GRID, windows=windows, members=1, depths=2)
    generator = torch.Generator().manual_seed(99)  # the weights, the same for every seed
    weights = torch.randn(CELLS.num_cells, 2, 3, generator=generator, dtype=torch.float64)
    fit = SpectralEnsemble(CELLS, 0.0, (0, 2)).fit([(source, iterates, source)])
    truth = replace(fit.fitted_, weights=weights)
    target = truth.predict(source, iterates)
    return (
        source,
        iterates,
        target
        + noise
        * torch.randn(
            target.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64
        ),
    )


def rmse(model, data):
    source, iterates, target = data
    return float((model.predict(source, iterates) - target)[..., [0, 2]].square().mean().sqrt())


def test_errors_below_zero_after_the_correction_leave_the_shares_finite():
    source, iterates, _ = problem(seed=0, grid=GRID, windows=12, members=1, depths=1)
    group = torch.arange(12) // 3
    repair = iterates[0, 0] - source
    sign = torch.where(group < 2, 3.0, -1.0).double()
    target = source + sign.view(-1, 1, 1, 1, 1) * repair  # each fold predicts its block exactly
    model = SpectralEnsemble(CELLS, "nested", (0, 2), weight_exponent=0, base_column=False)
    batch = FitBatch(source, iterates, target, None, group)
    found = model.fit([batch], folds=(((0,), (1,)), ((2,), (3,)))).nested_
    assert found.weights.isfinite().all()
    assert sum(chain.share for chain in found.chains) <= 1 + 1e-12


@pytest.mark.parametrize("unit", [1e-22, 1e20])
def test_units_change_neither_shares_nor_verdict(unit):
    data = structured(0, 30, 0.3)
    plain, scaled = nested(data).nested_, nested([unit * field for field in data]).nested_
    assert [chain.levels for chain in scaled.chains] == [chain.levels for chain in plain.chains]
    assert scaled.verdict.gain == pytest.approx(plain.verdict.gain, rel=1e-6)


def test_a_level_minimises_its_error_and_the_distance_from_its_parent():
    sums = nested(structured(0, 30, 0.3)).sums_
    finest = (CELLS.radial, CELLS.angular, 1)
    root = refit_chains(sums, CELLS, [Chain(((0, 0, 1),), (0.1,), 1.0)])
    weights = refit_chains(sums, CELLS, [Chain(((0, 0, 1), finest), (0.1, 0.5), 1.0)])
    moments = sums.total().moments[0]
    gram, rhs = moments[..., :-1, :-1], moments[..., :-1, -1]
    penalty = 0.5 * gram.diagonal(dim1=-2, dim2=-1)
    left = rhs - torch.einsum("kcij,kcj->kci", gram, weights) - penalty * (weights - root)
    assert left.abs().max() < 1e-12 * rhs.abs().max()
    assert (weights - root).abs().max() > 0.01  # the level did move


def test_plentiful_data_reach_the_fine_partitions_error():
    """Weights differ in every fine cell: the mean must not merely smooth."""
    train, test = structured(0, 120, 0.3), structured(1, 40, 0.3)
    auto = nested(train)
    flat = auto.derive(ridge="auto")
    assert rmse(auto, test) <= 1.005 * rmse(flat, test)
    finest = [chain.share for chain in auto.nested_.chains if chain.levels[-1] == (8, 4, 1)]
    assert sum(finest) > 0.99
    assert auto.nested_.verdict.decision == "deploy"


def test_scarce_data_are_not_overfitted():
    train, test = structured(2, 6, 3.0), structured(3, 40, 3.0)
    auto = nested(train)
    source = rmse(
        FittedEnsemble.from_weights(torch.zeros(3), auto.columns_, CELLS, measured=(0, 2)), test
    )
    assert rmse(auto, test) <= min(1.01 * source, rmse(auto.derive(ridge=1e-8), test))


def test_repairs_without_information_keep_the_source():
    kept = 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(1000 + seed)
        source, iterates, _ = problem(seed=seed, grid=GRID, windows=12, members=1)
        noise = torch.randn(source.shape, generator=generator, dtype=torch.float64)
        iterates = source + torch.randn(iterates.shape, generator=generator, dtype=torch.float64)
        model = nested((source, iterates, source + noise))
        kept += model.nested_.verdict.decision == "keep the source"
        if model.nested_.verdict.decision == "keep the source":
            assert torch.equal(model.predict(source, iterates), source)
    assert kept >= 19


def test_infinite_penalties_leave_the_source_at_every_level():
    model = nested(structured(0, 12, 0.3))
    fit = solve_nested(model.sums_, FOLDS, CELLS, grid=(math.inf,))
    assert fit.chains == ()
    assert fit.main == ()
    assert torch.equal(fit.weights, torch.zeros_like(fit.weights))
    torch.testing.assert_close(fit.gains, torch.zeros_like(fit.gains), rtol=0, atol=1e-9)
    assert fit.verdict.decision == "keep the source"


def test_a_single_shared_cell_is_a_ridge_of_one_cell():
    data = problem(grid=GRID, windows=30)
    cells = FourierCells.single(GRID)
    model = nested(data, cells)
    (chain,) = model.nested_.chains
    moments = model.sums_.total().moments[0]
    plain = scaled_ridge(moments[..., :-1, :-1], moments[..., :-1, -1:], chain.penalties)
    torch.testing.assert_close(model.nested_.weights, chain.share * plain[..., 0, 0])
    assert chain.levels == ((1, 1, 1),)


def test_held_out_gains_are_those_of_fits_without_the_block():
    """Of a single chain, whose share is chosen on the other folds: refitted and scored by hand."""
    data = structured(0, 30, 0.3)
    model = nested(data, FourierCells.single(GRID))
    cells = model.cells
    found = solve_nested(model.sums_, FOLDS, cells, grid=(1e-3,))
    chain = replace(found.chains[0], share=1.0)
    fits = [refit_chains(model.sums_.total(fit), cells, [chain]) for fit, _ in FOLDS]
    mean = sum(fits) / len(fits)
    parts = []
    for weights, (_, score) in zip(fits, FOLDS, strict=True):
        moments = model.sums_.total(score).moments[0]
        own = _product(moments, weights, weights) - _product(
            moments, weights - mean, weights - mean
        )
        parts.append((own, torch.einsum("...i,...i->...", weights, moments[..., :-1, -1]).sum()))
    for fold, (_, score) in enumerate(FOLDS):
        others = [part for number, part in enumerate(parts) if number != fold]
        share = float(sum(c for _, c in others) / sum(q for q, _ in others))
        share = min(max(share, 0.0), 1.0)
        away = share * fits[fold] - _mean_of_shares(parts, fits)
        for block in score:
            moments = model.sums_.total((block,)).moments[0]
            error = quadratic_error(moments, share * fits[fold]).sum()
            gain = moments[..., -1, -1].sum() - error + _product(moments, away, away)
            torch.testing.assert_close(found.gains[block], gain)


def _mean_of_shares(parts, fits):
    """The mean over the folds of their fits, each with the share that the others chose."""
    total = 0
    for fold, fit in enumerate(fits):
        others = [part for number, part in enumerate(parts) if number != fold]
        share = float(sum(c for _, c in others) / sum(q for q, _ in others))
        total = total + min(max(share, 0.0), 1.0) * fit
    return total / len(fits)


def _product(moments, first, second):
    gram = moments[..., :-1, :-1]
    return torch.einsum("...i,...ij,...j->...", first, gram, second).sum()


def test_weights_are_the_mean_of_the_chains_fitted_on_everything():
    model = nested(structured(2, 12, 2.0))
    found = model.nested_
    by_hand = sum(
        chain.share * refit_chains(model.sums_, CELLS, [Chain(chain.levels, chain.penalties, 1.0)])
        for chain in found.chains
    )
    torch.testing.assert_close(found.weights, by_hand)
    assert 0 < sum(chain.share for chain in found.chains) <= 1 + 1e-9
    assert [c.share for c in found.chains] == sorted((c.share for c in found.chains), reverse=True)


def test_few_recordings_of_more_leave_the_source_a_share():
    data = structured(0, 30, 0.3)
    whole = nested(data).nested_
    for recordings, trust in ((1, 1 / 2), (2, 2 / 3), (4, 1.0)):
        found = nested(data, recordings=recordings).nested_
        torch.testing.assert_close(found.weights, trust * whole.weights)
    merged = nested(data, recordings=1).merge(nested(structured(5, 30, 0.3), recordings=2))
    assert merged.fitted_.plan.recordings == 3
    free = nested(data).merge(nested(structured(5, 30, 0.3)))
    torch.testing.assert_close(merged.nested_.weights, 3 / 4 * free.nested_.weights)
    with pytest.raises(ConfigError, match="recordings"):
        nested(data, recordings=0)


def test_the_reported_gain_of_few_recordings_is_that_of_a_choice_without_each():
    """Folds hold stretches of both out; what is told is of a fit that never saw the recording."""
    sums, units = nested(structured(2, 12, 2.0)).sums_, (0, 0, 0, 1, 1, 1)
    folds = tuple(
        (tuple(g for g in range(6) if g % 3 != part), (part, part + 3)) for part in range(3)
    )
    found = solve_nested(sums, folds, CELLS, recordings=2, units=units)
    fits = []
    for own in ((0, 1, 2), (3, 4, 5)):
        alone = GramSums(sums.moments[list(own)], sums.windows[list(own)])
        inner = [((1, 2), (0,)), ((0, 2), (1,)), ((0, 1), (2,))]
        fits.append(solve_nested(alone, inner, CELLS, recordings=1).weights)
    mean = sum(fits) / 2
    for block, unit in enumerate(units):
        moments, fit = sums.moments[block], fits[1 - unit]
        gain = 2 * (fit * moments[..., :-1, -1]).sum() - _product(moments, 2 * fit - mean, mean)
        torch.testing.assert_close(found.gains[block], gain)
        torch.testing.assert_close(found.before[block], moments[..., -1, -1].sum())
    assert found.units == units
    assert found.verdict.blocks == 2
    assert judging_folds(folds, units, 2) == (((3, 4, 5), (0, 1, 2)), ((0, 1, 2), (3, 4, 5)))
    torch.testing.assert_close(list(found.apart), fits[::-1])  # what bands are calibrated with
    plain = solve_nested(sums, folds, CELLS)
    torch.testing.assert_close(found.weights, 2 / 3 * plain.weights)  # the choice is as it was
    assert float(found.gains.sum()) < float(plain.gains.sum())


def test_curves_of_few_recordings_leave_each_out_as_the_verdict_does():
    data = problem(seed=2, grid=GRID, windows=24, members=1, depths=2)
    fitted, units = nested(data).fitted_, (0, 0, 0, 1, 1, 1)
    stretches = tuple(
        (tuple(g for g in range(6) if g % 3 != part), (part, part + 3)) for part in range(3)
    )
    few = replace(fitted, folds=stretches, plan=replace(fitted.plan, recordings=2, units=units))
    apart = (((3, 4, 5), (0, 1, 2)), ((0, 1, 2), (3, 4, 5)))
    for found, expected in (
        (few, replace(fitted, folds=apart)),
        (replace(few, plan=replace(few.plan, recordings=4)), replace(fitted, folds=stretches)),
    ):
        assert cost_curve(found) == cost_curve(expected)
        assert contributions(found) == contributions(expected)
        assert learning_curve(found, repeats=2) == learning_curve(expected, repeats=2)
    assert contributions(few) != contributions(replace(fitted, folds=stretches))


def test_folds_that_leave_recordings_out_are_judged_as_they_are():
    sums, units = nested(structured(2, 12, 2.0)).sums_, (0, 0, 0, 1, 1, 1)
    folds = (((0, 1, 2), (3, 4, 5)), ((3, 4, 5), (0, 1, 2)))
    few = solve_nested(sums, folds, CELLS, recordings=2, units=units, carried=Carried(0.0, 0.0))
    torch.testing.assert_close(few.gains, solve_nested(sums, folds, CELLS).gains)


def test_decisions_of_earlier_versions_are_read():
    old = {"levels": [[0, 0], [8, 4]], "penalties": [0.1, 1.0]}
    tensors = {"nested": torch.zeros(1, 1, 1), "gains": torch.zeros(1), "before": torch.zeros(1)}
    fit = NestedFit.from_decisions(old, tensors)
    assert (fit.rivals, fit.units) == ({}, ())
    assert fit.chains == (Chain(((0, 0, 1), (8, 4, 1)), (0.1, 1.0), 1.0),)


def test_nested_fit_survives_saving_and_deriving(tmp_path):
    data = structured(0, 30, 0.3)
    model = nested(data)
    model.save(tmp_path / "n.safetensors")
    again = SpectralEnsemble.load(tmp_path / "n.safetensors")
    assert torch.equal(again.predict(*data[:2]), model.predict(*data[:2]))
    assert again.nested_.verdict == model.nested_.verdict
    assert again.nested_.decisions() == model.nested_.decisions()
    torch.testing.assert_close(again.derive(ridge="nested").weights_, model.weights_)


def test_merged_nested_fits_equal_the_pooled_one():
    first, second = structured(0, 30, 0.3), structured(5, 30, 0.3)
    pooled = SpectralEnsemble(CELLS, "nested", (0, 2), weight_exponent=0)
    pooled.fit([*grouped(first), *grouped(second)], folds=FOLDS)
    merged = nested(first).merge(nested(second))
    torch.testing.assert_close(merged.weights_, pooled.weights_, rtol=1e-8, atol=1e-10)


def test_fits_of_another_rounding_merge_derive_and_lose_members():
    """An ensemble made on another processor has a few wavenumbers in the neighbouring band."""
    here = FourierCells.polar(GRID, radial=12, angular=4, extent="ellipse")
    there = other_rounding(here)
    assert not torch.equal(there.index, here.index)
    first, second = structured(0, 30, 0.3), structured(5, 30, 0.3)
    elsewhere = nested(first, there)
    merged = nested(first, there).merge(nested(second, here))
    alone = nested(first, here).merge(nested(second, here))
    assert rmse(merged, second) == pytest.approx(rmse(alone, second), rel=0.05)
    coarse = FourierCells.polar(GRID, radial=6, angular=2, extent="ellipse")
    derived = elsewhere.derive(cells=coarse, ridge=1e-3)
    fresh = SpectralEnsemble(
        there.coarser(6, 2), 1e-3, (0, 2), weight_exponent=0, centred=elsewhere.fitted_.plan.centred
    )
    fresh.fit(grouped(first), folds=FOLDS)
    torch.testing.assert_close(derived.weights_, fresh.weights_)
    assert elsewhere.derive(depth=1).columns_.depths == (1,)


def test_too_few_windows_are_named():
    source, iterates, target = structured(0, 2, 0.3)
    with pytest.raises(EmptySplitError, match="nested"):
        SpectralEnsemble(CELLS, "nested", (0, 2)).fit([(source, iterates, target)])


def test_only_polar_partitions_nest():
    own = FourierCells(GRID, CELLS.index, CELLS.multiplicity, CELLS.num_cells)
    with pytest.raises(ConfigError, match="polar"):
        nested(structured(0, 12, 0.3), own)


def test_verdict_needs_agreement_of_the_blocks():
    before = torch.ones(6).double()
    clear = judge(torch.tensor([0.2, 0.21, 0.19, 0.2, 0.22, 0.18]).double(), before)
    assert clear.decision == "deploy"
    assert clear.gain == pytest.approx(1 - math.sqrt(0.8))
    assert clear.interval[0] < clear.gain < clear.interval[1]
    mixed = judge(torch.tensor([0.9, -0.5, 0.4, -0.4, 0.1, -0.3]).double(), before)
    assert mixed.decision == "keep the source"
    too_small = judge(torch.full((6,), 0.005).double(), before)
    assert too_small.decision == "keep the source"
    assert judge(torch.tensor([0.5]).double(), torch.ones(1).double()).decision == "keep the source"
    assert str(mixed).startswith("keep the source: RMSE 1.7 % below the source's")
    worse = judge(-torch.tensor([0.2, 0.21, 0.19, 0.2, 0.22, 0.18]).double(), before)
    assert "9.5 % above the source's" in str(worse)


@pytest.mark.parametrize(("number", "quantile"), [(2, 6.314), (4, 2.353), (6, 2.015)])
def test_deploys_where_the_lower_bound_of_the_mean_is_a_gain(number, quantile):
    before = torch.ones(number).double()
    scatter = torch.linspace(-1, 1, number).double()
    bound = quantile * float(scatter.std()) / math.sqrt(number)
    for mean, decision in ((1.01 * bound, "deploy"), (0.99 * bound, "keep the source")):
        assert judge(0.1 * (mean + scatter), before).decision == decision
        within = judge(0.1 * (mean + scatter), before, units=[0] * number)
        assert (within.decision, within.within) == (decision, True)


def test_few_recordings_scatter_at_least_as_others_do():
    """Two that happen to agree say little; those of the train split say how recordings differ."""
    gains, before = torch.tensor([0.20, 0.21]).double(), torch.ones(2).double()
    alone, known = (judge(gains, before, units=[0, 1], spread=s) for s in (0.0, 0.1))
    assert alone.deploy
    assert known.deploy  # 0.205 > 1.782 · 0.1
    assert not judge(gains, before, units=[0, 1], spread=0.12).deploy
    assert known.interval[0] < alone.interval[0]
    single = judge(gains, before, units=[0, 0], spread=0.1)  # of one recording: as far as one is
    assert single.deploy
    assert not judge(gains, before, units=[0, 0], spread=0.12).deploy


def test_another_forecast_is_kept_only_if_it_is_surely_better_on_further_recordings():
    before, rival = torch.ones(4).double(), torch.full((4,), 0.8).double()
    for spread, kept in ((0.0, "mean"), (0.1, "mean"), (0.12, "source")):
        found = judge(0 * before, before, rival=rival, name="mean", units=[0] * 4, spread=spread)
        assert (found.kept, found.best) == (kept, "mean")
        assert found.decision == ("keep the mean field" if kept == "mean" else "keep the source")
    assert found.gain_over_best == pytest.approx(1 - math.sqrt(1.25))


@pytest.mark.parametrize("number", [4, 6, 10])
def test_interval_holds_the_gain_over_as_many_new_recordings(number, rng):
    before, held = torch.ones(number).double(), 0
    for _ in range(600):
        gains, new = 0.3 + 0.1 * torch.randn(2, number, generator=rng, dtype=torch.float64)
        found = judge(gains, before, units=range(number))
        held += found.interval[0] <= 1 - math.sqrt(1 - new.mean()) <= found.interval[1]
    assert held / 600 == pytest.approx(0.9, abs=0.04)


def test_verdict_is_over_the_best_that_needs_no_adaptation():
    before, rival = torch.full((6,), 2.0).double(), torch.full((6,), 1.0).double()
    gains = torch.tensor([0.9, 0.91, 0.89, 0.9, 0.92, 0.88]).double()  # errors about 1.1
    found = judge(gains, before, rival=rival, name="recall:1", units=[3] * 6)
    assert found.decision == "keep persistence"
    assert not found.deploy
    assert (found.best, found.gain_over_best) == ("recall:1", pytest.approx(1 - math.sqrt(1.1)))
    assert found.gain == pytest.approx(1 - math.sqrt(1.1 / 2))
    assert "above persistence" in str(found)
    assert "within this recording" in str(found)
    older = judge(gains, before, rival=rival, name="recall:4")
    assert older.decision == "keep the last frame but 3"
    apart = judge(gains, before, rival=rival, name="recall:1", units=[0, 0, 0, 1, 1, 2])
    assert (apart.blocks, apart.within) == (3, False)
    assert apart.gain == pytest.approx(found.gain)
    better = judge(gains + 0.5, before, rival=rival, name="recall:1")
    assert better.deploy
    assert better.interval_over_best[0] > 0


def test_scaled_ridge_solves_its_equations_and_ignores_the_size_of_columns():
    moments = nested(structured(0, 30, 0.3)).sums_.total().moments[0]
    ridges = [1e-4, 1e-2, 1.0, math.inf]
    gram, rhs = moments[..., :-1, :-1], moments[..., :-1, -1]
    found = scaled_ridge(gram, torch.stack([rhs, -2 * rhs], -1), ridges)
    diagonal = torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))
    for ridge, weights in zip(ridges, found[..., 0].unbind(-1)[:-1], strict=False):
        left = torch.einsum("...ij,...j->...i", gram + ridge * diagonal, weights)
        torch.testing.assert_close(left, rhs)
    torch.testing.assert_close(found[..., 1], -2 * found[..., 0])
    assert found[..., -1, :].abs().max() == 0
    size = torch.tensor([1e-2, 1.0, 1e2]).double()
    other = scaled_ridge(gram * size[:, None] * size, (rhs * size)[..., None], ridges)
    torch.testing.assert_close(other * size[:, None, None], found[..., :1])
    with pytest.raises(ConfigError, match="positive"):
        scaled_ridge(gram, rhs[..., None], [0.0])


def test_a_column_of_rounding_gets_no_weight():
    moments = nested(structured(0, 30, 0.3)).sums_.total().moments[0].clone()
    moments[..., 0, :] *= 1e-8
    moments[..., :, 0] *= 1e-8
    found = scaled_ridge(moments[..., :-1, :-1], moments[..., :-1, -1:], [1e-6])[..., 0, 0]
    assert found[..., 0].abs().max() == 0
    assert found[..., 1].abs().max() > 0


def test_the_shortfall_of_folds_is_what_more_data_bring():
    """Linear regression: what the fits of the folds lose on new data against that of all."""
    generator = torch.Generator().manual_seed(1)
    blocks, size, truth = 6, 20, torch.ones(8, dtype=torch.float64)
    folds = [(tuple(b for b in range(blocks) if b != k), (k,)) for k in range(blocks)]
    found = wanted = 0.0

    def solved(part):
        return torch.linalg.solve(part.gram[0, 0, 0], part.rhs[0, 0, 0])

    for _ in range(200):
        values = torch.randn(blocks, size, 8, generator=generator, dtype=torch.float64)
        noise = 3 * torch.randn(blocks, size, generator=generator, dtype=torch.float64)
        together = torch.cat([values, (values @ truth + noise)[..., None]], -1)
        moments = (together.transpose(1, 2) @ together)[:, None, None]
        sums = GramSums(moments, torch.full((blocks,), float(size)))
        whole, gains, lost = solved(sums.total()), [], 0.0
        for fit, (block,) in folds:
            weights, own = solved(sums.total(fit)), sums.total((block,))
            gram, rhs = own.gram[0, 0, 0], own.rhs[0, 0, 0]
            gains.append(2 * weights @ rhs - weights @ gram @ weights)
            lost += float((weights - truth).square().sum()) / len(folds)
        found += _shortfall(sums, folds, whole[None, None], torch.stack(gains)) / 200
        wanted += (lost - float((whole - truth).square().sum())) / (8 + 9) / 200
    assert wanted > 0.005
    assert found == pytest.approx(wanted, rel=0.25)


ONE_GOOD = Columns(1, (1, 2, 3, 4, 5), further=("good",))
COLUMNS_ALIKE = Columns(0, (), further=("a", "b", "c", "d", "e", "good"))
GOOD = torch.zeros(CELLS.num_cells, 2, 7).double()
GOOD[..., 5] = torch.linspace(-1, 1, CELLS.num_cells).double()[:, None]


def one_good_forecast(seed, windows):
    """Sums of five columns of noise, one forecast that is right by cell, and the base column."""
    source, _, _ = problem(seed=seed, grid=GRID, windows=windows)
    generator = torch.Generator().manual_seed(1000 + seed)
    noise = torch.randn(7, *source.shape, generator=generator, dtype=torch.float64)
    iterates = source + noise[None, :6]
    truth = replace(nested((source, iterates, source)).fitted_, weights=GOOD)
    return nested((source, iterates, truth.predict(source, iterates) + noise[6])).sums_


def test_repairs_that_say_nothing_cost_little_where_other_columns_say_it():
    excess = torch.zeros(2)  # over the best weights there are: with all columns alone, with both
    for seed in range(6):
        sums, other = one_good_forecast(seed, 12), one_good_forecast(seed + 50, 60)
        whole = solve_nested(sums, FOLDS, CELLS, columns=COLUMNS_ALIKE)
        found = solve_nested(sums, FOLDS, CELLS, columns=ONE_GOOD)
        assert any(chain.free for chain in found.chains)
        errors = [
            float(quadratic_error(other.total().moments[0], weights).sum())
            for weights in (whole.weights, found.weights, GOOD)
        ]
        excess += torch.tensor(errors[:2]) - errors[2]
    assert 0 < excess[1] < 0.8 * excess[0]


def test_a_chain_without_repairs_is_one_of_the_other_columns():
    sums = one_good_forecast(0, 12)
    found = solve_nested(sums, FOLDS, CELLS, columns=ONE_GOOD)
    chain = replace(next(chain for chain in found.chains if chain.free), share=1.0)
    weights = refit_chains(sums, CELLS, [chain], columns=ONE_GOOD)
    assert weights[..., :5].abs().max() == 0
    part, plain = sums.with_columns([5, 6]), replace(chain, free=False)
    fewer = refit_chains(part, CELLS, [plain], columns=ONE_GOOD.restricted(members=0))
    torch.testing.assert_close(weights[..., 5:], fewer)
    repairs = sums.with_columns([0, 1, 2, 3, 4])
    columns = ONE_GOOD.restricted(without=["good", "base"])
    alone = refit_chains(repairs, CELLS, [chain], columns=columns)
    torch.testing.assert_close(alone, refit_chains(repairs, CELLS, [plain]))
    again = NestedFit.from_decisions(found.decisions(), found.tensors())
    assert again.chains == found.chains


def test_pooled_plans_judge_every_block_of_both():
    first, second = (((1, 2), (0,)), ((0, 2), (1,)), ((0, 1), (2,))), (((1,), (0,)), ((0,), (1,)))
    joined = join_folds(first, second, offset=3)
    assert joined == (((1, 2, 4), (0, 3)), ((0, 2, 3), (1, 4)), ((0, 1, 3, 4), (2,)))
    other = join_folds(second, first, offset=2)
    assert other[-1] == ((0, 1, 2, 3), (4,))
    assert join_folds(first, (), offset=3) == first


def test_merging_fewer_folds_keeps_the_blocks_of_the_other():
    large, small = nested(structured(0, 30, 0.3)), SpectralEnsemble(CELLS, "nested", (0, 2))
    small.weight_exponent = 0
    halves = (((0, 1, 2), (3, 4, 5)), ((3, 4, 5), (0, 1, 2)))
    small.fit(grouped(structured(1, 12, 0.3)), folds=halves)
    for merged in (large.fitted_.merge(small.fitted_), small.fitted_.merge(large.fitted_)):
        scored = [block for _, score in merged.folds for block in score]
        assert sorted(scored) == list(range(12))
        assert len(merged.nested.gains) == 12
        assert all(not set(fit) & set(score) for fit, score in merged.folds)
