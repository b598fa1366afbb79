"""Window lists and groups: the released files first, the documented algorithm last.

The benchmark drew its splits from an unseeded generator, so only the released lists are its own;
for data without them this draws lists of the same law, and the same lists for the same seed.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from r2no._repr import brief_repr
from r2no._types import Number
from r2no.errors import DataError, FileDamagedError
from r2no.realpdebench.files.folder import GROUPS, Folder
from r2no.realpdebench.systems import System
from r2no.storage import read_json
from r2no.torch_files import read_torch

WindowStart = tuple[str, int]  # trajectory name, first frame of the window
Parameters = dict[str, tuple[Number, ...]]
_MODE_GROUPS = {
    "in_dist": GROUPS[:1],
    "out_dist": GROUPS[1:2],
    "seen": GROUPS[2:],
    "unseen": GROUPS[:2],
}


@dataclass(frozen=True)
class DrawnSplits:
    """Groups of trajectories (name to parameters) and the windows of each split."""

    in_dist: Parameters
    out_dist: Parameters
    remain: Parameters
    windows: dict[str, list[WindowStart]]

    __repr__ = brief_repr

    def groups(self) -> dict[str, Parameters]:
        """The groups under the benchmark's names."""
        return dict(zip(GROUPS, (self.in_dist, self.out_dist, self.remain), strict=True))


def draw_splits(system: System, kind: str, names: Sequence[str], *, seed: int) -> DrawnSplits:
    """Group ``names`` by their parameters and cut each group into train, val and test windows.

    Simulated data keep no trajectory out, and nearly all of their windows are for training.
    """
    random = Random(seed)
    per_trajectory = _starts(system) // system.interval
    if per_trajectory < 1:
        raise DataError(
            f"A window of {system.history_frames} + {system.horizon_frames} frames does not fit "
            f"into trajectories of {system.frames} frames. Lower the horizon."
        )
    total = len(names) * per_trajectory
    real = kind == "real"
    wanted = int(total * system.train_ratio) if real else total
    groups = _draw_groups(system, names, held_out=real, random=random)
    return DrawnSplits(*groups, _draw_windows(system, groups, wanted, random))


def _starts(system: System) -> int:
    """Number of possible first frames."""
    return system.frames - system.history_frames - system.horizon_frames + 1


def _draw_groups(
    system: System, names: Sequence[str], *, held_out: bool, random: Random
) -> tuple[Parameters, Parameters, Parameters]:
    """Trajectories held out inside and outside the parameter range, and the rest."""
    ordered = {name: system.values(name) for name in sorted(names)}
    ordered = dict(sorted(ordered.items(), key=lambda item: item[1]))
    inner, outer = _pools(ordered)
    draws = {"out": (outer, system.held_out), "in": (inner, system.held_in)}
    order = ("in", "out") if system.name == "combustion" else ("out", "in")
    chosen = {}
    for key in order:
        pool, count = draws[key]
        random.shuffle(pool)
        chosen[key] = pool[: count if held_out else 0]
    taken = {*chosen["in"], *chosen["out"]}
    rest = [name for name in ordered if name not in taken]
    in_dist, out_dist, remain = (
        {name: ordered[name] for name in group} for group in (chosen["in"], chosen["out"], rest)
    )
    return in_dist, out_dist, remain


def _pools(ordered: Parameters) -> tuple[list[str], list[str]]:
    """Inner and outer trajectories: away from and at the edge of the parameter range."""
    names = list(ordered)
    if names and len(ordered[names[0]]) == 1:
        edge = len(names) // 10
        return names[edge : len(names) - edge], names[:edge] + names[len(names) - edge :]
    first, second = zip(*ordered.values(), strict=True) if names else ((), ())
    outer = [n for n in names if _at_edge(ordered[n][0], first) or _at_edge(ordered[n][1], second)]
    others = [name for name in names if name not in set(outer)]
    inner = []
    for name in others:
        peers = [ordered[other][1] for other in others if ordered[other][0] == ordered[name][0]]
        if not _at_edge(ordered[name][1], peers):
            inner.append(name)
    return inner, outer


def _at_edge(value: Number, values: Sequence[Number]) -> bool:
    return value in (min(values), max(values))


def _draw_windows(
    system: System, groups: tuple[Parameters, Parameters, Parameters], wanted: int, random: Random
) -> dict[str, list[WindowStart]]:
    """Windows of the three splits, drawn in the benchmark's order of draws."""
    steps = range(_starts(system) // system.interval)
    held = [[(name, k * system.interval) for name in group for k in steps] for group in groups[:2]]
    trunks = [trunk for name in groups[2] for trunk in _trunks(system, name)]
    random.shuffle(trunks)
    train: list[WindowStart] = []
    other: list[WindowStart] = []
    for trunk in trunks:
        (train if len(train) < wanted else other).extend(trunk)
    for windows in (*held, train, other):
        random.shuffle(windows)
    parts = (*held, other)
    val = list(chain.from_iterable(part[: len(part) // 2] for part in parts))
    test = list(chain.from_iterable(part[len(part) // 2 :] for part in parts))
    for windows in (val, test, train):
        random.shuffle(windows)
    return {"train": train, "val": val, "test": test}


def _trunks(system: System, name: str) -> list[list[WindowStart]]:
    """Stretches of a trajectory that go to one split; starts begin anew in each."""
    length = system.trunk_frames
    return [
        [(name, start) for start in range(low, min(low + length, _starts(system)), system.interval)]
        for low in range(0, math.ceil(system.frames / length) * length, length)
    ]


def load_pt(path: Path) -> Any:
    """Read a ``.pt`` file without executing anything in it.

    Raises:
        FileDamagedError: if it is truncated or holds more than tensors, numbers and containers.
    """
    if not path.exists():
        raise DataError(f"There is no file `{path}`.")
    return read_torch(path)


@dataclass(frozen=True)
class Index:
    """Window lists of one system and kind."""

    folder: Folder
    system: System
    kind: str
    layout: str
    names: Sequence[str]
    split_seed: int = 0

    @property
    def source(self) -> str:
        """Where lists come from: ``json``, ``pt`` or ``drawn``."""
        if self.folder.index(self.kind, "train").is_file():
            return "json"
        mappings = (self.folder.mapping(self.kind, part) for part in ("sim_id", "time_id"))
        if all(path.is_file() for path in mappings):
            return "pt"
        if self.layout == "hdf5":
            return "drawn"
        raise DataError(
            f"There is no window list `{self.folder.index(self.kind, 'train')}`. Fetch it with "
            f"`r2no bench fetch --system {self.system.name}`; it is small."
        )

    def windows(self, split: str) -> list[WindowStart]:
        """(trajectory, first frame) of each window, in the released order."""
        source = self.source
        if source == "json":
            return self._from_json(split)
        return self._from_pt(split) if source == "pt" else self._drawn().windows[split]

    def group(self, test_mode: str) -> set[str]:
        """Names of the trajectories that ``test_mode`` keeps."""
        members = _MODE_GROUPS[test_mode]
        if self.source == "drawn":
            groups = self._drawn().groups()
            return {name for member in members for name in groups[member]}
        return {name for member in members for name in self._parameters(member, test_mode)}

    def _from_json(self, split: str) -> list[WindowStart]:
        """The windows that the benchmark's list names; an entry of another form is refused."""
        path = self.folder.index(self.kind, split)
        if not path.is_file():
            if self.kind == "real":
                raise DataError(
                    f"There is no window list `{path}`. Fetch it with "
                    f"`r2no bench fetch --system {self.system.name}`; it is small."
                )
            warnings.warn(
                f"`{path}` is not there, so the {split} split of the simulated data is empty, "
                "as released for some systems.",
                stacklevel=5,
            )
            return []
        try:
            return [(str(entry["sim_id"]), int(entry["time_id"])) for entry in read_json(path)]
        except (KeyError, TypeError, ValueError) as error:
            raise FileDamagedError(f"`{path}` is not a list of windows. Fetch it again.") from error

    def _from_pt(self, split: str) -> list[WindowStart]:
        paths = [self.folder.mapping(self.kind, part) for part in ("sim_id", "time_id")]
        try:
            names, starts = (load_pt(path)[split] for path in paths)
            return [(str(name), int(start)) for name, start in zip(names, starts, strict=True)]
        except (KeyError, TypeError, ValueError) as error:
            raise FileDamagedError(
                f"`{paths[0]}` and `{paths[1]}` must hold lists of equal length under `{split}`. "
                "Fetch them again."
            ) from error

    def _drawn(self) -> DrawnSplits:
        warnings.warn(
            f"`{self.folder.path}` holds no released window lists for `{self.kind}` (index JSON or "
            f"mapping .pt). Splits were drawn anew with seed {self.split_seed}: scores are not "
            "comparable with published ones.",
            stacklevel=5,
        )
        return draw_splits(self.system, self.kind, self.names, seed=self.split_seed)

    def _parameters(self, group: str, test_mode: str) -> list[str]:
        plain = self.folder.group(self.kind, group)
        stored = self.folder.group(self.kind, group, "pt")
        if plain.is_file():
            return list(read_json(plain))
        if stored.is_file():
            return list(load_pt(stored))
        raise DataError(
            f"`test_mode='{test_mode}'` needs `{plain}` (or `.pt`), which is not there. Fetch the "
            "metadata of this system, or use `test_mode='all'`."
        )
