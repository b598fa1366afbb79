"""Files that try to hang, to fill the memory, to read elsewhere or to run code; a maker for each.

A maker gets an empty folder and returns the path to give to r2no. Files are small: what they cost
lies in what they declare.
"""

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict

import h5py
import numpy as np
import torch

GIANT = 10**8
MANY_BYTES = 21 * 10**9


class Canary:
    """Unpickled as it is, it makes the file that the environment names."""

    def __reduce__(self):
        return (os.mkdir, (os.environ["R2NO_CANARY"],))


def small_field(frames=8):
    return np.random.default_rng(0).standard_normal((frames, 6, 5)).astype("f4")


# --- HDF5 and NetCDF -------------------------------------------------------------------------


def hdf5(name, fill):
    def make(folder):
        path = folder / name
        with h5py.File(path, "w") as file:
            fill(file, folder)
        return path

    return make


def giant_field(file, _):
    file.create_dataset("u", (GIANT, 64, 64), "f4", chunks=(1, 64, 64))


def giant_coordinate(file, _):
    file["u"] = small_field()
    file.create_dataset("time", (10**9,), "f8", chunks=(2**20,))


def giant_packed_chunk(file, _):
    data = file.create_dataset("u", (64, 2048, 1024), "f4", chunks=(64, 2048, 1024), compression=9)
    data[:] = 0


def giant_chunk_of_little(file, _):
    file.create_dataset("u", (8, 6, 5), "f4", chunks=(8, 8192, 8192), maxshape=(None,) * 3)


def external_storage(file, _):
    place = [("/etc/passwd", 0, 480)]
    file.create_dataset("u", (6, 5, 4), "f4", external=place)


def external_link(file, _):
    file["v"] = small_field()
    file["u"] = h5py.ExternalLink("/etc/hostname.h5", "/u")


def virtual(file, folder):
    with h5py.File(folder / "other.h5", "w") as other:
        other["u"] = small_field()
    layout = h5py.VirtualLayout((8, 6, 5), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "u", (8, 6, 5))
    file.create_virtual_dataset("u", layout)


def soft_loop(file, _):
    file["u"] = small_field()
    file["a"] = h5py.SoftLink("/b")
    file["b"] = h5py.SoftLink("/a")


def group_cycle(file, _):
    file["u"] = small_field()
    inner = file.create_group("g")
    inner["back"] = file["/"]


def deep_groups(file, _):
    group = file
    for _ in range(500):
        group = group.create_group("g")
    group["u"] = small_field()


def many_groups(file, _):
    file["u"] = small_field()
    for number in range(25_000):
        file.create_group(f"g{number}")


def many_trajectories(file, _):
    file["u"] = np.zeros((100_000, 3, 2, 2), "f4")
    for axis, name in enumerate(("run", "time", "y", "x")):
        file["u"].dims[axis].label = name


def netcdf(name, sizes, **variables):
    """A NetCDF file with dimensions but no values, but for those given."""

    def make(folder):
        import netCDF4

        path = folder / name
        kind = "NETCDF4" if name.endswith(".nc") else "NETCDF3_64BIT_OFFSET"
        with netCDF4.Dataset(path, "w", format=kind) as file:
            file.set_fill_off()
            for dim, size in sizes.items():
                file.createDimension(dim, size)
            for variable, dims in variables.items():
                options = {"chunksizes": [1] * len(dims)} if kind == "NETCDF4" else {}
                file.createVariable(variable, "f4" if len(dims) > 1 else "f8", dims, **options)
        return path

    return make


def classic_giant(folder):
    """The header of a NetCDF 3 file with a dimension edited to a hundred million."""
    path = netcdf("x.cdf", {"time": 7777, "y": 64, "x": 64}, u=("time", "y", "x"))(folder)
    content = path.read_bytes()[:4096].replace(struct.pack(">i", 7777), struct.pack(">i", GIANT))
    path.write_bytes(content)
    return path


# --- NumPy ----------------------------------------------------------------------------------


def npy_header(shape, dtype="<f4"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def npy(shape, dtype="<f4", content=b"\0" * 1000):
    def make(folder):
        (folder / "x.npy").write_bytes(npy_header(shape, dtype) + content)
        return folder / "x.npy"

    return make


def npy_of_objects(folder):
    np.save(folder / "x.npy", np.array([Canary(), 1], object), allow_pickle=True)
    return folder / "x.npy"


def npz_of_objects(folder):
    np.savez(folder / "x.npz", u=small_field(), v=np.array([Canary(), 1], object))
    return folder / "x.npz"


def npy_that_is_npz(folder):
    np.savez(folder / "x.npz", u=small_field())
    return (folder / "x.npz").rename(folder / "x.npy")


def npz_with_lying_header(folder):
    with zipfile.ZipFile(folder / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("u.npy", npy_header((GIANT, 64, 64)) + b"\0" * 1000)
    return folder / "x.npz"


def npz_bomb(folder):
    """21 GB of zeros that are really there, a thousand times smaller."""
    head = npy_header((MANY_BYTES // 4096 // 4, 64, 64))
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b"\0" * 2**24) + packer.flush(zlib.Z_FULL_FLUSH)
    times = MANY_BYTES // 2**24 + 1
    write_zip(folder / "x.npz", "u.npy", start + block * times, len(head) + times * 2**24)
    return folder / "x.npz"


def write_zip(path, name, packed, size):
    """A deflated archive of one member with sizes of our choice (ZIP64)."""
    extra = struct.pack("<HHQQ", 1, 16, size, len(packed))
    full = 0xFFFFFFFF
    common = struct.pack("<HHHHIIIHH", 0, 8, 0, 0, 0, full, full, len(name), len(extra))
    local = b"PK\3\4" + struct.pack("<H", 45) + common + name.encode() + extra
    extra = struct.pack("<HHQQ", 1, 16, size, len(packed))
    entry = b"PK\1\2" + struct.pack("<HH", 45, 45) + common + struct.pack("<HHHII", 0, 0, 0, 0, 0)
    entry += name.encode() + extra
    place = len(local) + len(packed)
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), place, 0)
    path.write_bytes(local + packed + entry + end)


# --- Zarr -----------------------------------------------------------------------------------


def zarr(change=None, **arrays):
    """A store of format 2 with ``u`` and the given arrays' metadata, none of their chunks."""

    def make(folder):
        store = folder / "x.zarr"
        store.mkdir()
        (store / ".zgroup").write_text('{"zarr_format": 2}')
        _zarr_array(store / "u", (8, 6, 5), (8, 6, 5), "<f4", ("time", "y", "x"))
        (store / "u" / "0.0.0").write_bytes(small_field().tobytes())
        for name, (shape, chunks, dims) in arrays.items():
            _zarr_array(store / name, shape, chunks, "<f8", dims)
        if change is not None:
            change(store)
        return store

    return make


def _zarr_array(folder, shape, chunks, dtype, dims):
    folder.mkdir(exist_ok=True)
    about = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "order": "C"}
    about |= {"compressor": None, "filters": None, "fill_value": 0}
    (folder / ".zarray").write_text(json.dumps(about))
    (folder / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": dims}))


def edit(**entries):
    """Change the metadata of the store's field."""

    def change(store):
        path = store / "u" / ".zarray"
        path.write_text(json.dumps(json.loads(path.read_text()) | entries))

    return change


def pickled_chunk(store):
    edit(dtype="|O", filters=[{"id": "vlen-utf8"}, {"id": "pickle"}])(store)
    (store / "u" / "0.0.0").write_bytes(pickle.dumps([Canary(), [8, 6, 5], "|O"]))


def link_outside(store):
    (store / "u" / "0.0.0").unlink()
    (store / "u" / "0.0.0").symlink_to("/etc/passwd")


def linked_folder(store):
    (store / "v").symlink_to("/etc")


def chunk_that_is_a_pipe(store):
    (store / "u" / "0.0.0").unlink()
    os.mkfifo(store / "u" / "0.0.0")


def deep_attributes(store):
    (store / "u" / ".zattrs").write_text("[" * 100_000)


def broken_chunk(store):
    edit(compressor={"id": "zlib", "level": 1})(store)


def zarr3(folder):
    store = folder / "x.zarr"
    store.mkdir()
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    for name, shape, dims in (
        ("u", [GIANT, 64, 64], ["time", "y", "x"]),
        ("time", [GIANT], ["time"]),
    ):
        (store / name).mkdir()
        grid = {"name": "regular", "configuration": {"chunk_shape": [1000, *shape[1:]]}}
        about = {"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "float32"}
        about |= {"chunk_grid": grid, "fill_value": 0.0, "dimension_names": dims, "attributes": {}}
        about |= {"chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]}
        (store / name / "zarr.json").write_text(json.dumps(about))
    return store


# --- files of weights -----------------------------------------------------------------------


def torch_file(content, *, legacy=False, name="x.pt"):
    def make(folder):
        value = content() if callable(content) else content
        torch.save(value, folder / name, _use_new_zipfile_serialization=not legacy)
        return folder / name

    return make


def expanded():
    return {"w": torch.zeros(1).expand(10**5, 10**5)}


def overlapping():
    return {"w": torch.zeros(2 * 10**4).as_strided((10**4, 10**4), (1, 1))}


def laughs():
    value = [0.5] * 10
    for _ in range(40):
        value = [value, value]
    return {"model_state_dict": {"w": torch.zeros(3)}, "train_losses": value}


def nested():
    value = []
    for _ in range(200):
        value = [value]
    return {"model_state_dict": {"w": torch.zeros(3)}, "train_losses": value}


def with_pickle(pickled, records=()):
    """A file of weights with a pickle of our own."""

    def make(folder):
        with zipfile.ZipFile(folder / "x.pt", "w") as archive:
            archive.writestr("x/data.pkl", pickled)
            archive.writestr("x/version", "3\n")
            archive.writestr("x/byteorder", "little")
            for name, content in records:
                archive.writestr(name, content)
        return folder / "x.pt"

    return make


#: {"w": bytearray(40 billion)}
HUNGRY = (
    b"\x80\x02}X\x01\0\0\0wcbuiltins\nbytearray\n\x8a\x06"
    + (40 * 10**9).to_bytes(6, "little")
    + b"\x85Rs."
)


def lying_storage(folder):
    """A tensor whose storage is said to be larger than its record."""
    buffer = io.BytesIO()
    torch.save(OrderedDict(w=torch.zeros(1000)), buffer)
    with zipfile.ZipFile(buffer) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    for name, content in records.items():
        if name.endswith("data.pkl"):
            records[name] = content.replace(struct.pack("<H", 1000), struct.pack("<H", 60_000))
    with zipfile.ZipFile(folder / "x.pt", "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return folder / "x.pt"


def packed_weights(folder):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(b"\0" * 2**24) + packer.flush(zlib.Z_FULL_FLUSH)
    write_zip(folder / "x.pt", "x/data.pkl", block * 1280, 1280 * 2**24)
    return folder / "x.pt"


def safetensors(header, length=None):
    def make(folder):
        text = header.encode()
        size = len(text) if length is None else length
        (folder / "x.safetensors").write_bytes(struct.pack("<Q", size) + text)
        return folder / "x.safetensors"

    return make


def bare_pickle(name):
    def make(folder):
        (folder / name).write_bytes(pickle.dumps(Canary(), 2))
        return folder / name

    return make


# --- text, and what is no file ----------------------------------------------------------------


def text(name, content):
    def make(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
        return folder / name

    return make


def yaml_of_python(folder):
    canary = os.environ["R2NO_CANARY"]
    (folder / "x.yaml").write_text(f"data: !!python/object/apply:os.mkdir ['{canary}']\n")
    return folder / "x.yaml"


def manifest(content):
    def make(folder):
        text("x.r2no/manifest.json", content)(folder)
        return folder / "x.r2no"

    return make


def pipe(name):
    def make(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        os.mkfifo(folder / name)
        return folder / name

    return make


def piped_manifest(folder):
    return pipe("x.r2no/manifest.json")(folder).parent


def device(name):
    def make(folder):
        (folder / name).symlink_to("/dev/zero")
        return folder / name

    return make


def folder_named(name):
    def make(folder):
        (folder / name).mkdir()
        return folder / name

    return make


def link_loop(name):
    def make(folder):
        (folder / name).symlink_to(folder / name)
        return folder / name

    return make
