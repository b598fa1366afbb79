"""The two on-disk layouts: rows of an Arrow shard, and HDF5 files."""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from r2no.realpdebench.files.tiny.fields import Flame, Wake
from r2no.realpdebench.systems import COMBUSTION_FIELDS
from r2no.storage import write_json

Cell = tuple[pa.DataType, Any]  # Arrow type and value
Rows = dict[str, Cell]


def _array(values: Any, dtype: str) -> Cell:
    return pa.binary(), None if values is None else np.asarray(values, dtype).tobytes()


def _number(value: int | None) -> Cell:
    return pa.int32(), value


def _head(sim_id: str, arrays: dict[str, Any]) -> Rows:
    shape = next(iter(arrays.values())).shape
    row: Rows = {"sim_id": (pa.string(), sim_id)}
    row |= {key: _array(values, "<f4") for key, values in arrays.items()}
    return row | {f"shape_{axis}": _number(n) for axis, n in zip("thw", shape, strict=True)}


def wake_row(name: str, sim_id: str, kind: str, flow: Wake) -> Rows:
    """Columns of a fluid trajectory, in the released order."""
    row = _head(sim_id, {"u": flow.u, "v": flow.v})
    row["vo"] = _array(flow.vorticity if _has_vorticity(name) else None, "<f4")
    for key, grid in (("x", flow.x), ("y", flow.y)):
        row[key] = _array(grid, "<f8")
        row[f"{key}_shape_h"], row[f"{key}_shape_w"] = map(_number, grid.shape)
    timed = name != "fsi"
    row["t"] = _array(flow.t if timed else None, "<f8")
    row["t_shape"] = _number(len(flow.t) if timed else None)
    return row | ({"p": _array(flow.p, "<f4")} if kind == "numerical" else {})


def flame_row(sim_id: str, burn: Flame) -> Rows:
    """Columns of a combustion trajectory; measured ones carry no coordinates."""
    row = _head(sim_id, {"observed": burn.observed})
    simulated = burn.fields is not None
    for key, axis in (("x", burn.x), ("y", burn.y), ("t", burn.t)):
        row[key] = _array(axis if simulated else None, "<f8")
        row[f"{key}_shape"] = _number(len(axis) if simulated else None)
    if burn.fields is not None:
        row["numerical"] = _array(burn.fields, "<f4")
        row["numerical_channels"] = _number(burn.fields.shape[-1])
    return row


def write_shards(folder: Path, rows: Sequence[Rows], *, rows_per_shard: int) -> None:
    """Arrow streams of nearly equal length, one row per record batch, with their state files."""
    folder.mkdir(parents=True)
    types = {key: kind for key, (kind, _) in rows[0].items()}
    features = {key: {"dtype": str(kind), "_type": "Value"} for key, kind in types.items()}
    described = json.dumps({"info": {"features": features}})
    schema = pa.schema(list(types.items()), metadata={"huggingface": described})
    parts = np.array_split(np.arange(len(rows)), -(-len(rows) // rows_per_shard))
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        with pa.ipc.new_stream(str(folder / name), schema) as sink:
            for number in part:
                cells = [pa.array([value], kind) for kind, value in rows[number].values()]
                sink.write_batch(pa.record_batch(cells, schema=schema))
    write_json(folder / "state.json", _state(names))
    empty = dict.fromkeys(("citation", "description", "homepage", "license"), "")
    write_json(folder / "dataset_info.json", {**empty, "features": features})


def _state(names: Sequence[str]) -> dict[str, Any]:
    return {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0" * 16,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": "train",
    }


@contextmanager
def _hdf5(path: Path) -> Iterator[h5py.File]:
    """A file that is made in memory first: on a full disk the library can crash."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as archive:
        yield archive
    path.write_bytes(stream.getvalue())


def write_wake_file(path: Path, name: str, kind: str, flow: Wake) -> None:
    """HDF5 of a fluid trajectory, with the variations found among the systems."""
    dtype = np.float64 if name == "foil" else np.float32
    keys = ("u", "v") if kind == "real" else ("u", "v", "p")
    with _hdf5(path) as archive:
        measured = archive.create_group("measured_data")
        for key in keys:
            measured[key] = getattr(flow, key).astype(dtype)
        if _has_vorticity(name):
            (archive if name == "cylinder" else measured)["vo"] = flow.vorticity
        for key, grid in (("x", flow.x), ("y", flow.y)):  # fsi repeats the grid per frame
            archive[key] = np.repeat(grid[None], len(flow.t), 0) if name == "fsi" else grid
        if name != "fsi":
            archive["t"] = flow.t


def write_flame_files(folder: Path, sim_id: str, burn: Flame) -> None:
    """HDF5 of a combustion trajectory; simulated ones put the intensity into ``surrogate/``."""
    if burn.fields is None:
        with _hdf5(folder / "real" / sim_id) as archive:
            archive["trajectory"] = burn.observed
        return
    for kind, values in (("numerical", burn.fields), ("surrogate", burn.observed)):
        with _hdf5(folder / kind / sim_id) as archive:
            archive["measured_data"] = values
            archive["time"], archive["x"], archive["y"] = burn.t, burn.x, burn.y
            if kind == "numerical":
                archive["channel_names"] = np.array(COMBUSTION_FIELDS, dtype="S")


def _has_vorticity(name: str) -> bool:
    return name in ("cylinder", "foil")
