"""Small data sets in the exact formats of RealPDEBench, for tests, demonstrations and trials.

Fields, window lists, groups and state files, in both layouts; complete or not at all.
"""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import torch

from r2no._types import PathLike
from r2no.checks import choice
from r2no.errors import StorageError
from r2no.realpdebench.files.folder import Folder
from r2no.realpdebench.files.index import DrawnSplits, draw_splits
from r2no.realpdebench.files.tiny_fields import PLANS, Flame, Wake, flame, tiny_system, wake
from r2no.realpdebench.systems import COMBUSTION_FIELDS, KINDS, LAYOUTS, SYSTEMS
from r2no.replacing import take_place
from r2no.storage import scratch_folder, write_json

Cell = tuple[pa.DataType, Any]  # Arrow type and value
Rows = dict[str, Cell]
_VERSION = {
    "data_version": "2.0.1",
    "min_code_version": "0.2.0",
    "repo_url": "https://github.com/AI4Science-WestlakeU/RealPDEBench",
}


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


def write_tiny(
    root: PathLike,
    systems: Sequence[str] = tuple(SYSTEMS),
    *,
    seed: int = 0,
    frames: int = 60,
    layouts: Sequence[str] = ("arrow", "hdf5"),
) -> Path:
    """Write small synthetic data of ``systems`` below ``root`` and return it.

    Everything is a function of (``seed``, system, ``frames``). An earlier small data set of the
    same system is replaced; anything else in its place is refused.
    """
    root = Path(root)
    for name in systems:
        choice("systems", name, tuple(SYSTEMS))
    for layout in layouts:
        choice("layouts", layout, LAYOUTS[1:])
    for name in systems:
        with scratch_folder(root / name) as scratch:
            _refuse_foreign(root / name)
            try:
                _write_system(scratch, name, seed=seed, frames=frames, layouts=layouts)
            except RuntimeError as error:  # as PyTorch and HDF5 report a full disk
                raise OSError(str(error)) from error
            take_place(scratch / name, root / name)
    write_json(root / "version.json", _VERSION)
    return root


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not (folder / "tiny.json").is_file():
        raise StorageError(
            f"`{folder}` exists and was not written by `write_tiny`; it was left untouched. "
            "Choose another `root`."
        )


def _write_system(root: Path, name: str, *, seed: int, frames: int, layouts: Sequence[str]) -> None:
    """Fields, lists and settings of one system, in the formats asked for."""
    folder = Folder(root, name)
    folder.path.mkdir()
    for kind in KINDS:
        drawn = draw_splits(tiny_system(name, frames), kind, PLANS[name].sim_ids, seed=seed)
        rows = _write_fields(folder, kind, seed=seed, frames=frames, raw="hdf5" in layouts)
        if "arrow" in layouts:
            per_shard = 4 if kind == "real" else 1
            write_shards(folder.shards(kind), rows, rows_per_shard=per_shard)
            _write_index(folder, kind, drawn)
        if "hdf5" in layouts:
            _write_mappings(folder, kind, drawn)
    write_json(folder.path / "channels.json", _channels(name, frames))
    settings = tiny_system(name, frames).benchmark_settings()
    write_json(folder.path / "tiny.json", {"seed": seed, "split_seed": seed, **settings})


def _write_fields(folder: Folder, kind: str, *, seed: int, frames: int, raw: bool) -> list[Rows]:
    """Make every trajectory, as rows of a table and, if ``raw``, as files."""
    name, rows = folder.system, []
    if raw:
        folder.raw(kind).mkdir(exist_ok=True)
        if name == "combustion":
            folder.raw("surrogate").mkdir(exist_ok=True)
    for sim_id in sorted(PLANS[name].sim_ids):
        if name == "combustion":
            burn = flame(sim_id, kind, frames=frames, seed=seed)
            rows.append(flame_row(sim_id, burn))
            if raw:
                write_flame_files(folder.path, sim_id, burn)
            continue
        flow = wake(name, sim_id, kind, frames=frames, seed=seed)
        rows.append(wake_row(name, sim_id, kind, flow))
        if raw:
            write_wake_file(folder.raw(kind) / sim_id, name, kind, flow)
    return rows


def _write_index(folder: Folder, kind: str, drawn: DrawnSplits) -> None:
    for group, members in drawn.groups().items():
        ordered = {name: list(members[name]) for name in sorted(members)}
        write_json(folder.group(kind, group), ordered)
    for split, pairs in drawn.windows.items():
        if pairs:  # an empty split has no file
            content = [{"sim_id": name, "time_id": start} for name, start in pairs]
            write_json(folder.index(kind, split), content)


def _write_mappings(folder: Folder, kind: str, drawn: DrawnSplits) -> None:
    for group, members in drawn.groups().items():
        torch.save(members, folder.group(kind, group, "pt"))
    for position, content in enumerate(("sim_id", "time_id")):
        lists = {s: [pair[position] for pair in pairs] for s, pairs in drawn.windows.items()}
        torch.save(lists, folder.mapping(kind, content))


def _channels(name: str, frames: int) -> dict[str, list[dict[str, object]]]:
    """A plain list of the arrays; the released file's schema is not documented."""
    content: dict[str, list[dict[str, object]]] = {}
    for kind in KINDS:
        shape = [frames, *PLANS[name].grid(kind)]
        columns = [c for c in SYSTEMS[name].columns if c.measured or kind == "numerical"]
        content[kind] = [{"name": c.name, "shape": shape, "channels": c.channels} for c in columns]
    return content
