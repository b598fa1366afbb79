"""The documented split algorithm, for data that come without their window lists.

The benchmark drew its splits from an unseeded generator, so only the released lists are its own;
this draws lists of the same law, and the same lists for the same seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random

from r2no._repr import brief_repr
from r2no.errors import DataError
from r2no.realpdebench.files.folder import GROUPS
from r2no.realpdebench.systems import Number, System

WindowStart = tuple[str, int]  # trajectory name, first frame of the window
Parameters = dict[str, tuple[Number, ...]]


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
