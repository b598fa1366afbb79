"""Data files that declare what they do not hold, lead elsewhere, or would run code."""

import os
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from validation.attacks import hostile_makers as make

import r2no
from r2no.data.files import check_file, reading_file
from r2no.data.recordings import look_for_gaps
from r2no.data.window import Fields
from r2no.errors import DataError, FileDamagedError, R2NOError
from r2no.operators.forecast_reading import Wanted, open_forecasts

FIELD = ("time", "y", "x")
SPARSE = "allow_sparse"
FIELDS = Fields((3, 3), 2, 2, ("u",), (0,))
FILES = {
    "hdf5 field": (make.hdf5("x.h5", make.giant_field), SPARSE),
    "hdf5 coordinate": (make.hdf5("x.h5", make.giant_coordinate), SPARSE),
    "hdf5 chunk": (make.hdf5("x.h5", make.giant_chunk_of_little), SPARSE),
    "external storage": (make.hdf5("x.h5", make.external_storage), "lie in other files"),
    "external link": (make.hdf5("x.h5", make.external_link), "link to another file"),
    "virtual": (make.hdf5("x.h5", make.virtual), "lie in other files"),
    "deep groups": (make.hdf5("x.h5", make.deep_groups), "nested deeper"),
    "nc field": (make.netcdf("x.nc", {"time": 10**8, "y": 64, "x": 64}, u=FIELD), SPARSE),
    "nc coordinate": (
        make.netcdf("x.nc", {"time": 10**9, "y": 4, "x": 4}, u=FIELD, time=("time",)),
        SPARSE,
    ),
    "classic": (make.classic_giant, SPARSE),
    "nc external storage": (make.hdf5("x.nc", make.external_storage), "lie in other files"),
    "nc external link": (make.hdf5("x.nc", make.external_link), "link to another file"),
    "nc soft links": (make.hdf5("x.nc", make.soft_loop), "NetCDF does not have"),
    "nc cycle": (make.hdf5("x.nc", make.group_cycle), "linked to twice"),
    "npy": (make.npy((10**8, 64, 64, 2)), "declares shape"),
    "npy overflow": (make.npy((2**40, 2**40, 4, 4)), "declares shape"),
    "npy negative": (make.npy((-4, -4, 4, 4)), "declares shape"),
    "npy objects": (make.npy_of_objects, "Python objects"),
    "npy npz": (make.npy_that_is_npz, "Could not read"),
    "npz objects": (make.npz_of_objects, "Python objects"),
    "npz lying": (make.npz_with_lying_header, "declares shape"),
    "npz bomb": (make.npz_bomb, SPARSE),
    "zarr time": (make.zarr(time=((10**9,), (10**9,), ("time",))), SPARSE),
    "zarr chunks": (make.zarr(time=((10**5,), (1,), ("time",))), "100001 chunks"),
    "zarr 3": (make.zarr3, SPARSE),
    "zarr pickle": (make.zarr(make.pickled_chunk), "codec 'pickle'"),
    "zarr codec": (make.zarr(make.edit(compressor={"id": "run_me"})), "codec 'run_me'"),
    "zarr link": (make.zarr(make.link_outside), "outside the store"),
    "zarr linked folder": (make.zarr(make.linked_folder), "outside the store"),
    "zarr pipe": (make.zarr(make.chunk_that_is_a_pipe), "a pipe"),
    "zarr deep": (make.zarr(make.deep_attributes), "nested deeper"),
    "zarr shape": (make.zarr(make.edit(shape="many")), "does not describe an array"),
    "pipe npy": (make.pipe("x.npy"), "a pipe"),
    "pipe nc": (make.pipe("x.nc"), "a pipe"),
    "device": (make.device("x.h5"), "a device"),
    "folder": (make.folder_named("x.nc"), "a folder"),
}


@pytest.mark.parametrize("name", FILES)
def test_hostile_data_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("R2NO_CANARY", str(tmp_path / "canary"))
    maker, reason = FILES[name]
    path = maker(tmp_path)
    with pytest.raises((DataError, FileDamagedError), match=reason):
        r2no.data.open(path)
    with pytest.raises((DataError, FileDamagedError), match=reason):
        open_forecasts(path, Wanted(("u",), FIELDS))
    assert not (tmp_path / "canary").exists()


def test_sparse_files_open_by_consent(tmp_path: Path) -> None:
    path = make.hdf5("x.h5", make.giant_field)(tmp_path)
    data = r2no.data.open(path, allow_sparse=True)
    assert data.frames == (10**8,)
    missing, counted = look_for_gaps(data.recordings)
    assert missing == {"u": 0.0}
    assert 0 < counted < 10**6
    store = make.zarr3(tmp_path)
    check_file(store, "zarr", allow_sparse=True)


def test_harmless_links_and_masks_open(tmp_path: Path) -> None:
    """Soft links are not followed; one packed value for all is usual in masks."""
    assert r2no.data.open(make.hdf5("loop.h5", make.soft_loop)(tmp_path)).channels == ("u",)
    assert r2no.data.open(make.hdf5("cycle.h5", make.group_cycle)(tmp_path)).channels == ("u",)
    with h5py.File(tmp_path / "mask.h5", "w") as file:
        field = np.random.default_rng(0).standard_normal((300, 64, 64)).astype("f4")
        file["u"] = field
        file.create_dataset("flags", data=np.ones((300, 64, 64), "i8"), compression=9)
    assert r2no.data.open(tmp_path / "mask.h5", variables=["u"]).frames == (300,)


def test_constant_data_compress_as_they_like(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", u=np.zeros((100, 32, 32), "f4"))
    assert r2no.data.open(tmp_path / "x.npz").grid == (32, 32)
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        for dim, size in zip(FIELD, (100, 32, 32), strict=True):
            file.createDimension(dim, size)
        file.createVariable("u", "f4", FIELD, zlib=True)[:] = 0
    assert r2no.data.open(tmp_path / "x.nc").grid == (32, 32)


@pytest.mark.parametrize("version", [2, 3])
def test_usual_stores_open(version: int, tmp_path: Path) -> None:
    data = xr.Dataset(
        {"u": (("time", "y", "x", "channel"), np.random.default_rng(0).random((6, 5, 4, 2)))},
        {"time": np.arange(6.0)},
        {"note": float("nan")},
    )
    if version == 2:  # has no settled form in the other
        data = data.assign_coords(channel=["u", "v"])
    data.to_zarr(tmp_path / "x.zarr", zarr_format=version, consolidated=False)
    found = r2no.data.open(tmp_path / "x.zarr")
    assert found.channels == (("u", "v") if version == 2 else ("0", "1"))
    np.testing.assert_array_equal(found.recordings[0].values[:], data.u)


def test_damaged_chunks_are_named(tmp_path: Path) -> None:
    data = r2no.data.open(make.zarr(make.broken_chunk)(tmp_path))
    with pytest.raises(DataError, match="Could not read frames"):
        _ = data.missing


def test_very_many_tiny_trajectories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="100000 trajectories along 'run'"):
        r2no.data.open(make.hdf5("x.h5", make.many_trajectories)(tmp_path))


def test_gaps_are_counted_in_a_sample_of_large_data(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.ones((64, 16, 16), "f4")
    values[::2] = np.nan
    data = r2no.data.open({"u": values})
    assert look_for_gaps(data.recordings) == ({"u": 0.5}, 64)
    frame = 16 * 16 * 4
    monkeypatch.setattr("r2no.data.recordings._BUDGET", 7 * frame)
    missing, counted = look_for_gaps(data.recordings)
    assert missing is not None
    assert counted == 7
    monkeypatch.setattr("r2no.data.recordings._BUDGET", frame - 1)
    assert look_for_gaps(data.recordings) == (None, 0)


def test_chunks_are_paid_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        values = np.random.default_rng(0).random((64, 16, 16))
        file.create_dataset("u", data=values, chunks=(32, 4, 4), compression=1)
    data = r2no.data.open(tmp_path / "x.h5")
    monkeypatch.setattr("r2no.data.recordings._BUDGET", 40 * 16 * 16 * 8)
    assert look_for_gaps(data.recordings) == ({"u": 0.0}, 1)


@pytest.mark.parametrize("name", ["x.nc", "x.h5", "x.npy", "x.npz", "x.zarr"])
def test_nonsense_under_any_name_is_refused(name: str, tmp_path: Path) -> None:
    contents = (b"", b"\0" * 100, b"CDF\x01" + b"\xff" * 60, b"\x93NUMPY\x01\0\xff\xff{")
    for content in (*contents, b"\x89HDF\r\n\x1a\n" + b"\xff" * 200, b"PK\3\4" + b"\xff" * 60):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(R2NOError):
            r2no.data.open(tmp_path / name)
    os.remove(tmp_path / name)
    with pytest.raises(R2NOError):
        r2no.data.open(tmp_path / name)


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path):
    with (
        pytest.raises(DataError, match="no permission") as caught,
        reading_file(tmp_path / "piv.nc", "netcdf"),
    ):
        raise PermissionError(13, "Permission denied")
    assert "damaged" not in str(caught.value)
