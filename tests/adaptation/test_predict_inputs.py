"""What `AdaptedModel.predict` takes: every kind of array, gaps, names, units, threads."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from tests.support.adapting import SETTINGS, Source, in_double
from tests.support.recordings import HISTORY, HORIZON, recording
from tests.support.waves import travelling_wave

import r2no
from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairSettings
from r2no.adaptation.histories import suspected_factor
from r2no.data import ArrayWindows
from r2no.data.coordinates import conversion
from r2no.errors import (
    ConfigError,
    DataError,
    EmptySplitError,
    GridMismatchError,
    NonFiniteError,
    RangeWarning,
    ShapeError,
    UnknownNameError,
)
from r2no.training import TrainSettings

TINY = AdaptSettings(
    members=1,
    repair=RepairSettings(width=2, depth=1, steps=2, train=TrainSettings(epochs=1, batch_size=16)),
    ensemble=EnsembleSettings(radial=2, angular=2),
)

#: Of comparisons in float64.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def wide(data: xr.Dataset) -> xr.Dataset:
    """A data set in float64."""
    return data.astype(float, keep_attrs=True)


@pytest.fixture(scope="module")
def model():
    data = r2no.data.open([recording(seed) for seed in range(7)])
    found = data.split(HISTORY, HORIZON, stride=3, measured=("u",))
    return r2no.adapt(Source(), found.train, found.fit, settings=SETTINGS)


@pytest.fixture(scope="module")
def exact(model):
    """The model in float64. In float32 a window alone and in a batch differ by 4e-6: rounding of
    the convolutions, for here they are equal."""
    return in_double(model)


@pytest.fixture
def history() -> np.ndarray:
    data = recording(20).isel(time=slice(0, HISTORY))
    return np.stack([data["u"], data["p"]], -1).astype(np.float32)


def tensor(array) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f8", "longdouble"])
def test_numpy_in_gives_numpy_out(model, history, kind):
    given = history[None].astype(kind)
    found = model.predict(given)
    assert isinstance(found, np.ndarray)
    assert found.dtype == (np.float64 if np.dtype(kind).itemsize >= 8 else np.float32)
    np.testing.assert_allclose(found, model.predict(tensor(given)), rtol=1e-6)


def test_integers_are_numbers(model, history):
    whole = np.round(3 * history[None]).astype(np.int16)
    expected = model.predict(tensor(whole))
    np.testing.assert_array_equal(model.predict(whole), expected)
    assert torch.equal(model.predict(torch.from_numpy(whole)), expected)


def test_arrays_that_cannot_be_written_to_are_taken_without_a_warning(model, history):
    fixed = history[None].copy()
    fixed.flags.writeable = False
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else PyTorch warns once per process
    try:
        np.testing.assert_array_equal(model.predict(fixed), model.predict(history[None]))
    finally:
        torch.set_warn_always(before)


@pytest.mark.parametrize("change", [torch.Tensor.to_sparse, lambda one: one.to("meta")])
def test_tensors_without_dense_values_are_named(model, history, change):
    with pytest.raises(DataError, match="dense tensor"):
        model.predict(change(tensor(history)))


def test_the_batch_axis_may_be_left_out_and_windows_come_as_a_list(model, history):
    whole = model.predict(history[None])
    np.testing.assert_array_equal(model.predict(history), whole[0])
    found = model.predict([history, tensor(history), history[None]])
    assert [type(one) for one in found] == [np.ndarray, torch.Tensor, np.ndarray]
    assert found[2].shape == whole.shape


def test_windows_of_a_batch_do_not_know_of_each_other(exact):
    parts = [recording(seed).isel(time=slice(0, HISTORY)) for seed in range(20, 25)]
    given = [np.stack([part["u"], part["p"]], -1).astype(float) for part in parts]
    alone = [exact.predict(one) for one in given]
    np.testing.assert_allclose(exact.predict(np.stack(given)), alone, **CLOSE)
    np.testing.assert_allclose(exact.predict(given), alone, **CLOSE)


def test_tensors_keep_their_precision(model, history):
    double = torch.from_numpy(history[None]).double().requires_grad_()
    assert model.predict(double).dtype == torch.float64
    assert model.predict(double.float()).dtype == torch.float32


@pytest.mark.parametrize("hidden", [np.nan, np.inf, -999.0])
def test_gaps_are_filled_as_those_of_windows(model, history, hidden):
    valid = np.random.default_rng(0).random(history.shape) > 0.2
    gappy = np.where(valid, history, np.float32(hidden))
    longer = np.concatenate([np.where(valid, history, np.nan), history])
    window = ArrayWindows([longer], HISTORY, HORIZON, mask="nan", measured=(0,))[0]
    expected = model.predict(window.history[None]).numpy()
    np.testing.assert_array_equal(model.predict(gappy[None], mask=valid[None]), expected)
    np.testing.assert_array_equal(model.predict(np.ma.array(gappy[None], mask=~valid)), expected)
    if not np.isfinite(hidden):
        np.testing.assert_array_equal(model.predict(gappy[None]), expected)
        with pytest.raises(NonFiniteError, match="missing values"):
            model.predict(gappy[None], gaps="refuse")


def test_a_mask_may_lack_the_channel_axis(model, history):
    valid = np.random.default_rng(0).random(history.shape[:-1]) > 0.2
    both = np.repeat(valid[..., None], 2, -1)
    expected = model.predict(history, mask=both)
    np.testing.assert_array_equal(model.predict(history, mask=valid), expected)
    np.testing.assert_array_equal(model.predict(history, mask=torch.from_numpy(both)), expected)


def test_a_frame_of_gaps_is_filled_and_a_channel_of_gaps_is_named(model, history):
    lost = history.copy()
    lost[1] = np.nan
    assert np.isfinite(model.predict(lost)).all()
    lost = history.copy()
    lost[..., 1] = np.nan  # not a measured channel: as in training
    assert np.isfinite(model.predict(lost)).all()
    lost = history.copy()
    lost[..., 0] = np.nan
    with pytest.raises(NonFiniteError, match="Channel 'u' of window 0"):
        model.predict(lost)


def test_wrong_histories_are_named(model, history):
    with pytest.raises(DataError, match="real numbers"):
        model.predict(history + 1j)
    with pytest.raises(DataError, match="complex"):
        model.predict(torch.zeros(1, *history.shape, dtype=torch.complex64))
    for wrong in (None, "history", {"u": history}):
        with pytest.raises(DataError, match="`history` must be a NumPy array"):
            model.predict(wrong)
    with pytest.raises(DataError, match="real numbers"):
        model.predict(history.astype(object))
    for empty in ([], history[None][:0]):
        with pytest.raises(EmptySplitError, match="`history`"):
            model.predict(empty)
    with pytest.raises(ShapeError, match="`history` must be"):
        model.predict(history[..., :1])
    with pytest.raises(ShapeError, match="`mask` must"):
        model.predict(history, mask=np.ones(3, bool))
    with pytest.raises(ConfigError, match="`gaps`"):
        model.predict(history, gaps="fil")
    with pytest.raises(NonFiniteError, match="beyond"):
        model.predict(np.full((1, *history.shape), 1e300))


def test_a_forecast_that_is_not_finite_is_never_returned(model, history):
    broken = replace(model, source=lambda h: torch.full((len(h), 4, 8, 12, 2), torch.nan))
    with pytest.raises(NonFiniteError, match="`source` returned"):
        broken.predict(history)
    loops = replace(model.loops, step_size=1e30)
    with pytest.raises(NonFiniteError, match="window 0"):
        replace(model, loops=loops).predict(history)


@pytest.mark.parametrize("dates", [False, True])
def test_a_data_set_keeps_its_coordinates_and_time_goes_on(exact, history, dates):
    whole = wide(recording(20, dates=dates))
    given = whole.isel(time=slice(0, HISTORY))
    found = exact.predict(given)
    assert isinstance(found, xr.Dataset)
    assert found["u"].dims == ("time", "lat", "lon")
    assert found["u"].attrs == given["u"].attrs
    for name in ("lat", "lon"):
        xr.testing.assert_identical(found[name], given[name])
    np.testing.assert_array_equal(found["time"], whole["time"][HISTORY : HISTORY + HORIZON])
    np.testing.assert_allclose(found["lead"], [0.25, 0.5, 0.75, 1.0])
    expected = exact.predict(history.astype(float))[..., 0]
    np.testing.assert_allclose(found["u"], expected, **CLOSE)


def test_a_data_array_keeps_its_order_and_labels(exact, history):
    given = wide(recording(20)).isel(time=slice(0, HISTORY))
    array = given[["p", "u"]].to_array("channel").transpose("lon", "channel", "time", "lat")
    found = exact.predict(array.rename("flow"))
    assert isinstance(found, xr.DataArray)
    assert found.dims == array.dims
    assert found.name == "flow"
    assert found["channel"].values.tolist() == ["p", "u"]
    expected = exact.predict(history.astype(float))[..., 0].transpose(2, 0, 1)
    np.testing.assert_allclose(found.sel(channel="u"), expected, **CLOSE)


def test_a_list_of_data_sets_is_named_instead_of_losing_its_names(model):
    data = recording(20).isel(time=slice(0, HISTORY))
    turned = data[["p", "u"]].to_array("variable").transpose("time", ..., "variable")
    for given in ([data, data], [turned]):
        with pytest.raises(DataError, match=r"Predict one at a time, or join them"):
            model.predict(given)
    joined = xr.concat([data, data], "window")
    np.testing.assert_allclose(model.predict(joined)["u"][1], model.predict(data)["u"], rtol=1e-4)


def test_several_windows_of_a_data_set_have_a_dimension_of_their_own(exact):
    parts = [wide(recording(seed)).isel(time=slice(0, HISTORY)) for seed in (20, 21)]
    found = exact.predict(xr.concat(parts, "window"))
    assert found["u"].dims == ("window", "time", "lat", "lon")
    for number, part in enumerate(parts):
        np.testing.assert_allclose(found["u"][number], exact.predict(part)["u"], **CLOSE)


def test_units_of_a_data_set_are_converted_and_given_back(exact):
    given = wide(recording(20)).isel(time=slice(0, HISTORY))
    expected = exact.predict(given)
    fast = given.assign(u=(1000 * given["u"]).assign_attrs(units="mm/s"))
    found = exact.predict(fast)
    assert found["u"].attrs["units"] == "mm/s"
    np.testing.assert_allclose(found["u"] / 1000, expected["u"], **CLOSE)
    same = given.assign(u=given["u"].assign_attrs(units="m s-1"))
    np.testing.assert_array_equal(exact.predict(same)["u"], expected["u"])
    with pytest.raises(DataError, match="'kg', but the model was adapted in 'm/s'"):
        exact.predict(given.assign(u=given["u"].assign_attrs(units="kg")))


def test_data_sets_that_do_not_fit_are_named(model):
    given = recording(20).isel(time=slice(0, HISTORY))
    with pytest.raises(UnknownNameError, match="Did you mean 'U'"):
        model.predict(given.rename(u="U"))
    with pytest.raises(ShapeError, match="`history` must be"):
        model.predict(recording(20))
    with pytest.raises(DataError, match="time step"):
        model.predict(given.assign_coords(time=3 * given["time"]))
    with pytest.raises(GridMismatchError, match="spacing"):
        model.predict(given.assign_coords(lat=3 * given["lat"]))
    with pytest.raises(GridMismatchError, match="lat"):
        model.predict(given.isel(lat=slice(None, None, -1)))
    with pytest.raises(DataError, match="'lon' of `history` is in 'km', but the model"):
        model.predict(given.assign_coords(lon=given["lon"].assign_attrs(units="km")))
    with pytest.raises(NonFiniteError, match="missing values"):
        model.predict(given.where(given["u"] > 0), gaps="refuse")


def test_gaps_of_a_data_set_are_filled(exact, history):
    given = wide(recording(20)).isel(time=slice(0, HISTORY))
    keep = given["u"] > 0
    expected = exact.predict(history.astype(float), mask=keep.values)[..., 0]
    found = exact.predict(given.where(keep))
    np.testing.assert_allclose(found["u"], expected, **CLOSE)
    xr.testing.assert_identical(exact.predict(given, mask=keep), found)


@pytest.mark.parametrize(("factor", "named"), [(1000, "1000"), (0.001, "1000"), (0.01, "100")])
def test_values_of_another_size_are_warned_of_with_the_factor(model, history, factor, named):
    with pytest.warns(RangeWarning, match=rf"Channel 'u'.*factor of {named} between"):
        model.predict(np.float32(factor) * history)


def test_usual_values_are_not_warned_of(model, history):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (0.4, 1.0, 2.0):
            model.predict(np.float32(scale) * history)


def test_written_forecasts_warn_of_another_size_too(model, tmp_path):
    data = recording(20)
    data["u"] = 1000 * data["u"].drop_attrs()
    with pytest.warns(RangeWarning, match="factor of 1000"):
        r2no.adaptation.write_predictions(
            model, r2no.data.open(data), tmp_path / "a.nc", origins="last"
        )


def test_suspected_factors_are_powers_of_ten_or_common_ones():
    ratios = (890.0, 1 / 1100, 3.5, 0.31, 26.0, 6e-4)
    assert [suspected_factor(ratio) for ratio in ratios] == pytest.approx(
        [1000, 1000, 3.6, 1 / 0.3048, 25.4, 1000], rel=1e-3
    )
    assert suspected_factor(5.0) is None


@pytest.mark.parametrize(
    ("given", "wanted", "factor", "offset"),
    [
        ("mm/s", "m/s", 1e-3, 0),
        ("m s-1", "m/s", 1, 0),
        ("m s**-1", "m·s⁻¹", 1, 0),
        ("km/h", "m/s", 1 / 3.6, 0),
        ("knots", "m/s", 1852 / 3600, 0),
        ("hPa", "Pa", 100, 0),
        ("degC", "K", 1, 273.15),
        ("kg m-3", "g/m3", 1000, 0),
        ("", "m/s", 1, 0),
        ("hours since 2024-03-01", "s", 3600, 0),
    ],
)
def test_units_are_read_as_files_write_them(given, wanted, factor, offset):
    found = conversion(given, wanted, what="u")
    assert (found.factor, found.offset) == pytest.approx((factor, offset))


def windows(seeds, **options):
    fields = [recording(seed)["u"].values[..., None] for seed in seeds]
    return ArrayWindows(fields, HISTORY, HORIZON, stride=3, **options)


@pytest.mark.parametrize("kind", [torch.float64, torch.int32, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sources_and_windows_of_any_precision_train_and_predict(kind, dtype):
    def source(history):
        return (10 * history[:, -1:].expand(-1, HORIZON, -1, -1, -1)).to(kind) / 10

    def whole(history):
        return (10 * history[:, -1:].expand(-1, HORIZON, -1, -1, -1)).to(kind)

    parts = windows(range(3), dtype=dtype), windows(range(10, 14), dtype=dtype)
    for operator in (source, whole):
        found = r2no.adapt(operator, *parts, settings=TINY)
        history = parts[0][0].history
        assert history.dtype == dtype
        assert found.predict(history[None]).dtype == dtype
        assert np.isfinite(found.evaluate(parts[1])["rmse"])


@pytest.mark.parametrize("answer", [None, (1, 2), 3.0, np.zeros(3)], ids=repr)
def test_sources_that_return_no_tensor_are_named_before_any_work(answer, tmp_path):
    with pytest.raises(ShapeError, match="`source` must return one tensor"):
        r2no.adapt(lambda h: answer, windows([0]), windows([1]), settings=TINY, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_concurrent_predictions_of_fresh_models_equal_serial_ones(model, tmp_path):
    path = model.save(tmp_path / "a.r2no")
    histories = [
        torch.from_numpy(recording(seed)["u"].values[:HISTORY, ..., None].repeat(2, -1))[None]
        for seed in range(10)
    ]
    serial = [r2no.load(path, Source()).predict(history) for history in histories]
    for _ in range(2):
        fresh = r2no.load(path, Source())
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(fresh.predict, 10 * histories))
        assert len(found) == 100
        assert all(torch.equal(a, b) for a, b in zip(found, 10 * serial, strict=True))
        assert torch.equal(fresh.predict(histories[0]), serial[0])


def test_a_model_is_shown_in_a_line_or_two(model):
    assert len(repr(model)) < 400
    assert "4 -> 4 frames of u [m/s], p [Pa] on 8 x 12" in repr(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_pressure_of_1e5_is_repaired_as_its_fluctuations_of_1_are(dtype):
    """The whole way, with the default cells: source, training, choice, fit and forecast.

    At 1e5 numbers lie 0.008 apart in float32; the values without offset are rounded alike.
    """
    settings = TINY.model_copy(
        update={
            "repair": TINY.repair.model_copy(update={"width": 4, "train": TrainSettings(epochs=2)}),
            "ensemble": EnsembleSettings(radial=8, angular=4),
        }
    )

    def placed(values, offset):
        as_kept = (values.double() + 1e5).to(dtype).double() - 1e5
        return (as_kept + offset).to(dtype)

    gains, errors = [], []
    for offset in (0.0, 1e5):

        def source(history, offset=offset):
            last = history[:, -1:].double() - offset
            return placed(0.9 * last.expand(-1, HORIZON, -1, -1, -1), offset)

        def split(seeds, offset=offset):
            fields = [placed(travelling_wave(seed)[..., :1], offset) for seed in seeds]
            return ArrayWindows(fields, HISTORY, HORIZON, stride=3, dtype=dtype)

        found = r2no.adapt(source, split(range(3)), split(range(10, 14)), settings=settings)
        gains.append(found.verdict.gain)
        errors.append(found.evaluate(split(range(20, 22)))["rmse"])
    assert gains[0] > 0.05
    assert gains[1] == pytest.approx(gains[0], rel=1e-4)
    # h_0 itself is rounded to 0.004 at 1e5 in float32, which the weights pass on
    assert errors[1] == pytest.approx(errors[0], rel=2e-3 if dtype == torch.float32 else 1e-4)
