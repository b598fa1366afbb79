import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from r2no import FourierCells, SpectralEnsemble
from r2no.ensemble import (
    Columns,
    FitBatch,
    FittedEnsemble,
    Readouts,
    accumulate,
    quadratic_error,
    ridge_path,
)
from r2no.ensemble.accumulate import GramAccumulator, window_weights
from r2no.errors import (
    ConfigError,
    EmptySplitError,
    FileDamagedError,
    GridMismatchError,
    NonFiniteError,
    NotFittedError,
    ShapeError,
)
from r2no.spectral import forward
from r2no.spectral.transforms import space_last
from tests.support import ensemble_reference as reference
from tests.support import pretend
from tests.support.ensembles import problem

MEASURED = (0, 2)


def fit(data, cells, **more):
    more.setdefault("ridge", 0.0)
    return SpectralEnsemble(cells, measured=MEASURED, **more).fit([data])


def squared(prediction, target, exponent=1.0):
    norms = target[..., list(MEASURED)].flatten(1).norm(dim=1) ** -exponent
    error = ((prediction - target)[..., list(MEASURED)] ** 2).flatten(1).sum(1)
    return float((norms * error).sum())


@pytest.mark.parametrize("grid", [(6, 8), (6, 7), (5, 8), (5, 7)], ids=str)
@pytest.mark.parametrize(("exponent", "base"), [(0, True), (1, True), (2, False)])
def test_gram_sums_match_a_dense_numpy_reference(grid, exponent, base):
    data = problem(grid=grid)
    cells = FourierCells.polar(grid, radial=3, angular=2)
    model = fit(data, cells, weight_exponent=exponent, base_column=base)
    gram, rhs = reference.gram_and_rhs(
        *(part.numpy() for part in data), cells, MEASURED, exponent, base
    )
    np.testing.assert_allclose(model.sums_.total().gram[0], gram, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(model.sums_.total().rhs[0], rhs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("grid", [(6, 8), (5, 7)], ids=str)
def test_streamed_prediction_equals_the_dense_one(grid):
    source, iterates, target = problem(grid=grid)
    cells = FourierCells.polar(grid, radial=3, angular=2)
    model = fit((source, iterates, target), cells, ridge=1e-4)
    dense = reference.predict(
        source.numpy(), iterates.numpy(), model.weights_.numpy(), cells, MEASURED
    )
    np.testing.assert_allclose(model.predict(source, iterates), dense, atol=1e-10)
    single = model.predict(source.float(), iterates.float())
    np.testing.assert_allclose(single, dense, atol=1e-5, rtol=1e-6)


def test_zero_weights_give_the_source_bit_for_bit():
    source, iterates, _ = problem()
    cells = FourierCells.polar((6, 7), radial=3, angular=2)
    columns = Columns(2, (1, 2, 3))
    model = FittedEnsemble.from_weights(
        torch.zeros(columns.number), columns, cells, measured=MEASURED
    )
    for kind in (torch.float32, torch.float64):
        assert torch.equal(model.predict(source.to(kind), iterates.to(kind)), source.to(kind))


def test_zero_weights_give_the_source_also_where_an_iterate_overflowed():
    source, iterates, target = problem()
    cells = FourierCells.polar((6, 7), radial=3, angular=2)
    model = SpectralEnsemble(cells, float("inf"), MEASURED).fit([(source, iterates, target)])
    iterates[0, 1, 0, 0, 0, 0] = float("inf")
    assert torch.equal(model.predict(source, iterates), source)


def test_groups_are_given_with_every_batch_or_with_none():
    source, iterates, target = problem()
    cells = FourierCells.polar((6, 7), radial=3, angular=2)
    group = torch.zeros(len(source), dtype=torch.long)
    plain, numbered = FitBatch(source, iterates, target), FitBatch(*problem(), None, group)
    for batches in ([plain, numbered], [numbered, plain]):
        with pytest.raises(ConfigError, match="with every batch or with none"):
            SpectralEnsemble(cells, 0.1, MEASURED).fit(batches)
    with pytest.raises(ConfigError, match="with every batch or with none"):
        SpectralEnsemble(cells, "auto", MEASURED).fit([plain], folds=[((0,), (1,))])


def test_a_channel_is_measured_once():
    with pytest.raises(ShapeError, match="each once"):
        SpectralEnsemble(FourierCells.polar((6, 7)), 0.1, (0, 0)).fit([problem()])


def test_every_channel_is_measured_unless_it_is_said():
    data, cells = problem(), FourierCells.polar((6, 7), radial=3, angular=2)
    model = SpectralEnsemble(cells, 0.1).fit([data])
    named = SpectralEnsemble(cells, 0.1, range(data[0].shape[-1])).fit([data])
    assert torch.equal(model.weights_, named.weights_)
    assert model.fitted_.measured == named.fitted_.measured
    assert model.get_params()["measured"] is None


def test_infinite_penalty_gives_the_source():
    data = problem()
    model = fit(data, FourierCells.polar((6, 7), radial=3, angular=2), ridge=float("inf"))
    assert torch.equal(model.predict(*data[:2]), data[0])
    near = fit(data, FourierCells.polar((6, 7), radial=3, angular=2), ridge=1e12)
    torch.testing.assert_close(near.predict(*data[:2]), data[0], atol=1e-9, rtol=0)


def test_unmeasured_channels_are_the_sources_bit_for_bit():
    source, iterates, target = problem()
    model = fit((source, iterates, target), FourierCells.polar((6, 7), radial=2, angular=2))
    prediction = model.predict(source, iterates)
    assert torch.equal(prediction[..., 1], source[..., 1])
    assert not torch.equal(prediction[..., 0], source[..., 0])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    exponent=st.sampled_from([0.0, 1.0, 2.0]),
    radial=st.integers(1, 4),
    angular=st.integers(1, 3),
)
def test_fit_dominates_every_selection_on_the_fit_split(seed, exponent, radial, angular):
    """Proposition 2 at λ = 0: no worse than source, any iterate, any cell-wise selection."""
    source, iterates, target = problem(seed=seed)
    cells = FourierCells.polar((6, 7), radial=radial, angular=angular)
    model = fit((source, iterates, target), cells, weight_exponent=exponent)
    best = squared(model.predict(source, iterates), target, exponent)
    slack = 1e-9 * squared(source, target, exponent)
    assert best <= squared(source, target, exponent) + slack
    for member in range(2):
        for depth in range(3):
            assert best <= squared(iterates[member, depth], target, exponent) + slack
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(0, model.columns_.number, (cells.num_cells, 2), generator=generator)
    selection = torch.nn.functional.one_hot(picks, model.columns_.number).double()
    assert best <= float(quadratic_error(model.sums_.total().moments[0], selection).sum()) + slack


def test_fitted_error_is_what_the_sums_say():
    source, iterates, target = problem()
    model = fit((source, iterates, target), FourierCells.polar((6, 7), radial=3, angular=2))
    from_sums = float(quadratic_error(model.sums_.total().moments[0], model.weights_).sum())
    assert squared(model.predict(source, iterates), target) == pytest.approx(from_sums)


@pytest.mark.parametrize("pieces", [1, 2, 5, 9])
def test_fit_ignores_how_windows_are_batched(pieces):
    source, iterates, target = problem(windows=18)
    cells = FourierCells.polar((6, 7), radial=2, angular=2)
    whole = SpectralEnsemble(cells, measured=MEASURED).fit([(source, iterates, target)])
    parts = zip(
        source.split(pieces), iterates.split(pieces, dim=2), target.split(pieces), strict=True
    )
    split = SpectralEnsemble(cells, measured=MEASURED).fit(parts)
    assert split.ridge_ == whole.ridge_
    torch.testing.assert_close(split.weights_, whole.weights_)
    torch.testing.assert_close(split.sums_.windows, whole.sums_.windows)


def test_merge_equals_the_pooled_fit():
    cells = FourierCells.polar((6, 7), radial=2, angular=2)
    first, second = problem(seed=1), problem(seed=2)
    pooled = fit(
        (
            torch.cat([first[0], second[0]]),
            torch.cat([first[1], second[1]], dim=2),
            torch.cat([first[2], second[2]]),
        ),
        cells,
        ridge=1e-3,
    )
    merged = fit(first, cells, ridge=1e-3).merge(fit(second, cells, ridge=1e-3))
    torch.testing.assert_close(merged.weights_, pooled.weights_, rtol=1e-10, atol=1e-10)


def test_merge_refuses_other_cells():
    data = problem()
    mine = fit(data, FourierCells.polar((6, 7), radial=2, angular=2))
    for other in (
        fit(data, FourierCells.polar((6, 7), radial=4, angular=1)),
        fit(data, FourierCells.polar((6, 7), radial=2, angular=2), weight_exponent=0),
        fit(problem(members=1), FourierCells.polar((6, 7), radial=2, angular=2)),
    ):
        with pytest.raises(ShapeError):
            mine.merge(other)


def test_number_of_weights_of_the_published_setting():
    """151,552 for 2 channels, M = 3, 128 x 16."""
    columns = Columns(3, tuple(range(1, 13)))
    assert columns.number == 37
    cells = FourierCells.polar((64, 128), radial=128, angular=16)
    model = FittedEnsemble.from_weights(torch.zeros(37), columns, cells, measured=(0, 1))
    assert model.weights.numel() == 151_552
    assert columns.evaluations == 36


def test_depth_subset_is_a_sub_block_of_the_sums():
    source, iterates, target = problem(depths=4)
    cells = FourierCells.polar((6, 7), radial=2, angular=2)
    subset = fit((source, iterates, target), cells, depths=(2, 4))
    rolled = fit((source, iterates[:, [1, 3]], target), cells)
    torch.testing.assert_close(subset.weights_, rolled.weights_)
    torch.testing.assert_close(
        subset.predict(source, iterates), rolled.predict(source, iterates[:, [1, 3]])
    )


def test_derived_ensembles_equal_fresh_fits():
    data = problem(windows=18)
    fine = SpectralEnsemble(FourierCells.polar((6, 7), radial=4, angular=4), measured=MEASURED).fit(
        [data]
    )
    for cells in (
        FourierCells.polar((6, 7), radial=2, angular=4),
        FourierCells.single((6, 7)),
        FourierCells.polar((6, 7), radial=4, angular=4, shared_channels=True),
    ):
        fresh = SpectralEnsemble(cells, measured=MEASURED).fit([data])
        torch.testing.assert_close(fine.derive(cells=cells).weights_, fresh.weights_)
    one = SpectralEnsemble(fine.cells, measured=MEASURED).fit([(data[0], data[1][:1], data[2])])
    torch.testing.assert_close(fine.derive(members=1).weights_, one.weights_)


def test_derived_columns_equal_fresh_fits():
    data, cells = problem(windows=18), FourierCells.polar((6, 7), radial=2, angular=2)
    full = SpectralEnsemble(cells, measured=MEASURED).fit([data])
    for changes in ({"depths": (1, 3)}, {"base_column": False}):
        fresh = SpectralEnsemble(cells, measured=MEASURED, **changes).fit([data])
        derived = full.derive(**changes)
        torch.testing.assert_close(derived.weights_, fresh.weights_)
        torch.testing.assert_close(derived.predict(*data[:2]), fresh.predict(*data[:2]))
    with pytest.raises(ConfigError, match="depths among"):
        full.derive(depths=(2, 9))
    with pytest.raises(ConfigError, match="have none"):
        full.derive(base_column=False).derive(base_column=True)


def test_joint_readouts_equal_each_by_itself():
    source, iterates, target = problem(windows=18)
    cells = FourierCells.polar((6, 7), radial=2, angular=2)
    full = SpectralEnsemble(cells, measured=MEASURED).fit([(source, iterates, target)])
    chosen = {
        "full": full,
        "one": full.derive(members=1),
        "no_base": full.derive(base_column=False),
        "single": full.derive(cells=FourierCells.single((6, 7))),
        "source": full.derive(ridge=float("inf")),
    }
    joint = Readouts({n: e.fitted_.spread for n, e in chosen.items()}).compose(source)
    for member in range(2):
        for depth in (1, 2, 3):
            joint.add(member, depth, iterates[member, depth - 1])
    found = dict(joint.results())
    for name, ensemble in chosen.items():
        members = ensemble.columns_.members
        torch.testing.assert_close(found[name], ensemble.predict(source, iterates[:members]))
        torch.testing.assert_close(found[name][..., 1], source[..., 1], rtol=0, atol=0)
    torch.testing.assert_close(found["source"], source, rtol=0, atol=0)
    with pytest.raises(ConfigError, match="at least one readout"):
        Readouts({})


@pytest.mark.parametrize("shared", [False, True])
def test_groups_of_lead_time_are_fitted_and_composed_by_themselves(shared, tmp_path):
    source, iterates, target = problem(windows=7, frames=5)
    cells = FourierCells.polar((6, 7), radial=2, angular=2, shared_channels=shared)
    options = {"weight_exponent": 0, "ridge": 1e-3}
    apart = fit((source, iterates, target), cells, lead_groups=2, **options)
    predicted = apart.predict(source, iterates)
    for frames in (slice(0, 2), slice(2, 5)):
        part = (source[:, frames], iterates[:, :, :, frames], target[:, frames])
        alone = fit(part, cells, **options).predict(part[0], part[1])
        torch.testing.assert_close(predicted[:, frames], alone)
    apart.save(tmp_path / "apart.safetensors")
    loaded = SpectralEnsemble.load(tmp_path / "apart.safetensors")
    torch.testing.assert_close(loaded.predict(source, iterates), predicted, rtol=0, atol=0)
    joint = Readouts(
        {"apart": apart.fitted_.spread, "one": apart.derive(members=1).fitted_.spread}
    ).compose(source)
    for member in range(2):
        for depth in (1, 2, 3):
            joint.add(member, depth, iterates[member, depth - 1])
    torch.testing.assert_close(dict(joint.results())["apart"], predicted)


def test_one_cell_with_groups_of_lead_time_equals_a_least_squares_fit_of_each():
    source, iterates, target = problem(windows=6, frames=4, members=1)
    full = fit(
        (source, iterates, target),
        FourierCells.polar((6, 7), radial=2, angular=2),
        lead_groups=4,
        weight_exponent=0,
    )
    single = full.derive(cells=FourierCells.single((6, 7)))
    predicted = single.predict(source, iterates)
    for frame in range(4):
        columns = [(h - source)[:, frame][..., list(MEASURED)].flatten() for h in iterates[0]]
        columns.append(-source[:, frame][..., list(MEASURED)].flatten())
        left = (target - source)[:, frame][..., list(MEASURED)].flatten()
        weights = torch.linalg.lstsq(torch.stack(columns, 1), left[:, None]).solution[:, 0]
        expected = (
            source[:, frame][..., list(MEASURED)].flatten() + torch.stack(columns, 1) @ weights
        )
        found = predicted[:, frame][..., list(MEASURED)].flatten()
        torch.testing.assert_close(found, expected)


def test_too_many_groups_of_lead_time_are_refused():
    with pytest.raises(ConfigError, match="lead_groups"):
        fit(problem(frames=2), FourierCells.single((6, 7)), lead_groups=3)


def test_derive_refuses_a_partition_that_is_not_coarser():
    fine = fit(problem(), FourierCells.polar((6, 7), radial=3, angular=2))
    with pytest.raises(ConfigError, match="straddles"):
        fine.derive(cells=FourierCells.polar((6, 7), radial=2, angular=2))


def test_known_weights_are_recovered_in_every_cell():
    """Build the target from given weights; without noise the fit returns them."""
    source, iterates, _ = problem(windows=12)
    cells = FourierCells.polar((6, 7), radial=2, angular=2)
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(4, 2, 7, generator=generator, dtype=torch.float64)
    target = torch.from_numpy(
        reference.predict(source.numpy(), iterates.numpy(), weights.numpy(), cells, MEASURED)
    )
    model = fit((source, iterates, target), cells)
    occupied = cells.occupied
    torch.testing.assert_close(model.weights_[occupied], weights[occupied], rtol=1e-6, atol=1e-8)


def test_global_combination_needs_no_transform_and_agrees():
    source, iterates, target = problem()
    shared = fit((source, iterates, target), FourierCells.single((6, 7)))
    two = FourierCells.polar((6, 7), radial=2, angular=1)
    spread = FittedEnsemble.from_weights(
        shared.weights_[0, 0], shared.columns_, two, measured=MEASURED
    )
    torch.testing.assert_close(
        shared.predict(source, iterates), spread.predict(source, iterates), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("grid", [(9,), (10,), (4, 5, 6)], ids=str)
def test_one_and_three_dimensional_grids_fit_and_predict(grid):
    source, iterates, target = problem(grid=grid)
    cells = FourierCells.polar(grid, radial=3, angular=1)
    model = fit((source, iterates, target), cells)
    from_sums = float(quadratic_error(model.sums_.total().moments[0], model.weights_).sum())
    assert squared(model.predict(source, iterates), target) == pytest.approx(from_sums)


@pytest.mark.parametrize("grid", [(6, 8), (5, 7)], ids=["even", "odd"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
def test_sums_do_not_depend_on_memory_order_or_on_the_size_of_parts(
    grid, masked, kind, monkeypatch
):
    source, iterates, target = (part.to(kind) for part in problem(grid=grid, frames=4))
    mask = torch.rand(target.shape, generator=torch.Generator().manual_seed(5)) > 0.2
    cells = FourierCells.polar(grid, radial=3, angular=2)
    columns = Columns(2, (1, 2, 3), further=("last",), partners=("last",))

    def sums(given, parts):
        monkeypatch.setattr(accumulate, "_CHUNK_BYTES", parts)
        found = GramAccumulator(
            columns, cells, measured=MEASURED, exponents=(1.0,), groups=2, lead_groups=2
        )
        spectra = found.begin(source, target, mask if masked else None)
        spectra.put("last", source.flip(1))
        for (member, depth), iterate in given:
            spectra.add(member, depth + 1, iterate)
        found.add(torch.tensor([0, 1, 1, 0, 1]))
        return found.collected()[1.0].moments

    plain = [((m, d), iterates[m, d]) for m in range(2) for d in range(3)]
    # as a module leaves them: time and channel last
    planes = [(place, each.movedim(1, 3).contiguous().movedim(3, 1)) for place, each in plain]
    expected = sums(plain, 2**21)
    rounding = 1e-12 if kind == torch.float64 else 1e-5
    for found in (sums(planes, 2**21), sums(plain, 1)):
        torch.testing.assert_close(found, expected, rtol=rounding, atol=rounding)


def test_masked_values_have_no_influence():
    source, iterates, target = problem()
    mask = torch.rand(target.shape, generator=torch.Generator().manual_seed(5)) > 0.2
    cells = FourierCells.polar((6, 7), radial=2, angular=2)

    def weights(hidden):
        batch = FitBatch(source, iterates, torch.where(mask, target, hidden), mask)
        return SpectralEnsemble(cells, 1e-3, MEASURED).fit([batch]).weights_

    assert torch.equal(weights(0.0), weights(1e6))
    assert torch.equal(weights(0.0), weights(float("nan")))
    assert not torch.equal(
        weights(0.0), fit((source, iterates, target), cells, ridge=1e-3).weights_
    )


def test_a_full_mask_changes_nothing():
    source, iterates, target = problem()
    cells = FourierCells.polar((6, 7), radial=2, angular=2)
    masked = SpectralEnsemble(cells, 1e-3, MEASURED).fit(
        [FitBatch(source, iterates, target, torch.ones_like(target, dtype=torch.bool))]
    )
    assert torch.equal(masked.weights_, fit((source, iterates, target), cells, ridge=1e-3).weights_)


def test_window_weight_is_the_norm_of_the_measured_target():
    target = torch.ones(2, 1, 1, 2, 2, dtype=torch.float64)
    target[1] *= 3
    torch.testing.assert_close(window_weights(target, 1.0), torch.tensor([0.5, 1 / 6]).double())
    assert window_weights(torch.zeros(1, 1, 1, 2, 2), 1.0).tolist() == [0.0]


def test_save_and_load_give_the_same_bits(tmp_path):
    source, iterates, target = problem(windows=18)
    model = SpectralEnsemble(
        FourierCells.polar((6, 7), radial=2, angular=2), measured=MEASURED
    ).fit([(source, iterates, target)])
    model.save(tmp_path / "e.safetensors")
    again = SpectralEnsemble.load(tmp_path / "e.safetensors")
    assert torch.equal(again.predict(source, iterates), model.predict(source, iterates))
    assert again.ridge_scores_ == model.ridge_scores_
    torch.testing.assert_close(again.merge(model).weights_, model.weights_)


def test_truncated_file_is_refused_by_name(tmp_path):
    path = tmp_path / "e.safetensors"
    fit(problem(), FourierCells.single((6, 7))).save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileDamagedError, match=r"e\.safetensors"):
        SpectralEnsemble.load(path)


def test_bad_input_gets_named_errors():
    source, iterates, target = problem()
    cells = FourierCells.polar((6, 7), radial=2, angular=2)
    new = lambda **more: SpectralEnsemble(cells, measured=MEASURED, **more)  # noqa: E731
    broken = target.clone()
    broken[0, 0, 0, 0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="mask"):
        new(ridge=0.1).fit([(source, iterates, broken)])
    with pytest.raises(GridMismatchError, match="`source`"):
        new().fit([(source[:, :, :5], iterates[:, :, :, :, :5], target[:, :, :5])])
    with pytest.raises(ShapeError, match="one shape"):
        new().fit([(source, iterates[..., :2], target)])
    with pytest.raises(ShapeError, match="measured"):
        SpectralEnsemble(cells, measured=(7,)).fit([(source, iterates, target)])
    with pytest.raises(EmptySplitError):
        new().fit([])
    with pytest.raises(EmptySplitError, match="auto"):
        new().fit([(source[:2], iterates[:, :, :2], target[:2])])
    with pytest.raises(NotFittedError):
        new().predict(source, iterates)
    with pytest.raises(ShapeError, match="members"):
        new(ridge=0.1).fit([(source, iterates, target)]).predict(source, iterates[:1])
    with pytest.raises(ConfigError, match="ridge"):
        new(ridge=-1.0).fit([(source, iterates, target)])
    with pytest.raises(ConfigError, match="depths"):
        new(ridge=0.1, depths=(1, 9)).fit([(source, iterates, target)])


def test_ridge_path_handles_empty_and_singular_cells_by_rule():
    moments = torch.zeros(3, 4, 4, dtype=torch.float64)
    column = torch.tensor([1.0, 1.0, 1.0]).double()  # three equal columns
    moments[1, :3, :3] = torch.outer(column, column)
    moments[1, :3, 3] = moments[1, 3, :3] = 2 * column
    moments[1, 3, 3] = 4.0
    moments[2] = moments[1]
    moments[2, 0, 0] -= 1e-14  # not positive semi-definite by rounding
    free, tiny, huge = ridge_path(moments, [0.0, 1e-8, float("inf")])
    assert torch.equal(free[0], torch.zeros(3).double())
    torch.testing.assert_close(free[1], torch.full((3,), 2 / 3).double())
    torch.testing.assert_close(free[2].sum(), torch.tensor(2.0).double())
    torch.testing.assert_close(tiny[1], torch.full((3,), 2 / 3).double(), rtol=1e-6, atol=0)
    assert torch.equal(huge, torch.zeros_like(huge))


@pytest.mark.parametrize("ridge", [0.0, 1e-8, 1e-4, 1.0])
def test_ridge_on_near_collinear_columns_matches_lstsq(ridge):
    """37 columns built from an SVD, Gram matrix of condition 1e12."""
    generator = torch.Generator().manual_seed(0)
    rows, size = 400, 37
    left = torch.linalg.qr(torch.randn(rows, size, generator=generator, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    columns = left @ torch.diag(torch.logspace(0, -6, size, dtype=torch.float64)) @ right.T
    target = torch.randn(rows, generator=generator, dtype=torch.float64)
    joint = torch.cat([columns, target[:, None]], 1)
    weights = ridge_path((joint.T @ joint)[None], [ridge])[0, 0]
    penalty = (ridge * (columns**2).sum() / size) ** 0.5
    extended = torch.cat([columns, penalty * torch.eye(size, dtype=torch.float64)])
    wanted = torch.cat([target, torch.zeros(size, dtype=torch.float64)])
    exact = torch.linalg.lstsq(extended, wanted[:, None]).solution[:, 0]
    tolerance = 1e-3 if ridge == 0 else 1e-6
    scale = float((columns @ exact).norm())
    assert float((columns @ (weights - exact)).norm()) < tolerance * scale
    if ridge:
        assert float((weights - exact).norm()) < 1e-5 * float(exact.norm())


def test_doubled_windows_do_not_move_the_weights():
    data = problem()
    cells = FourierCells.polar((6, 7), radial=2, angular=2)
    once = fit(data, cells, ridge=1e-3)
    twice = SpectralEnsemble(cells, 1e-3, MEASURED).fit([data, data])
    torch.testing.assert_close(once.weights_, twice.weights_)


@pytest.mark.parametrize("wide", [None, True, False], ids=["cpu", "cuda", "mps"])
def test_sums_of_near_collinear_columns_have_float64_products(wide):
    """Columns at condition 1e12: the smallest eigenvalue is that of products in float64."""
    generator = torch.Generator().manual_seed(0)
    source, first, noise = (torch.randn(6, 3, 8, 8, 1, generator=generator) for _ in range(3))
    source = torch.zeros_like(source)  # so that columns are the iterates, bit for bit
    iterates = torch.stack([first, first + 1e-6 * noise])[None]  # one member, two depths
    cells = FourierCells.single((8, 8))
    ensemble = SpectralEnsemble(
        cells, ridge=1e-3, base_column=False, weight_exponent=0.0, measured=(0,)
    )
    columns = [forward(space_last(field), 2).flatten(3).squeeze(2) for field in iterates[0]]
    plain = torch.stack([torch.view_as_real(column) for column in columns]).double()
    weight = cells.multiplicity.reshape(-1, 1)
    expected = torch.einsum("abtkc,dbtkc,kc->ad", plain, plain, weight.expand(-1, 2))
    there = contextlib.nullcontext() if wide is None else pretend.accelerator(wide=wide)
    with there:
        batch = [
            part.to("cpu" if wide is None else "pretend") for part in (source, iterates, first)
        ]
        found = ensemble.fit([tuple(batch)]).sums_.total().gram[0, 0, 0]
    assert torch.linalg.cond(expected) > 1e11
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    smallest = [torch.linalg.eigvalsh(one)[0] for one in (found, expected)]
    torch.testing.assert_close(*smallest, rtol=1e-2, atol=0)
