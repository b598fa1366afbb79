"""Files of PIV programs open as they are, or with the one option that their error names."""

import pickle

import numpy as np
import pytest
import torch
import xarray as xr
from tests.support import piv

import r2no.data
from r2no.errors import ConfigError, DataError, GridMismatchError, UnknownNameError

ARRAYS = {"plain": dict, "frames last": piv.last, "grids per frame": piv.per_frame}


def assert_is_the_flow(data: r2no.data.Measurements, seed: int = 0) -> None:
    """Values on their grid, in the order time, y, x, whatever the file's order was."""
    assert data.grid == piv.SHAPE[1:]
    assert [axis.step for axis in data.space] == pytest.approx(piv.SPACING)
    assert [axis.falls for axis in data.space] == [True, False]
    np.testing.assert_allclose(data.space[1].variable.values, piv.X)
    np.testing.assert_allclose(data.recordings[0].values[:], piv.flow(seed))


@pytest.mark.parametrize("layout", ARRAYS)
@pytest.mark.parametrize("kind", ["npz", "h5", "mat5", "mat73", "mapping"])
def test_meshgrids_beside_the_fields_are_coordinates(kind: str, layout: str, tmp_path) -> None:
    found = ARRAYS[layout](piv.arrays())
    source = {
        "npz": lambda: piv.write_npz(tmp_path / "a.npz", found),
        "h5": lambda: piv.write_hdf5(tmp_path / "a.h5", found),
        "mat5": lambda: piv.write_mat5(tmp_path / "a.mat", found),
        "mat73": lambda: piv.write_mat73(tmp_path / "a.mat", found),
        "mapping": lambda: found,
    }[kind]()
    data = r2no.data.open(source)
    assert data.channels == ("u", "v")
    assert data.units == ("mm/s", "mm/s")
    assert_is_the_flow(data)
    assert "typevector" in str(data)


@pytest.mark.parametrize("write", [piv.write_mat5, piv.write_mat73])
def test_cells_of_frames_open_with_the_filtered_fields(write, tmp_path) -> None:
    path = write(tmp_path / "PIVlab.mat", piv.cells(piv.arrays()))
    data = r2no.data.open(path, mask={"variable": "typevector_filtered", "valid": [1]})
    assert data.channels == ("u_filtered", "v_filtered")
    assert data.units == ("mm/s", "mm/s")
    assert_is_the_flow(data)
    assert "u_original: u_filtered is taken" in str(data)
    window = data.windows(4, 3)[2]
    assert torch.equal(window.mask[..., 0], torch.from_numpy(piv.typevector()[6:9] == 1))
    again = pickle.loads(pickle.dumps(data.windows(4, 3)))
    assert torch.equal(again[2].target, window.target)


@pytest.mark.parametrize("write", [piv.write_mat5, piv.write_mat73])
def test_empty_cell_is_a_lost_frame(write, tmp_path) -> None:
    content = piv.cells(piv.arrays())
    for name in ("u_filtered", "v_filtered"):
        content[name][5] = np.zeros((0, 0))
    values = r2no.data.open(write(tmp_path / "a.mat", content)).recordings[0].values[4:7]
    assert np.isnan(values[1]).all()
    np.testing.assert_allclose(values[[0, 2]], piv.flow()[[4, 6]])
    content["u_filtered"][5] = np.zeros((3, 4))
    with pytest.raises(GridMismatchError, match="at frame 5"):
        r2no.data.open(write(tmp_path / "b.mat", content))


@pytest.mark.parametrize("write", [piv.write_mat5, piv.write_mat73])
def test_matlab_arrays_without_a_grid_need_their_axes(write, tmp_path) -> None:
    found = {name: piv.last(piv.arrays())[name] for name in ("u", "v")}
    path = write(tmp_path / "a.mat", found)
    with pytest.raises(DataError, match=r'Name them with `axes`, as in axes=\("y", "x", "time"\)'):
        r2no.data.open(path)
    data = r2no.data.open(path, axes=("y", "x", "time"))
    np.testing.assert_allclose(data.recordings[0].values[:], piv.flow())


def test_matlab_file_without_scipy_names_the_extra(tmp_path, monkeypatch) -> None:
    path = piv.write_mat5(tmp_path / "a.mat", piv.arrays())
    monkeypatch.setitem(__import__("sys").modules, "scipy.io", None)
    with pytest.raises(DataError, match=r"r2no\[mat\]"):
        r2no.data.open(path)


def test_damaged_matlab_file_is_named(tmp_path) -> None:
    path = piv.write_mat5(tmp_path / "a.mat", piv.arrays())
    whole = path.read_bytes()
    for content in (b"not data", whole[: len(whole) // 2], b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.mat"):
            r2no.data.open(path)


def test_grid_vectors_beside_frames_last_fields_find_their_axes() -> None:
    found = piv.last(piv.arrays())
    data = r2no.data.open({**found, "x": piv.X, "y": piv.Y}, time_step=piv.TIME_STEP)
    assert_is_the_flow(data)
    assert data.time_step == piv.TIME_STEP


def test_square_grid_with_both_vectors_is_read_as_frames_of_it() -> None:
    square = np.random.default_rng(0).normal(size=(7, 6, 6))
    data = r2no.data.open({"u": square, "x": np.arange(6.0), "y": 2 * np.arange(6.0)})
    assert [axis.step for axis in data.space] == [2, 1]
    np.testing.assert_array_equal(data.recordings[0].values[:][..., 0], square)


def test_transposed_meshgrids_follow_what_they_vary_along() -> None:
    x, y = np.meshgrid(piv.X, piv.Y, indexing="ij")
    found = {"x": x, "y": y, "u": piv.flow()[..., 0].transpose(0, 2, 1)}
    data = r2no.data.open(found)
    np.testing.assert_allclose(data.recordings[0].values[:][..., 0], piv.flow()[..., 0])
    assert [axis.step for axis in data.space] == pytest.approx(piv.SPACING)


def test_meshgrids_of_a_netcdf_file_name_its_dimensions(tmp_path) -> None:
    found = piv.arrays()
    variables = {name: (("j", "i"), found[name], {"units": "mm"}) for name in ("x", "y")}
    variables |= {name: (("frame", "j", "i"), found[name]) for name in ("u", "v")}
    xr.Dataset(variables).to_netcdf(tmp_path / "a.nc")
    data = r2no.data.open(tmp_path / "a.nc")
    assert data.channels == ("u", "v")
    assert_is_the_flow(data)
    assert data.space[0].units == "mm"


def test_arrays_of_other_shapes_are_left_out_by_name() -> None:
    found = {**piv.arrays(), "calibration": np.eye(3), "wall": np.ones(piv.SHAPE[1:])}
    data = r2no.data.open(found)
    assert data.channels == ("u", "v")
    assert data.recordings[0].ignored["calibration"].startswith("of another shape")
    assert "wall" in data.recordings[0].ignored


def test_fields_on_different_grids_are_named() -> None:
    arrays = {"u": np.zeros((5, 4, 4)), "v": np.zeros((5, 3, 4))}
    with pytest.raises(GridMismatchError, match=r"'y' 'u' has 4 and 'v' has 3 .*`variables`"):
        r2no.data.open(arrays)
    assert r2no.data.open(arrays, variables=("v",)).grid == (3, 4)


# flags -------------------------------------------------------------------------------------------


def test_flags_choose_values_and_are_joined_with_nan() -> None:
    found = piv.arrays()
    found["u"] = found["u"].copy()
    found["u"][7, 5, 6] = np.nan
    data = r2no.data.open(found, mask={"variable": "typevector", "valid": [1]})
    good = piv.typevector() == 1
    assert good[7, 5, 6]
    expected = np.stack([good & np.isfinite(found["u"]), good], -1)
    window = data.windows(4, 4)[4]
    assert torch.equal(window.mask, torch.from_numpy(expected[8:12]))
    assert torch.equal(data.windows(3, 2)[4].mask, torch.from_numpy(expected[7:9]))
    assert data.missing == pytest.approx(tuple(1 - expected.mean((0, 1, 2))))
    assert "'typevector' is not 1" in str(data)
    both = r2no.data.open(found, mask={"variable": "typevector", "valid": (1, 2)})
    assert both.missing[1] == pytest.approx((piv.typevector() == 0).mean())
    only_v = data.select(["v"])
    assert only_v.missing == pytest.approx((1 - good.mean(),))
    assert torch.equal(only_v.load().windows(3, 2)[4].mask[..., 0], torch.from_numpy(good[7:9]))


def test_flags_that_are_not_true_or_false_need_their_values_named() -> None:
    with pytest.raises(ConfigError, match=r"holds 0, 1, 2.*\"valid\": \[1\].*typevector=1"):
        r2no.data.open(piv.arrays(), mask="typevector")


def test_plain_mask_is_joined_with_nan_too() -> None:
    data = piv.davis()
    data["isValid"][:] = 1
    found = r2no.data.open(data, mask="isValid")
    window = found.windows(4, 3)[0]
    assert torch.equal(window.mask[..., 0], torch.from_numpy(data["Vx"].notnull().values[4:7]))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"variable": "typevector", "vaild": [1]}, "Did you mean 'valid'"),
        ({"valid": [1]}, "name its `variable`"),
        ({"variable": "typevector", "valid": []}, r"as in \[1\]"),
        ({"variable": "typevector", "valid": "1"}, r"as in \[1\]"),
    ],
)
def test_wrong_masks_are_named(mask, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        r2no.data.open(piv.arrays(), mask=mask)
    with pytest.raises(UnknownNameError, match="Did you mean 'typevector'"):
        r2no.data.open(piv.arrays(), mask={"variable": "typvector", "valid": [1]})


def test_quality_and_flags_are_no_channels_but_mentioned(tmp_path) -> None:
    for number, frames in enumerate((20, 24, 31, 18, 22, 27, 40, 19)):
        piv.davis(number, frames).to_netcdf(tmp_path / f"run{number}.nc")
    data = r2no.data.open(tmp_path)
    assert data.channels == ("Vx", "Vy")
    assert data.frames == (20, 24, 31, 18, 22, 27, 40, 19)
    assert "corr: a measure of quality" in str(data)
    assert "mask='isValid'" in str(data)
    assert r2no.data.open(tmp_path, variables=("Vx", "corr")).channels == ("Vx", "corr")


# folders -----------------------------------------------------------------------------------------


def single(number: int) -> dict[str, np.ndarray]:
    return {n: a[number] if a.ndim == 3 else a for n, a in piv.arrays().items()}


@pytest.mark.parametrize("kind", ["npz", "mat", "mat-cells", "nc", "nc-time"])
def test_files_of_one_frame_each_are_one_recording_in_natural_order(kind, tmp_path) -> None:
    for number in range(piv.SHAPE[0]):
        path = tmp_path / f"frame{number + 1}"  # frame10 sorts before frame2 as text
        if kind == "npz":
            piv.write_npz(path.with_suffix(".npz"), single(number))
        elif kind == "mat":
            piv.write_mat5(path.with_suffix(".mat"), single(number))
        elif kind == "mat-cells":
            one = {n: a[number : number + 1] if a.ndim == 3 else a for n, a in piv.arrays().items()}
            piv.write_mat73(path.with_suffix(".mat"), piv.cells(one))
        else:
            data = xr.Dataset(
                {n: (("y", "x"), single(number)[n]) for n in ("u", "v")},
                {"y": piv.Y, "x": piv.X, "time": piv.TIME_STEP * number},
            )
            if kind == "nc-time":
                data = data.expand_dims("time")
            data.to_netcdf(path.with_suffix(".nc"))
    for source in (tmp_path, str(tmp_path / "frame*"), sorted(tmp_path.iterdir())):
        data = r2no.data.open(source)
        assert data.frames == (piv.SHAPE[0],)
        assert_is_the_flow(data)
        if kind.startswith("nc"):
            assert data.time_step == pytest.approx(piv.TIME_STEP)
    again = pickle.loads(pickle.dumps(data.windows(4, 3)))
    assert torch.equal(again[3].history, data.windows(4, 3)[3].history)


def test_folder_of_folders_holds_one_recording_each(tmp_path) -> None:
    for run in range(2):
        (tmp_path / f"run{run}").mkdir()
        for number in range(5):
            piv.write_npz(tmp_path / f"run{run}" / f"{number}.npz", single(number + run))
    assert r2no.data.open(tmp_path).frames == (5, 5)
    assert r2no.data.open(str(tmp_path / "run*" / "*.npz")).frames == (5, 5)


def test_frames_that_differ_and_odd_folders_are_named(tmp_path) -> None:
    with pytest.raises(DataError, match="holds no data files"):
        r2no.data.open(tmp_path)
    piv.write_npz(tmp_path / "1.npz", single(1))
    lacking = {name: array for name, array in single(2).items() if name != "v"}
    piv.write_npz(tmp_path / "2.npz", lacking)
    with pytest.raises(DataError, match=r"2\.npz` lacks 'v'"):
        r2no.data.open(tmp_path)
    moved = {**single(2), "x": single(2)["x"] + 1}
    piv.write_npz(tmp_path / "2.npz", moved)
    with pytest.raises(GridMismatchError, match="share one grid"):
        r2no.data.open(tmp_path)
    piv.write_mat5(tmp_path / "2.mat", single(2))
    with pytest.raises(DataError, match=r"several kinds.*\.mat, \.npz"):
        r2no.data.open(tmp_path)


# units and steps ---------------------------------------------------------------------------------


def test_units_and_steps_can_be_given_where_data_have_none() -> None:
    bare = {name: piv.arrays()[name] for name in ("u", "v")}
    for units in ("mm/s", ["mm/s", "mm/s"], {"u": "mm/s", "v": "mm/s"}):
        data = r2no.data.open(bare, units=units, spacing=piv.SPACING, time_step=0.02)
        assert data.units == ("mm/s", "mm/s")
        assert data.windows(3, 2).fields.spacing == piv.SPACING
    assert r2no.data.open(bare, units={"v": "m/s"}).units == ("", "m/s")
    assert r2no.data.open(piv.arrays(), units="m/s").units == ("m/s", "m/s")  # a text may be wrong
    with pytest.raises(ConfigError, match=r"'Vx' of .* is in 'm/s', not 'mm/s'"):
        r2no.data.open(piv.davis(), units="mm/s")
    with pytest.raises(UnknownNameError, match="Did you mean 'u'"):
        r2no.data.open(bare, units={"U": "m/s"})
    with pytest.raises(ConfigError, match="one for each of the channels"):
        r2no.data.open(bare, units=["m/s"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variables": "uv"}, "`variables` must be a list of names"),
        ({"axes": "tyx"}, "`axes` must be a list of names"),
        ({"variables": []}, "at least one name"),
        ({"axes": ("time", "x", "x")}, "none twice"),
        ({"time_step": 0}, "`time_step` must be positive"),
        ({"time_step": float("nan")}, "`time_step` must be positive"),
        ({"spacing": (1, -1)}, "`spacing` must be positive"),
        ({"spacing": (1,)}, "one number for each of 2"),
    ],
)
def test_wrong_options_are_named(options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        r2no.data.open({"u": np.zeros((5, 4, 3))}, **options)


@pytest.mark.parametrize("channels", [[], "u", ["u", "u"]])
def test_empty_selection_is_named(channels) -> None:
    with pytest.raises(ConfigError, match="`channels` must name at least one"):
        r2no.data.open(piv.arrays()).select(channels)


def test_field_called_like_an_axis_is_a_field_and_is_not_read() -> None:
    """A water height over time and space is no meshgrid, however large."""
    values = np.random.default_rng(0).normal(size=(20, 6, 8))
    data = xr.Dataset({"height": (("time", "y", "x"), values)})
    assert r2no.data.open(data).channels == ("height",)
    assert r2no.data.open({"height": values, "u": values}).channels == ("height", "u")


def test_windows_the_other_way_round_do_not_agree() -> None:
    left = r2no.data.open(piv.davis()).windows(3, 2).fields
    right = r2no.data.open(piv.davis().isel(y=slice(None, None, -1))).windows(3, 2).fields
    assert left.agrees(left)
    assert not left.agrees(right)
