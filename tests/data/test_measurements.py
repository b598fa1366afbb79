import itertools
import pickle

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
from tests.support.memory import Virtual, memory_for_no_more_than

import r2no.data
from r2no.data import ArrayWindows, Windows, shared_frames
from r2no.ensemble.holdout import blocks
from r2no.errors import (
    ConfigError,
    DataError,
    EmptySplitError,
    GridMismatchError,
    IrregularGridError,
    NonFiniteError,
    R2NOError,
    ShapeError,
    UnknownNameError,
)

SIZES = {"time": 30, "y": 6, "x": 8}


def field(seed: int = 0, sizes: dict[str, int] = SIZES) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=tuple(sizes.values())).astype(np.float32)


def data_set(seed: int = 0, names: tuple[str, ...] = ("u", "v"), **sizes: int) -> xr.Dataset:
    sizes = {**SIZES, **sizes}
    variables = {
        name: (tuple(sizes), field(10 * seed + number, sizes), {"units": "m/s"})
        for number, name in enumerate(names)
    }
    steps = {"time": 0.5, "y": 0.1, "x": 0.2, "z": 0.3}
    coords = {name: np.arange(size) * steps[name] for name, size in sizes.items() if name in steps}
    return xr.Dataset(variables, coords)


def stacked(data: xr.Dataset) -> np.ndarray:
    return np.stack([data["u"].values, data["v"].values], -1)


def reference(*data: xr.Dataset, **options) -> ArrayWindows:
    return ArrayWindows(
        [stacked(one) for one in data],
        4,
        3,
        channels=("u", "v"),
        units=("m/s", "m/s"),
        spacing=(0.1, 0.2),
        time_step=0.5,
        **options,
    )


def write(data: xr.Dataset, folder, kind: str) -> str:
    path = folder / f"data.{kind.split('-')[0]}"
    if kind == "nc":
        data.to_netcdf(path)
    elif kind == "zarr":
        data.to_zarr(path, consolidated=False)
    elif kind == "h5-scales":  # a NetCDF file by another name
        data.to_netcdf(path, engine="netcdf4")
    elif kind == "h5-plain":
        with h5py.File(path, "w") as file:
            for name, values in data.variables.items():
                file[name] = values.values
                file[name].attrs.update(values.attrs)
    return str(path)


def assert_same(left: Windows, right: Windows) -> None:
    assert left.fields == right.fields
    assert torch.equal(left.origins, right.origins)
    for one, other in zip(left, right, strict=True):
        for here, there in zip(one, other, strict=True):
            assert (here is None and there is None) or torch.equal(here, there)
    assert left.fingerprint == right.fingerprint


@pytest.mark.parametrize("kind", ["nc", "zarr", "h5-scales", "h5-plain"])
def test_every_format_gives_the_windows_of_the_arrays(kind: str, tmp_path) -> None:
    data = data_set()
    found = r2no.data.open(write(data, tmp_path, kind)).windows(4, 3)
    assert isinstance(found, Windows)
    assert_same(found, reference(data))


def test_npz_npy_arrays_and_mappings_give_the_same_values(tmp_path) -> None:
    data = data_set()
    arrays = {name: values.values for name, values in data.variables.items()}
    np.savez(tmp_path / "a.npz", **arrays)
    np.save(tmp_path / "a.npy", stacked(data))
    steps = {"spacing": (0.1, 0.2), "time_step": 0.5}
    expected = ArrayWindows([stacked(data)], 4, 3, channels=("u", "v"), **steps)
    names = {"variables": ("u", "v"), **steps}
    for found in (
        r2no.data.open(tmp_path / "a.npz"),
        r2no.data.open(arrays),
        r2no.data.open({"u": arrays["u"], "v": arrays["v"]}, **steps),
        r2no.data.open(tmp_path / "a.npy", **names),
        r2no.data.open(stacked(data), **names),
        r2no.data.open([torch.from_numpy(stacked(data))], **names),
    ):
        assert_same(found.windows(4, 3), expected)


def test_xarray_objects_and_lists_of_files_are_trajectories(tmp_path) -> None:
    both = [data_set(0), data_set(1)]
    for number, one in enumerate(both):
        one.to_netcdf(tmp_path / f"run{number}.nc")
    runs = xr.concat(both, "run").assign_coords(run=["a", "b"])
    runs.to_zarr(tmp_path / "runs.zarr", zarr_format=2)
    assert "trajectory = run, time = time" in str(r2no.data.open(runs))
    for source in (
        both,
        str(tmp_path / "run*.nc"),
        [tmp_path / "run0.nc", both[1]],
        runs,
        runs.transpose("x", "time", "y", "run"),
        tmp_path / "runs.zarr",
        [one.to_dataarray("channel").rename("field").assign_attrs(units="m/s") for one in both],
    ):
        found = r2no.data.open(source)
        assert len(found) == 2
        assert_same(found.windows(4, 3, stride=2), reference(*both, stride=2))


@pytest.mark.parametrize("space", [("x",), ("y", "x"), ("z", "y", "x")], ids=["1-D", "2-D", "3-D"])
def test_grids_of_one_to_three_axes_open(space: tuple[str, ...], tmp_path) -> None:
    sizes = dict(zip(("time", *space), (12, 4, 6, 5), strict=False))
    values = field(0, sizes)
    data = xr.Dataset({"q": (tuple(sizes), values)})
    data.to_netcdf(tmp_path / "a.nc")
    windows = r2no.data.open(tmp_path / "a.nc").windows(3, 2)
    assert windows.fields.grid == tuple(sizes.values())[1:]
    assert torch.equal(windows[1].target[..., 0], torch.from_numpy(values[4:6]))


def test_dimensions_are_guessed_from_cf_attributes_names_and_dates() -> None:
    values = field()
    data = xr.Dataset(
        {
            "u": (("n", "a", "b"), values),
            "static": (("a", "b"), values[0]),
            "count": (("n",), [0] * 30),
        },
        {
            "n": np.datetime64("2020-01-01", "ns") + np.arange(30) * np.timedelta64(600, "s"),
            "a": ("a", 90.0 - np.arange(6), {"standard_name": "latitude"}),
            "b": ("b", np.arange(8) * 2.0, {"axis": "X"}),
        },
    )
    found = r2no.data.open(data)
    assert found.recordings[0].roles == {"time": "n", "height": "a", "width": "b"}
    assert found.channels == ("u",)
    assert found.time_step == 600
    assert found.windows(2, 2).fields.spacing == (1.0, 2.0)
    text = str(found)
    for part in (
        "time = n, height = a, width = b",
        "600 s",
        "1 trajectory of 30 frames",
        "static",
    ):
        assert part in text


def test_names_can_be_overridden() -> None:
    data = data_set().rename(time="n", y="i", x="j").drop_vars(["n", "i", "j"])
    with pytest.raises(DataError, match=r"'n' of variable 'u' .* no known kind"):
        r2no.data.open(data)
    found = r2no.data.open(data, dims={"time": "n", "height": "i", "width": "j"}, variables=("v",))
    assert found.channels == ("v",)
    assert torch.equal(
        found.windows(4, 3)[2].history[..., 0], torch.from_numpy(data["v"].values[2:6])
    )


def test_channels_can_be_chosen_and_reordered() -> None:
    data = data_set(names=("u", "v", "p"))
    direct = r2no.data.open(data, variables=("p", "u"))
    array = data.to_dataarray("channel").rename("field").assign_attrs(units="m/s")
    for other in (
        r2no.data.open(data).select(("p", "u")),
        r2no.data.open(array, variables=("p", "u")),
        r2no.data.open(array).select(("u", "p")).select(("p", "u")),
    ):
        assert_same(other.windows(4, 3), direct.windows(4, 3))
    assert direct.windows(4, 3, measured=("u",)).fields.measured == (1,)


def test_constants_come_from_scalars_and_attributes() -> None:
    data = [data_set(n).assign(Re=100.0 + n).assign_attrs(tilt=5) for n in range(2)]
    windows = r2no.data.open(data, conditioning=("Re", "tilt")).windows(4, 3)
    assert windows.fields.history_channels == ("u", "v", "Re", "tilt")
    assert windows[-1].history[0, 0, 0, 2:].tolist() == [101, 5]
    with pytest.raises(UnknownNameError, match="Did you mean 'Re'"):
        r2no.data.open(data, conditioning=("Rey",))


def gappy(seed: int = 0, hidden: float = np.nan) -> xr.Dataset:
    """A data set with a mask variable, and other numbers where it is false."""
    data = data_set(seed)
    valid = np.random.default_rng(99).random(data["u"].shape) > 0.3
    data["valid"] = (data["u"].dims, valid)
    for name in ("u", "v"):
        data[name] = data[name].where(data["valid"], np.float32(hidden))
    return data


def test_values_under_the_mask_change_no_bit_of_the_windows(tmp_path) -> None:
    nan = r2no.data.open(gappy().drop_vars("valid")).windows(4, 3)
    assert nan[0].mask is not None
    for number, hidden in enumerate((np.nan, 0.0, 1e30, np.inf)):
        path = tmp_path / f"{number}.nc"
        gappy(0, hidden).to_netcdf(path)
        given = r2no.data.open(path, mask="valid", variables=("u", "v")).windows(4, 3)
        assert_same(given, nan)


def test_mask_without_time_holds_for_every_frame() -> None:
    data = data_set()
    data["wall"] = (("x", "y"), np.arange(8)[:, None] + np.arange(6) > 3)
    found = r2no.data.open(data, mask="wall")
    mask = np.broadcast_to(data["wall"].values.T, data["u"].shape)
    assert_mask = found.windows(4, 3)[0].mask[..., 1]
    assert torch.equal(assert_mask, torch.from_numpy(mask[4:7].copy()))
    share = 1 - data["wall"].values.mean()
    assert found.missing == pytest.approx((share, share))


def test_gaps_are_found_counted_and_can_be_forbidden() -> None:
    data = data_set()
    assert r2no.data.open(data).windows(4, 3)[0].mask is None
    data["u"][20, 0, 0] = np.nan
    found = r2no.data.open(data)
    assert found.missing == (1 / data["u"].size, 0)
    assert "missing u 0.0694 %" in str(found)
    assert found.windows(4, 3)[0].mask is not None
    with pytest.raises(NonFiniteError, match="frame 20"):
        r2no.data.open(data, mask=None).windows(4, 3)


def test_masked_numpy_arrays_are_gappy() -> None:
    array = np.ma.masked_less(stacked(data_set()), -0.5)
    window = r2no.data.open(array).windows(4, 3)[0]
    assert torch.equal(window.mask, torch.from_numpy(~array.mask[4:7]))


def test_fingerprint_changes_when_a_value_in_the_file_changes(tmp_path) -> None:
    path = write(data_set(), tmp_path, "h5-plain")
    before = r2no.data.open(path)
    print_before, identity_before = before.windows(4, 3).fingerprint, before.identity
    with h5py.File(path, "r+") as file:
        file["u"][15, 2, 3] += 1
    after = r2no.data.open(path)
    assert after.windows(4, 3).fingerprint != print_before
    assert after.identity != identity_before


@pytest.mark.parametrize("what", ["u", "valid"])
def test_identity_of_data_in_memory_changes_with_any_value(what: str) -> None:
    data = gappy()
    before = r2no.data.open(data, mask="valid").identity
    changed = data.copy(deep=True)
    middle = changed[what].isel({changed[what].dims[0]: changed[what].shape[0] // 2}).values
    middle[...] = ~middle if what == "valid" else middle + 1
    assert r2no.data.open(data, mask="valid").identity == before
    assert r2no.data.open(changed, mask="valid").identity != before


def test_hdf5_files_may_hold_more_than_the_field(tmp_path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["flow/u"] = np.random.default_rng(0).normal(size=(30, 8, 9))
        file["flow/time"], file["flow/y"] = np.arange(30) * 0.1, np.arange(8.0)
        file["flow/x"] = np.arange(9.0)
        file["flow/time"].attrs["note"] = "seconds"
        file["probe_temps"] = np.arange(5)
    data = r2no.data.open(tmp_path / "a.h5")
    assert (data.grid, data.frames) == ((8, 9), (30,))
    assert data.time_step == pytest.approx(0.1)


def test_lost_frames_are_not_shared_ones() -> None:
    values = np.random.default_rng(0).normal(size=(2, 20, 8, 9, 1)).astype("f4")
    values[:, 7] = np.nan
    left, right = (ArrayWindows([torch.from_numpy(one)], 3, 3, mask="nan") for one in values)
    assert shared_frames(left, right) == 0


def test_windows_of_files_travel_to_other_processes(tmp_path) -> None:
    for kind in ("nc", "zarr", "h5-plain"):
        windows = r2no.data.open(write(data_set(), tmp_path, kind)).windows(4, 3)
        again = pickle.loads(pickle.dumps(windows))
        assert torch.equal(again[3].target, windows[3].target)


def test_windows_beyond_the_end_have_histories_and_masked_targets() -> None:
    data = data_set()
    windows = r2no.data.open(data).windows(4, 3, stride=3, beyond=True)
    starts = windows.origins[:, 1].tolist()
    assert starts == [*range(0, 27, 3), 26]
    plain = reference(data)
    for start, window in zip(starts, windows, strict=True):
        recorded = min(max(30 - start - 4, 0), 3)
        assert window.mask[:recorded].all()
        assert not window.mask[recorded:].any()
        assert torch.equal(window.history, torch.from_numpy(stacked(data)[start : start + 4]))
        if recorded == 3:
            assert torch.equal(window.target, plain[start].target)
    assert windows.fingerprint != r2no.data.open(data).windows(4, 3, stride=3).fingerprint


# splits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (3, (1, 1, 1)), (4, (2, 1, 1)), (5, (2, 2, 1)), (6, (3, 2, 1)), (8, (3, 4, 1)),
        (10, (4, 4, 2)), (12, (6, 4, 2)), (25, (15, 5, 5)),
    ],
)  # fmt: skip
def test_split_by_trajectory_keeps_trajectories_whole(count: int, expected) -> None:
    found = r2no.data.open([data_set(n) for n in range(count)]).split(4, 3)
    parts = (found.train, found.fit, found.test)
    assert tuple(len(part.origins[:, 0].unique()) for part in parts) == expected
    assert all(len(part) == 24 * n for part, n in zip(parts, expected, strict=True))
    assert f"fit {expected[1]} recording" in str(found)
    assert shared_frames(found.train, found.fit) == shared_frames(found.train, found.test) == 0


def test_given_shares_count_in_proportion() -> None:
    found = r2no.data.open([data_set(n) for n in range(10)]).split(4, 3, train=0.6)
    assert found.recordings == {"train": 6, "fit": 2, "test": 2}


def test_one_recording_gives_fit_enough_to_hold_out() -> None:
    """300 frames in windows of 20 + 20: the fit split must part into separated blocks."""
    data = r2no.data.open(np.zeros((300, 4, 4, 1)))
    fit = data.split(20, 20).fit
    blocks(fit.origins, horizon=20)
    assert len(data.split(20, 20).fit) > len(data.split(20, 20, fit=0.2).fit)
    long = r2no.data.open(np.zeros((3000, 4, 4, 1))).split(20, 20)
    assert len(long.train) > 2 * len(long.fit)


@pytest.mark.parametrize("count", [1, 4])
def test_windows_of_all_splits_know_their_places_in_the_data(count: int) -> None:
    data = r2no.data.open([data_set(n, time=60) for n in range(count)])
    whole = data.split(4, 3, stride=2, seed=1).whole
    assert len(whole.origins.unique(dim=0)) == len(whole)
    for number, (trajectory, start) in enumerate(whole.origins.tolist()):
        expected = data.recordings[trajectory].values[start : start + 4]
        assert torch.equal(whole[number].history, torch.from_numpy(expected))


def test_seed_draws_other_trajectories_and_is_repeatable() -> None:
    data = r2no.data.open([data_set(n) for n in range(6)])
    plain, drawn, again = (data.split(4, 3, seed=s).test.fingerprint for s in (None, 1, 1))
    assert drawn == again != plain


@pytest.mark.parametrize("frames", [27, 28, 40, 101])
@pytest.mark.parametrize("shares", [(0.6, 0.2, 0.2), (0.8, 0.1, 0.1), (1, 1, 1)])
def test_time_blocks_are_in_order_one_horizon_apart_and_share_no_frame(frames, shares) -> None:
    sizes = dict(zip(("train", "fit", "test"), shares, strict=True))
    data = r2no.data.open(data_set(time=frames))
    found = data.split(4, 3, **sizes)
    spans = []
    for part in (found.train, found.fit, found.test):
        values = part._trajectories[0]
        spans.append((values.frames.start, values.frames.stop))
        assert len(part) == len(values) - 6 >= 1
    assert spans[0][0] == 0
    assert spans[-1][1] == frames
    assert [b[0] - a[1] for a, b in itertools.pairwise(spans)] == [3, 3]
    assert shared_frames(found.train, found.fit) == 0
    assert shared_frames(found.fit, found.test) == 0


def test_two_trajectories_are_each_cut_in_time() -> None:
    found = r2no.data.open([data_set(0), data_set(1, time=40)]).split(4, 3)
    assert found.test.origins[:, 0].unique().tolist() == [0, 1]
    assert shared_frames(found.train, found.test) == 0


def test_too_short_data_are_named_with_what_is_needed() -> None:
    with pytest.raises(EmptySplitError, match=r"at least 27 frames .* has 26"):
        r2no.data.open(data_set(time=26)).split(4, 3)
    with pytest.raises(EmptySplitError, match="at least 3 trajectories, but there are 2"):
        r2no.data.open([data_set(0), data_set(1)]).split(4, 3, by="trajectory")
    with pytest.raises(EmptySplitError, match="gives 30 frames, but a window needs 40"):
        r2no.data.open(data_set()).windows(30, 10)
    with pytest.raises(ConfigError, match="positive"):
        r2no.data.open(data_set()).split(4, 3, fit=0)


def test_audit_finds_every_shared_frame() -> None:
    data = r2no.data.open([data_set(0), data_set(1)])
    left = data.windows(4, 3, trajectories=[0], frames=slice(0, 20))
    right = data.windows(4, 3, trajectories=[0], frames=slice(15, 30))
    assert shared_frames(left, right) == 5
    copy = ArrayWindows([stacked(data_set(0))], 4, 3)  # the same data under another name
    assert shared_frames(left, copy) == 20

    class Others:
        """The same windows without the shortcut for arrays."""

        def __init__(self, windows):
            self.fields, self.origins = windows.fields, windows.origins
            self.fingerprint, self._windows = windows.fingerprint, windows

        def __len__(self):
            return len(self._windows)

        def __getitem__(self, index):
            return self._windows[index]

    assert shared_frames(Others(left), right) == 5


# errors ------------------------------------------------------------------------------------------


def _irregular(name: str, values: list[float]) -> xr.Dataset:
    data = data_set()
    coordinate = data[name].values.copy()
    coordinate[: len(values)] = values
    return data.assign_coords({name: coordinate})


def _staggered() -> xr.Dataset:
    return data_set(names=("u",)).merge(data_set(names=("v",), x=9).rename(x="xv"))


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (data_set(), {"variables": ("U", "v")}, UnknownNameError, "'U'.*Did you mean 'u'"),
        (data_set(names=("vel_x",)), {"variables": ("velx",)}, UnknownNameError, "'vel_x'"),
        (data_set(), {"dims": {"time": "tme"}}, UnknownNameError, "Did you mean 'time'"),
        (data_set(), {"dims": {"when": "time"}}, ConfigError, "'when'"),
        (data_set(), {"mask": "vald"}, UnknownNameError, "`mask` names 'vald'"),
        (_staggered(), {"dims": {"width": "x"}, "variables": ("u", "v")}, DataError, "'xv'"),
        (_irregular("time", [0, 0.5, 0.4]), {}, IrregularGridError, "must grow.*position 1"),
        (_irregular("time", [0, 0.9]), {}, IrregularGridError, "regular grids only.*reindex"),
        (_irregular("x", [0, 0.25]), {}, IrregularGridError, "equal steps.*interp"),
        (_irregular("x", [0.2, 0.2]), {}, IrregularGridError, "monotonic"),
        ([data_set(), data_set(x=9)], {}, GridMismatchError, "share one grid"),
        ([data_set(), data_set(names=("u", "w"))], {}, DataError, "same channels"),
        (
            [data_set(), data_set().assign_coords(time=np.arange(30.0))],
            {},
            DataError,
            "same time step",
        ),
        (
            [data_set(), data_set().assign_coords(x=np.arange(8) * 0.2 + 1)],
            {},
            GridMismatchError,
            "Coordinate 'x' differs",
        ),
        (data_set().rename(y="lon"), {}, DataError, "both look like width"),
        (data_set().isel(time=0, drop=True), {}, DataError, "needs a time"),
        (data_set(), {"time_step": 0.1}, ConfigError, "without coordinates"),
        (np.zeros((5, 4)), {}, ShapeError, "`axes`"),
        (np.zeros((5, 4, 3)), {"axes": ("time", "x")}, ShapeError, "`axes` must name the 3"),
        (np.zeros((5, 4, 3)), {"variables": ("u",)}, ShapeError, "name the 3 channels"),
        ({"u": np.zeros((3, 9, 9, 9))}, {}, DataError, "Name them with `axes`"),
        ({"u": np.zeros((9, 4, 5)), "x": np.zeros(7)}, {}, DataError, "coordinate 'x'"),
        ("no/such/file.nc", {}, DataError, "no file that matches"),
        ([], {}, EmptySplitError, "empty"),
        (3, {}, ConfigError, "got int"),
    ],
)
def test_wrong_data_get_a_named_error_with_the_fix(
    source, options, error: type[R2NOError], message: str
) -> None:
    with pytest.raises(error, match=message):
        r2no.data.open(source, **options)


def test_variables_on_different_grids_are_refused() -> None:
    data = xr.Dataset(
        {
            "u": (("time", "y", "x"), np.zeros((9, 4, 5))),
            "v": (("time", "lat", "lon"), np.zeros((9, 4, 6))),
        }
    )
    for options in ({}, {"variables": ("u", "v")}):
        with pytest.raises(GridMismatchError, match="must share one grid"):
            r2no.data.open(data, **options)
    assert r2no.data.open(data, variables=("v",)).grid == (4, 6)


def test_damaged_and_unknown_files_are_named(tmp_path) -> None:
    for name in ("a.nc", "a.h5", "a.npz", "a.npy", "a.txt"):
        (tmp_path / name).write_bytes(b"not data at all")
        with pytest.raises(DataError, match=name):
            r2no.data.open(tmp_path / name)


# streaming ---------------------------------------------------------------------------------------


def test_data_larger_than_memory_are_read_in_slices() -> None:
    virtual = Virtual((500_000, 64, 128, 2))  # 32 GB
    data = r2no.data.open(virtual, variables=("u", "v"), mask="nan")
    assert data.nbytes > 30e9
    with memory_for_no_more_than(256):
        windows = data.windows(4, 4, stride=4)
        last = windows[len(windows) - 1]
    expected = virtual[
        tuple(slice(n, m) for n, m in ((499_996, 500_000), (0, 64), (0, 128), (0, 2)))
    ]
    assert torch.equal(last.target, torch.from_numpy(expected))
    assert "not counted" in str(data)
    assert virtual.largest < 100e6


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files_are_mapped_where_they_can_be(save, tmp_path) -> None:
    data = data_set()
    arrays = {name: values.values for name, values in data.variables.items()}
    arrays["u"] = np.asfortranarray(arrays["u"])
    save(tmp_path / "a.npz", Re=np.float32(3), **arrays)
    found = r2no.data.open(tmp_path / "a.npz", conditioning=("Re",))
    mapped = isinstance(found.recordings[0].values.parts[0].variable.data, np.memmap)
    assert mapped == (save is np.savez)
    window = found.windows(4, 3)[5]
    assert torch.equal(window.target, torch.from_numpy(stacked(data)[9:12]))
    assert (window.history[..., 2] == 3).all()


def test_loading_into_memory_changes_nothing_but_speed(tmp_path) -> None:
    path = tmp_path / "a.nc"
    gappy().to_netcdf(path)
    data = r2no.data.open(path, mask="valid")
    loaded = data.load()
    assert_same(loaded.windows(4, 3), data.windows(4, 3))
    path.unlink()
    assert loaded.windows(4, 3)[0].mask is not None


def test_single_level_is_no_dimension_of_the_grid() -> None:
    data = data_set()
    found = r2no.data.open(data.expand_dims(level=[850.0], height_class=1))
    assert_same(found.windows(4, 3), reference(data))


def test_missing_entry_of_a_mask_is_not_valid() -> None:
    data = gappy(hidden=0.0)
    expected = r2no.data.open(data, mask="valid")
    data["valid"] = data["valid"].astype(np.float32).where(data["valid"])  # 1 and NaN
    found = r2no.data.open(data, mask="valid", variables=("u", "v"))
    assert torch.equal(found.windows(4, 3)[2].mask, expected.windows(4, 3)[2].mask)
    assert found.missing == expected.missing


def test_messages_name_the_recording_of_the_data_not_its_place_in_the_split() -> None:
    data = xr.concat([data_set(seed) for seed in range(4)], "run")
    data["v"][2] = np.nan
    with pytest.raises(NonFiniteError, match=r"'v'\) of trajectory `.*\[run=2\]` is measured"):
        r2no.data.open(data).split(4, 3, train=0.4, fit=0.3, test=0.3)
    data["v"][2] = 0.0
    data["v"][3, 20, 1, 1] = np.nan
    broken = r2no.data.open(data, mask=None)
    with pytest.raises(NonFiniteError, match=r"\[run=3\]`, used from frame 15 on, .* at frame 5"):
        broken.windows(4, 3, trajectories=[3], frames=slice(15, 30))
