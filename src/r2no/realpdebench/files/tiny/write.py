"""Write small data sets: fields, window lists, groups and state files, complete or not at all."""

from collections.abc import Sequence
from pathlib import Path

import torch

from r2no._types import PathLike
from r2no.checks import choice
from r2no.errors import StorageError
from r2no.realpdebench.files.folder import Folder
from r2no.realpdebench.files.splits import DrawnSplits, draw_splits
from r2no.realpdebench.files.tiny import tables
from r2no.realpdebench.files.tiny.fields import flame, wake
from r2no.realpdebench.files.tiny.plans import PLANS, tiny_system
from r2no.realpdebench.systems import KINDS, LAYOUTS, SYSTEMS
from r2no.replacing import take_place
from r2no.storage import scratch_folder, write_json

_VERSION = {
    "data_version": "2.0.1",
    "min_code_version": "0.2.0",
    "repo_url": "https://github.com/AI4Science-WestlakeU/RealPDEBench",
}


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
            tables.write_shards(folder.shards(kind), rows, rows_per_shard=per_shard)
            _write_index(folder, kind, drawn)
        if "hdf5" in layouts:
            _write_mappings(folder, kind, drawn)
    write_json(folder.path / "channels.json", _channels(name, frames))
    settings = tiny_system(name, frames).benchmark_settings()
    write_json(folder.path / "tiny.json", {"seed": seed, "split_seed": seed, **settings})


def _write_fields(
    folder: Folder, kind: str, *, seed: int, frames: int, raw: bool
) -> list[tables.Rows]:
    """Make every trajectory, as rows of a table and, if ``raw``, as files."""
    name, rows = folder.system, []
    if raw:
        folder.raw(kind).mkdir(exist_ok=True)
        if name == "combustion":
            folder.raw("surrogate").mkdir(exist_ok=True)
    for sim_id in sorted(PLANS[name].sim_ids):
        if name == "combustion":
            burn = flame(sim_id, kind, frames=frames, seed=seed)
            rows.append(tables.flame_row(sim_id, burn))
            if raw:
                tables.write_flame_files(folder.path, sim_id, burn)
            continue
        flow = wake(name, sim_id, kind, frames=frames, seed=seed)
        rows.append(tables.wake_row(name, sim_id, kind, flow))
        if raw:
            tables.write_wake_file(folder.raw(kind) / sim_id, name, kind, flow)
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
