"""Large float32 windows are scored in float32, to 1e-6 of float64, or again in float64."""

import math

import pytest
import torch
from torch import Tensor

from r2no.errors import ConfigError, NonFiniteError, ShapeError
from r2no.metrics import Accumulator, MetricBatches, Target, evaluate, passes
from r2no.metrics.spectral import SpectralPass

SHAPES = [(5, 8, 12, 16, 2), (3, 7, 9, 11, 2), (4, 6, 5, 10, 1), (3, 9, 8, 4, 3), (2, 1, 6, 7, 2)]


def fields(
    shape: tuple[int, ...], offset: float = 1.0, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    target = offset + scale * torch.randn(shape, generator=generator)
    return target + 0.3 * scale * torch.randn(shape, generator=generator), target


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The precisions of the passes, small windows counting as large."""
    seen: list[torch.dtype] = []
    begin = passes._BatchPass.__init__

    def noted(self, prediction: Tensor, target: Target, kind: torch.dtype) -> None:
        seen.append(kind)
        begin(self, prediction, target, kind)

    monkeypatch.setattr(passes, "_LARGE", 1)
    monkeypatch.setattr(passes._BatchPass, "__init__", noted)
    return seen


def wide(prediction: Tensor, target: Tensor, measured: int) -> dict[str, float]:
    return evaluate(prediction.double(), target.double(), measured=measured)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, 1e5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_scores_equal_those_of_float64(
    shape: tuple[int, ...], offset: float, passed: list[torch.dtype]
) -> None:
    prediction, target = fields(shape, offset)
    scores = evaluate(prediction, target, measured=shape[-1])
    assert passed[0] == torch.float32
    expected = wide(prediction, target, shape[-1])
    assert scores == pytest.approx(expected, rel=1e-6, abs=0, nan_ok=True)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_large_windows_take_float32_and_keep_six_digits(offset: float) -> None:
    prediction, target = fields((6, 20, 40, 90, 2), offset)
    scores = evaluate(prediction, target, measured=2)
    assert scores == pytest.approx(wide(prediction, target, 2), rel=1e-6, abs=0)


def test_batches_and_merging_change_rounding_only() -> None:
    prediction, target = fields((5, 20, 40, 90, 2))
    whole = evaluate(prediction, target, measured=2)
    parts = [
        Accumulator(2).update(p, y)
        for p, y in zip(prediction.split(2), target.split(2), strict=True)
    ]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert merged.compute() == pytest.approx(whole, rel=1e-7, abs=0)


def test_weak_shells_beside_a_strong_wave_are_scored_in_float64(passed: list) -> None:
    t, h, w = torch.meshgrid(*(torch.arange(n) / n for n in (12, 16, 14)), indexing="ij")
    wave = torch.cos(2 * math.pi * (2 * t + h - w))[None, ..., None]
    prediction, target = fields((3, 12, 16, 14, 1), offset=0.0, scale=1e-6)
    for arguments in ((prediction + wave, target), (prediction, target + wave)):
        passed.clear()
        scores = evaluate(*arguments, measured=1)
        assert passed == [torch.float32, torch.float64]
        assert scores == wide(*arguments, 1)


@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1e15, 1e25])
def test_sizes_whose_squares_leave_float32_are_scored_in_float64(
    scale: float, passed: list[torch.dtype]
) -> None:
    prediction, target = fields((3, 6, 8, 8, 2), offset=0.0, scale=scale)
    assert evaluate(prediction, target, measured=2) == wide(prediction, target, 2)
    assert passed[:2] == [torch.float32, torch.float64]


def test_perfect_prediction_has_no_error_and_needs_no_second_pass(passed: list) -> None:
    _, target = fields((3, 6, 8, 8, 2))
    scores = evaluate(target, target, measured=2)
    assert scores.pop("r2") == 1.0
    assert set(scores.values()) == {0.0}
    assert passed == [torch.float32]


def test_products_that_may_be_rounded_are_made_in_float64(passed: list[torch.dtype]) -> None:
    prediction, target = fields((3, 6, 8, 8, 2))
    expected = wide(prediction, target, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert evaluate(prediction, target, measured=2) == expected
    torch.set_float32_matmul_precision("medium")
    try:
        assert evaluate(prediction, target, measured=2) == expected
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.float32 not in passed


@pytest.mark.parametrize("name", ["prediction", "target"])
def test_non_finite_values_are_refused_by_name(name: str, passed: list[torch.dtype]) -> None:
    given = dict(zip(("prediction", "target"), fields((3, 6, 8, 8, 2)), strict=True))
    given[name][1, 2, 3, 4, 0] = math.nan
    with pytest.raises(NonFiniteError, match=f"`{name}`"):
        evaluate(given["prediction"], given["target"], measured=2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("narrow", [False, True], ids=["float64", "float32"])
@pytest.mark.parametrize("pieces", [None, 2])
def test_one_target_serves_several_forecasts(
    masked: bool, narrow: bool, pieces: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if narrow:
        monkeypatch.setattr(passes, "_LARGE", 1)
    first, values = fields((5, 6, 8, 9, 3))
    forecasts = [first, values + 0.1, values.flip(0), first.double()]
    mask = torch.rand(values.shape) > 0.3 if masked else None
    target = Target(values, mask, measured=(0, 2))
    for forecast in forecasts:
        alone = evaluate(forecast, values, measured=(0, 2), mask=mask, metric_batch=pieces)
        sums = Accumulator((0, 2)) if pieces is None else MetricBatches((0, 2), pieces)
        sums.update(forecast, target)
        assert sums.compute() == alone


def test_a_target_is_transformed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[bool] = []
    add = SpectralPass.add

    def noted(self: SpectralPass, changing: Tensor, steady: Tensor) -> None:
        windows.extend([self._octant_only] * len(changing))
        add(self, changing, steady)

    monkeypatch.setattr(SpectralPass, "add", noted)
    prediction, values = fields((3, 6, 8, 8, 2))
    target = Target(values, measured=2)
    for share in (1.0, 0.5, 0.25):
        Accumulator(2).update(values + share * (prediction - values), target)
    assert (windows.count(True), windows.count(False)) == (3, 9)


def test_targets_for_other_channels_or_with_another_mask_are_refused() -> None:
    prediction, values = fields((3, 6, 8, 8, 2))
    target = Target(values, measured=2)
    with pytest.raises(ShapeError, match="scored channels"):
        Accumulator(1).update(prediction, target)
    with pytest.raises(ConfigError, match="mask"):
        MetricBatches(2, 2).update(prediction, target, torch.ones_like(values, dtype=torch.bool))


def test_what_is_known_of_the_targets_is_merged_once_for_all_forecasts() -> None:
    sums = [Accumulator(2) for _ in range(3)]
    for seed in range(3):
        torch.manual_seed(seed)
        values = torch.randn(2, 6, 8, 8, 2)
        target = Target(values, measured=2)
        for share, accumulator in enumerate(sums):
            accumulator.update((1 + 0.1 * share) * values, target)
    spreads = [accumulator._sums.spread for accumulator in sums if accumulator._sums]
    assert spreads[0] is spreads[1] is spreads[2]
    assert float(spreads[0].visits) == 6


@pytest.mark.parametrize("together", [1, 5 * 8 * 12 * 16])
def test_windows_that_are_worked_on_together_change_rounding_only(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prediction, target = fields((7, 8, 12, 16, 2))
    for mask in (None, torch.rand(target.shape, generator=torch.manual_seed(0)) > 0.3):
        expected = evaluate(prediction, target, measured=2, mask=mask)
        with monkeypatch.context() as patched:
            patched.setattr(passes, "_TOGETHER", together)
            found = evaluate(prediction, target, measured=2, mask=mask)
        assert found == pytest.approx(expected, rel=1e-12, abs=0)
