"""Scores against independent NumPy references, identities and equivalences."""

import json
import math
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounding import round_otherwise
from torch import Tensor

from r2no import metrics
from r2no.errors import (
    ConfigError,
    EmptySplitError,
    GridMismatchError,
    NonFiniteError,
    ShapeError,
)
from r2no.metrics import Accumulator, MetricBatches, spectral
from r2no.metrics.spectral import Shells, SpectralPass
from r2no.storage import load_tensors, save_tensors

SHAPES = [(5, 8, 12, 16, 2), (3, 7, 9, 11, 2), (4, 6, 5, 10, 1), (3, 9, 8, 4, 3)]
SPECTRAL = ["frmse", "rel_frmse_low", "rel_frmse_mid", "rel_frmse_high", "freq_error"]


def fields(shape: tuple[int, ...], seed: int = 0, offset: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = offset + torch.randn(shape, generator=generator)
    return target + 0.3 * torch.randn(shape, generator=generator), target


def numpy_reference(prediction: Tensor, target: Tensor) -> dict[str, float]:
    """Every score from its definition, with full complex FFTs and explicit loops."""
    p, y = prediction.double().numpy(), target.double().numpy()
    n, t, h, w, channels = p.shape
    e, shells = p - y, min(t // 2, h // 2, w // 2)
    error, norm = np.fft.fftn(e, axes=(1, 2, 3)), np.fft.fftn(y, axes=(1, 2, 3))
    signed = [np.rint(np.fft.fftfreq(size) * size).astype(int) for size in (t, h, w)]
    octant, full, target_octant = np.zeros((3, shells, channels))
    for i, j, k in product(*signed):
        radius = math.isqrt(int(i**2 + j**2 + k**2))
        if radius >= shells:
            continue
        energy = (np.abs(error[:, i, j, k]) ** 2).mean(0)
        full[radius] += energy
        if min(i, j, k) >= 0:
            octant[radius] += energy
            target_octant[radius] += (np.abs(norm[:, i, j, k]) ** 2).mean(0)
    octant, full, target_octant = (np.sqrt(x) / (t * h * w) for x in (octant, full, target_octant))
    low, high = int(np.rint(shells / 3)), int(np.rint(2 * shells / 3))
    bands = {"low": slice(low), "mid": slice(low, high), "high": slice(high, None)}
    k_p, k_y = (0.5 * f[..., :2].var(1).sum(-1) for f in (p, y))
    ratios = [np.linalg.norm(e[s]) / np.linalg.norm(y[s]) for s in range(n)]
    scores = {
        "rmse": np.sqrt((e**2).mean()),
        "mae": np.abs(e).mean(),
        "rel_l2": np.mean(ratios),
        "r2": 1 - (e**2).sum() / ((y - y.mean(0)) ** 2).sum(),
        "ke_error": np.abs(k_p - k_y).mean() if channels > 1 else 0.0,
        "frmse": octant.mean(),
        "frmse_full": full.mean(),
        "freq_error": np.abs(np.fft.fft(e.sum((2, 3, 4)), axis=1)).mean(),
    }
    for band, part in bands.items():
        empty = not len(octant[part])
        scores[f"frmse_{band}"] = math.nan if empty else octant[part].mean()
        scores[f"frmse_full_{band}"] = math.nan if empty else full[part].mean()
        scores[f"rel_frmse_{band}"] = math.nan if empty else (octant / target_octant)[part].mean()
    return {name: float(value) for name, value in scores.items()}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_equal_a_float64_reference(shape: tuple[int, ...]) -> None:
    prediction, target = fields(shape)
    scores = metrics.evaluate(prediction, target, measured=shape[-1])
    expected = numpy_reference(prediction, target)
    assert scores == pytest.approx(expected, rel=1e-10, abs=0, nan_ok=True)


def test_shells_keep_their_digits_beside_a_large_mean() -> None:
    prediction, target = fields((3, 8, 12, 16, 2), offset=1000.0)
    scores = metrics.evaluate(prediction, target, measured=2)
    assert scores == pytest.approx(numpy_reference(prediction, target), rel=1e-8, abs=0)


@pytest.mark.parametrize("masked", [False, True])
def test_r2_keeps_its_digits_beside_a_large_mean(masked: bool) -> None:
    prediction, target = (f.double() for f in fields((5, 4, 6, 7, 2)))
    mask = torch.rand(target.shape) > 0.3 if masked else None
    scores = [
        metrics.evaluate(prediction + offset, target + offset, measured=2, mask=mask)["r2"]
        for offset in (0.0, 2.0**24)
    ]
    assert scores[1] == pytest.approx(scores[0], rel=1e-7)


@pytest.mark.parametrize("axes", [(8, 12, 16), (7, 9, 11), (4, 5, 6)], ids=["even", "odd", "mixed"])
def test_full_shells_satisfy_parseval_when_none_is_cut(
    axes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.randn(2, 3, *axes, dtype=torch.float64)
    shells = Shells.build(axes, num_shells=1 + math.isqrt(sum((n // 2) ** 2 for n in axes)))
    monkeypatch.setattr(spectral, "cached_shells", lambda axes, device: shells)
    sums, steady = SpectralPass(error[0]), torch.randn(2, 3, *axes[1:], dtype=torch.float64)
    for changing, constant in zip(error.split(1), steady.split(1), strict=True):
        sums.add(changing, constant)
    energy = sums.sums(error.square().sum()).full / math.prod(axes)
    torch.testing.assert_close(
        energy.sum(0), (error + steady[:, :, None]).square().sum((0, 2, 3, 4))
    )
    assert int(shells.multiplicity.sum()) == math.prod(axes)


def test_shells_do_not_depend_on_how_the_processor_rounds(monkeypatch) -> None:
    """Radii such as 5 = sqrt(3² + 4²) open a shell; a root one unit low would miss it."""
    here = Shells.build((20, 64, 128)).index
    round_otherwise(monkeypatch)
    assert torch.equal(Shells.build((20, 64, 128)).index, here)


def test_full_shells_of_a_band_limited_error_add_up_to_its_mean_square() -> None:
    t, h, w = torch.meshgrid(*(torch.arange(n) / n for n in (12, 16, 14)), indexing="ij")
    error = torch.cos(2 * math.pi * (2 * t - 3 * h + w)).double() + 0.5
    target = torch.zeros(1, 12, 16, 14, 1, dtype=torch.float64)
    prediction = error[None, ..., None]
    scores = metrics.evaluate(prediction, target, measured=1)
    shells = 6  # the constant is in shell 0, the wave in shell ⌊√14⌋ = 3
    assert scores["frmse_full"] * shells == pytest.approx(0.5 + math.sqrt(0.5))
    assert scores["rmse"] == pytest.approx(math.sqrt(0.25 + 0.5))
    assert scores["frmse"] * shells == pytest.approx(0.5)  # the octant does not see this wave


def test_octant_and_full_agree_where_only_the_octant_has_content() -> None:
    target = torch.zeros(2, 8, 8, 8, 1)
    scores = metrics.evaluate(target + 0.25, target, measured=1)
    assert scores["frmse_full"] == pytest.approx(scores["frmse"])


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 8), max_size=4),
    order=st.permutations(range(9)),
    offset=st.sampled_from([0.0, 1.0, 1000.0]),
    masked=st.booleans(),
    pieces=st.integers(1, 3),
)
def test_scores_ignore_batches_order_and_merging(
    cuts: list[int], order: list[int], offset: float, masked: bool, pieces: int
) -> None:
    prediction, target = fields((9, 6, 7, 8, 2), offset=offset)
    mask = torch.rand(target.shape) > 0.3 if masked else torch.ones_like(target, dtype=torch.bool)
    whole = metrics.evaluate(prediction, target, measured=2, mask=mask if masked else None)
    parts = [Accumulator(2) for _ in range(pieces)]
    bounds = [0, *sorted(set(cuts)), 9]
    for number, (start, stop) in enumerate(pairwise(bounds)):
        chosen = list(order[start:stop])
        arguments = prediction[chosen], target[chosen], mask[chosen] if masked else None
        parts[number % pieces].update(*arguments)
    merged = parts[0]
    for part in parts[1:]:
        merged.merge(part)
    assert merged.compute() == pytest.approx(whole, rel=1e-10, abs=0)


def test_large_windows_in_one_update_equal_one_update_each() -> None:
    prediction, target = (f.double() for f in fields((3, 8, 128, 130, 2)))
    whole = metrics.evaluate(prediction, target, measured=2)
    single = Accumulator(2)
    for p, y in zip(prediction, target, strict=True):
        single.update(p[None], y[None])
    assert single.compute() == pytest.approx(whole, rel=1e-10)
    assert whole["r2"] == pytest.approx(numpy_r2(prediction, target), rel=1e-10)


def numpy_r2(prediction: Tensor, target: Tensor) -> float:
    p, y = prediction.double().numpy(), target.double().numpy()
    return float(1 - ((p - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum())


def test_metric_batches_take_a_whole_batch_or_nothing_of_it() -> None:
    prediction, target = fields((4, 6, 8, 8, 2))
    pieces = MetricBatches(2, 2)
    pieces.update(prediction, target)
    scores = pieces.compute()
    with pytest.raises(GridMismatchError, match="grid"):
        pieces.update(*fields((2, 6, 10, 10, 2)))
    broken = target.clone()
    broken[3, 0, 0, 0, 0] = math.nan  # in the second piece
    with pytest.raises(NonFiniteError):
        pieces.update(prediction, broken)
    assert pieces.compute() == scores


def test_merge_leaves_the_other_accumulator_as_it_is() -> None:
    first, second = Accumulator(2).update(*fields((2, 6, 8, 8, 2))), Accumulator(2)
    second.update(*fields((3, 6, 8, 8, 2), seed=1))
    before = second.compute()
    Accumulator(2).merge(second).update(*fields((4, 6, 8, 8, 2), seed=2))
    first.merge(second)
    assert second.compute() == before


def test_updates_do_not_keep_the_memory_of_their_batch() -> None:
    prediction, target = fields((1, 6, 8, 8, 2))
    accumulator = Accumulator(2).update(prediction, target)
    before = accumulator.state()[0]["spread.mean"]
    target.zero_()
    torch.testing.assert_close(accumulator.state()[0]["spread.mean"], before, rtol=0, atol=0)


@pytest.mark.parametrize("masked", [False, True])
def test_state_survives_a_file(tmp_path, masked: bool) -> None:
    prediction, target = fields((4, 6, 8, 8, 3))
    mask = torch.rand(target.shape) > 0.5 if masked else None
    accumulator = Accumulator((0, 2)).update(prediction, target, mask)
    save_tensors(tmp_path / "scores.safetensors", *accumulator.state())
    loaded = Accumulator.from_state(*load_tensors(tmp_path / "scores.safetensors"))
    assert loaded.compute() == accumulator.compute()
    assert loaded.merge(accumulator).compute()["rmse"] == pytest.approx(
        accumulator.compute()["rmse"]
    )
    json.dumps(accumulator.state()[1])


def test_state_of_another_format_is_refused() -> None:
    tensors, metadata = Accumulator(2).state()
    assert Accumulator.from_state(tensors, metadata).measured == 2
    with pytest.raises(ConfigError, match="format"):
        Accumulator.from_state(tensors, metadata | {"format": 99})


@pytest.mark.parametrize("filler", [math.nan, math.inf, -1e30])
def test_values_under_the_mask_change_no_bit(filler: float) -> None:
    prediction, target = fields((4, 6, 8, 9, 2))
    mask = torch.rand(target.shape) > 0.4
    mask[1] = False
    first = metrics.evaluate(prediction, target, measured=2, mask=mask)
    gaps = [torch.where(mask, field, filler) for field in (prediction, target)]
    assert metrics.evaluate(*gaps, measured=2, mask=mask) == first
    keep = [0, 2, 3]
    without = metrics.evaluate(prediction[keep], target[keep], measured=2, mask=mask[keep])
    assert first == pytest.approx(without, rel=1e-12)


def test_masked_scores_are_over_measured_points() -> None:
    prediction, target = fields((5, 6, 8, 9, 2))
    mask = torch.rand(target.shape, generator=torch.Generator().manual_seed(3)) > 0.5
    mask[:, :, 0, 0] = False  # a point nobody measured
    mask[:, :, 1, 1, 1] = False  # a point where v was never measured
    scores = metrics.evaluate(prediction, target, measured=2, mask=mask)
    p, y, seen = prediction.double().numpy(), target.double().numpy(), mask.numpy()
    e = np.ma.array(p - y, mask=~seen)
    masked_y, masked_p = np.ma.array(y, mask=~seen), np.ma.array(p, mask=~seen)
    spread = ((masked_y - masked_y.mean(0)) ** 2).sum()
    k_p, k_y = (0.5 * sum(f[..., c].var(1) for c in (0, 1)) for f in (masked_p, masked_y))
    norms = [np.sqrt((e[s] ** 2).sum() / (masked_y[s] ** 2).sum()) for s in range(len(y))]
    expected = {
        "rmse": math.sqrt((e**2).mean()),
        "mae": abs(e).mean(),
        "rel_l2": np.mean(norms),
        "r2": 1 - (e**2).sum() / spread,
        "ke_error": abs(k_p - k_y).mean(),
    }
    assert {name: scores[name] for name in expected} == pytest.approx(expected, rel=1e-10)
    zeroed = metrics.evaluate(
        *(torch.where(mask, field, 0.0) for field in (prediction, target)), measured=2
    )
    assert {n: scores[n] for n in SPECTRAL} == pytest.approx({n: zeroed[n] for n in SPECTRAL})


def test_mask_that_is_true_everywhere_is_no_mask() -> None:
    prediction, target = fields((3, 6, 8, 9, 2))
    mask = torch.ones_like(target, dtype=torch.bool)
    masked = metrics.evaluate(prediction, target, measured=2, mask=mask)
    assert masked == pytest.approx(metrics.evaluate(prediction, target, measured=2), rel=1e-12)


def test_measured_channels_may_be_named_by_index() -> None:
    prediction, target = fields((3, 6, 8, 9, 3))
    chosen = metrics.evaluate(prediction, target, measured=(2, 0))
    assert chosen == metrics.evaluate(prediction[..., [2, 0]], target[..., [2, 0]], measured=2)
    poisoned = prediction.clone()
    poisoned[..., 1] = math.nan
    assert metrics.evaluate(poisoned, target, measured=(2, 0)) == chosen


@pytest.mark.parametrize("space", [(11,), (4, 5, 6)], ids=["1-D", "3-D"])
def test_other_grids_have_the_pointwise_scores_only(space: tuple[int, ...]) -> None:
    prediction, target = fields((4, 5, *space, 2))
    scores = metrics.evaluate(prediction, target, measured=2)
    assert list(scores) == ["rmse", "mae", "rel_l2", "r2"]
    assert scores["r2"] == pytest.approx(numpy_r2(prediction, target), rel=1e-10)
    error = (prediction - target).double()
    assert scores["rmse"] == pytest.approx(error.square().mean().sqrt().item(), rel=1e-6)


def test_one_window_has_no_r2_and_one_channel_no_kinetic_energy() -> None:
    prediction, target = fields((1, 6, 8, 8, 1))
    scores = metrics.evaluate(prediction, target, measured=1)
    assert scores["r2"] == -math.inf
    assert scores["ke_error"] == 0.0
    assert math.isnan(metrics.evaluate(target, target, measured=1)["r2"])


def test_perfect_prediction_has_no_error() -> None:
    _, target = fields((3, 6, 8, 8, 2))
    scores = metrics.evaluate(target, target, measured=2)
    assert scores.pop("r2") == 1.0
    assert set(scores.values()) == {0.0}


def test_half_precision_is_scored_as_its_values() -> None:
    prediction, target = (field.half() for field in fields((3, 6, 8, 8, 2)))
    scores = metrics.evaluate(prediction, target, measured=2)
    assert scores == metrics.evaluate(prediction.float(), target.float(), measured=2)


@pytest.mark.parametrize("batch", [1, 2, 3, 7])
def test_metric_batches_ignore_how_windows_arrive(batch: int) -> None:
    prediction, target = fields((7, 6, 8, 8, 2))
    expected = metrics.evaluate(prediction, target, measured=2, metric_batch=3)
    pieces = MetricBatches(2, 3)
    for p, y in zip(prediction.split(batch), target.split(batch), strict=True):
        pieces.update(p, y)
    assert pieces.compute() == pytest.approx(expected, rel=1e-12)
    parts = [
        metrics.evaluate(p, y, measured=2)
        for p, y in zip(prediction.split(3), target.split(3), strict=True)
    ]
    means = {name: sum(part[name] for part in parts) / 3 for name in parts[0]}
    assert expected == pytest.approx(means, rel=1e-12)
    assert expected["r2"] == -math.inf


@pytest.mark.parametrize("name", ["prediction", "target"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_values_are_refused_by_name(name: str, value: float) -> None:
    prediction, target = fields((3, 6, 8, 8, 2))
    {"prediction": prediction, "target": target}[name][2, 1, 3, 4, 1] = value
    accumulator = Accumulator(2).update(*fields((2, 6, 8, 8, 2)))
    before = accumulator.compute()
    with pytest.raises(NonFiniteError, match=f"`{name}`"):
        accumulator.update(prediction, target)
    assert accumulator.compute() == before
    mask = torch.ones_like(target, dtype=torch.bool)
    with pytest.raises(NonFiniteError, match=f"`{name}`"):
        metrics.evaluate(prediction, target, measured=2, mask=mask)
    mask[2, 1, 3, 4, 1] = False
    metrics.evaluate(prediction, target, measured=2, mask=mask)
    metrics.evaluate(prediction, target, measured=1)


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((3, 6, 8, 9, 2), GridMismatchError),
        ((3, 6, 8, 8, 3), ShapeError),
        ((3, 5, 8, 8, 2), ShapeError),
        ((2, 6, 8, 8, 2), ShapeError),
        ((3, 6, 8, 2), ShapeError),
    ],
)
def test_fields_that_do_not_match_are_refused(shape: tuple[int, ...], error: type) -> None:
    _, target = fields((3, 6, 8, 8, 2))
    with pytest.raises(error):
        metrics.evaluate(torch.zeros(shape), target, measured=2)
    with pytest.raises(error):
        metrics.evaluate(target, torch.zeros(shape), measured=2)
    if len(shape) == 5 and shape[0] == 3:
        accumulator = Accumulator(2).update(target, target)
        other = Accumulator(2).update(torch.zeros(shape), torch.zeros(shape))
        with pytest.raises(error):
            accumulator.merge(other)


def test_masks_of_another_shape_or_kind_are_refused() -> None:
    prediction, target = fields((3, 6, 8, 8, 2))
    with pytest.raises(ShapeError, match="mask"):
        metrics.evaluate(prediction, target, measured=2, mask=torch.ones(3, 6, 8, 8, 1).bool())
    with pytest.raises(ShapeError, match="boolean"):
        metrics.evaluate(prediction, target, measured=2, mask=torch.ones(3, 6, 8, 8, 2))


@pytest.mark.parametrize("measured", [0, 3, (), (0, 0), (2,), (-1,)], ids=str)
def test_measured_channels_must_exist(measured: int | tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="measured"):
        metrics.evaluate(*fields((3, 6, 8, 8, 2)), measured=measured)


def test_accumulators_of_different_channels_do_not_merge() -> None:
    with pytest.raises(ShapeError, match="same channels"):
        Accumulator(2).merge(Accumulator((0, 2)))
    Accumulator(2).merge(Accumulator((0, 1)))


def test_nothing_to_score_is_an_error() -> None:
    empty = torch.zeros(0, 6, 8, 8, 2)
    with pytest.raises(EmptySplitError):
        metrics.evaluate(empty, empty, measured=2)
    with pytest.raises(EmptySplitError):
        metrics.evaluate(empty, empty, measured=2, metric_batch=2)
    for nothing in (Accumulator(2), MetricBatches(2, 3)):
        with pytest.raises(EmptySplitError):
            nothing.compute()
    prediction, target = fields((3, 6, 8, 8, 2))
    with pytest.raises(EmptySplitError):
        metrics.evaluate(prediction, target, measured=2, mask=torch.zeros(target.shape).bool())
    with pytest.raises(ConfigError, match="metric_batch"):
        metrics.evaluate(prediction, target, measured=2, metric_batch=0)


def test_probes_see_only_the_time_mean() -> None:
    target = torch.randn(2, 4, 64, 128, 2, dtype=torch.float64)
    geometry = {"diameter": 18, "center": (32, 32), "stride": 1}
    stations = metrics.probe_error(target + 0.5, target, **geometry)
    torch.testing.assert_close(stations, torch.full((4,), 0.5, dtype=torch.float64))
    still = metrics.probe_error(target.flip(1), target, **geometry)
    torch.testing.assert_close(still, torch.zeros(4, dtype=torch.float64))


def test_probes_refuse_bad_fields() -> None:
    target = torch.zeros(2, 3, 64, 128, 2)
    geometry = {"diameter": 18, "center": (32, 32), "stride": 1}
    with pytest.raises(ShapeError):
        metrics.probe_error(torch.zeros(2, 3, 64, 128, 3), target, **geometry)
    with pytest.raises(NonFiniteError):
        metrics.probe_error(target + math.nan, target, **geometry)
    with pytest.raises(GridMismatchError):  # rows would wrap around
        metrics.probe_error(target, target, diameter=18, center=(32, 3), stride=1)


def test_update_ratio_counts_updates_to_the_best_real_error() -> None:
    real = [0.9, 0.5, 0.4, 0.45]
    assert metrics.update_ratio([0.6, 0.4, 0.3], real) == 2 / 3
    assert metrics.update_ratio([0.6, 0.4], real, finetuned_every=50, real_every=100) == 1 / 3
    assert metrics.update_ratio([0.6, 0.5], real) == 1.0
    with pytest.raises(EmptySplitError):
        metrics.update_ratio([], real)
