"""What a folder holds, what it lacks, and whether its splits share frames."""

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from r2no._repr import brief_repr
from r2no._types import PathLike
from r2no.checks import choice
from r2no.errors import DataError, R2NOError
from r2no.realpdebench.files.folder import GROUPS, Folder, check_version
from r2no.realpdebench.files.index import Index, WindowStart
from r2no.realpdebench.files.trajectories import Shape, Trajectories
from r2no.realpdebench.protocol.dataset import open_trajectories
from r2no.realpdebench.systems import KINDS, SPLITS, SYSTEMS, System, lookup


@dataclass(frozen=True)
class Overlap:
    """How many windows of each split share at least one frame with a window of the other."""

    first: str
    second: str
    first_windows: int
    second_windows: int


@dataclass(frozen=True)
class KindReport:
    """One kind of one system; ``expected`` trajectories is 0 where nothing is known."""

    kind: str
    layouts: tuple[str, ...]
    trajectories: tuple[str, ...] = ()
    expected: int = 0
    frames: tuple[int, int] = (0, 0)  # shortest and longest
    grids: tuple[tuple[int, int], ...] = ()
    source: str = ""  # of the window lists: json, pt or drawn
    windows: tuple[tuple[str, int], ...] = ()  # (split, count)
    missing: tuple[str, ...] = ()  # listed trajectories and files that are not there
    overlaps: tuple[Overlap, ...] = ()
    duplicates: tuple[tuple[str, ...], ...] = ()
    problems: tuple[str, ...] = ()

    def row(self) -> list[str]:
        """Formats, recordings, sizes and windows, in words."""
        expected = f" of {self.expected}" if self.expected else ""
        low, high = self.frames
        frames = str(low) if low == high else f"{low}-{high}"
        windows = dict(self.windows)
        return [
            self.kind,
            ",".join(self.layouts) or "none",
            f"{len(self.trajectories)}{expected}",
            ", ".join(f"{frames} x {height} x {width}" for height, width in self.grids),
            "/".join(str(windows.get(split, "-")) for split in SPLITS),
        ]

    def remarks(self) -> list[str]:
        """Everything that deserves a sentence."""
        return [
            *self.problems,
            *(f"missing {name}" for name in self.missing),
            *(f"same frames in {', '.join(names)}" for names in self.duplicates),
            *(
                f"{overlap.first_windows} {overlap.first} and {overlap.second_windows} "
                f"{overlap.second} windows share frames (as published)"
                for overlap in self.overlaps
                if overlap.first_windows
            ),
        ]


@dataclass(frozen=True)
class SystemReport:
    """Both kinds of a system, and the trajectories that only one of them has."""

    name: str
    kinds: tuple[KindReport, ...]
    unpaired: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """The result of :func:`audit`."""

    root: Path
    systems: tuple[SystemReport, ...]
    problems: tuple[str, ...] = ()

    __repr__ = brief_repr

    def to_dict(self) -> dict[str, Any]:
        """The same as plain containers, for JSON."""
        return {**asdict(self), "root": str(self.root)}

    def rows(self) -> list[list[str]]:
        """One row per system and kind: formats, recordings, sizes, windows."""
        return [[system.name, *kind.row()] for system in self.systems for kind in system.kinds]

    def remarks(self) -> list[str]:
        """Everything that deserves a sentence."""
        lines = list(self.problems)
        for system in self.systems:
            for kind in system.kinds:
                lines += [f"{system.name} {kind.kind}: {text}" for text in kind.remarks()]
            if system.unpaired:
                lines.append(f"{system.name}: only one kind has {', '.join(system.unpaired)}")
        return lines


def audit(root: PathLike, systems: Sequence[str] = tuple(SYSTEMS)) -> Audit:
    """Look through ``root`` without stopping at defects: they end up in ``problems``.

    Reads names, shapes and window lists, and three frames per trajectory to find duplicates.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"`root` must be a folder, but there is none at `{root}`.")
    there = [name for name in systems if (root / choice("systems", name, tuple(SYSTEMS))).is_dir()]
    problems = [] if there else [f"`{root}` holds none of {', '.join(systems)}."]
    try:
        check_version(root)
    except DataError as error:
        problems.append(str(error))
    return Audit(root, tuple(_system_report(root, name) for name in there), tuple(problems))


def _system_report(root: Path, name: str) -> SystemReport:
    kinds = tuple(_kind_report(Folder(root, name), lookup(name, root), kind) for kind in KINDS)
    both = [set(report.trajectories) for report in kinds]
    unpaired = both[0] ^ both[1] if all(both) else set()
    return SystemReport(name, kinds, tuple(sorted(unpaired)))


def _kind_report(folder: Folder, system: System, kind: str) -> KindReport:
    """What is there of one kind: recordings, windows, leaks, problems."""
    layouts = folder.layouts(kind)
    expected = system.trajectories[KINDS.index(kind)]
    problems: list[str] = []
    trajectories, shapes = _readable(folder, system, kind, problems)
    index = Index(folder, system, kind, layouts[0] if layouts else "arrow", tuple(shapes))
    lists, more = _window_lists(index)
    problems += more if layouts else []  # without fields that is said already
    frames = [shape[0] for shape in shapes.values()] or [0]
    return KindReport(
        kind,
        layouts,
        tuple(shapes),
        expected,
        frames=(min(frames), max(frames)),
        grids=tuple(sorted({shape[1:] for shape in shapes.values()})),
        source=index.source if lists else "",
        windows=tuple((split, len(pairs)) for split, pairs in lists.items()),
        missing=_missing(folder, kind, lists, trajectories, shapes),
        overlaps=find_overlaps(lists, system.history_frames + system.horizon_frames),
        duplicates=() if trajectories is None else find_duplicates(trajectories, tuple(shapes)),
        problems=tuple(problems),
    )


def _readable(
    folder: Folder, system: System, kind: str, problems: list[str]
) -> tuple[Trajectories | None, dict[str, Shape]]:
    """The trajectories and the shapes of those that can be read; what is wrong is noted."""
    shapes: dict[str, Shape] = {}
    try:
        found = open_trajectories(folder, system, kind, folder.detect(kind))
    except R2NOError as error:
        problems.append(str(error))
        return None, shapes
    for name in found.names:
        try:
            shapes[name] = found.shape(name)
        except R2NOError as error:
            problems.append(str(error))
    return found, shapes


def _window_lists(index: Index) -> tuple[dict[str, list[WindowStart]], list[str]]:
    lists, problems = {}, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for split in SPLITS:
            try:
                lists[split] = index.windows(split)
            except R2NOError as error:
                problems.append(str(error))
    messages = [str(warning.message) for warning in caught]
    return lists, list(dict.fromkeys(problems + messages))


def _missing(
    folder: Folder,
    kind: str,
    lists: dict[str, list[WindowStart]],
    trajectories: Trajectories | None,
    there: Iterable[str],
) -> tuple[str, ...]:
    """Recordings that lists name and files that belong here, but are not there."""
    if trajectories is None:
        return ()
    listed = {name for pairs in lists.values() for name, _ in pairs}
    groups = [folder.group(kind, group) for group in GROUPS]
    files = [str(p) for p in groups if not (p.is_file() or p.with_suffix(".pt").is_file())]
    return (*sorted(listed - set(there)), *trajectories.missing_files, *files)


def find_overlaps(lists: dict[str, list[WindowStart]], length: int) -> tuple[Overlap, ...]:
    """Count, for each two splits, windows of ``length`` frames that share a frame."""
    return tuple(
        Overlap(a, b, _sharing(lists[a], lists[b], length), _sharing(lists[b], lists[a], length))
        for a, b in combinations(lists, 2)
    )


def _sharing(windows: list[WindowStart], others: list[WindowStart], length: int) -> int:
    """Windows of the first list with a start less than ``length`` from one of the second."""
    starts = defaultdict(list)
    for name, start in others:
        starts[name].append(start)
    ordered = {name: np.sort(values) for name, values in starts.items()}
    count = 0
    for name, start in windows:
        if name in ordered:
            low, high = np.searchsorted(ordered[name], (start - length + 1, start + length))
            count += int(high > low)
    return count


def find_duplicates(
    trajectories: Trajectories, names: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Those of ``names`` whose first, middle and last frames agree bit for bit."""
    groups = defaultdict(list)
    for name in names:
        frames = trajectories.shape(name)[0]
        digest = hashlib.sha256()
        for frame in (0, frames // 2, frames - 1):
            digest.update(trajectories.read(name, frame, 1, stride=1, unmeasured=False).data)
        groups[digest.digest()].append(name)
    return tuple(tuple(alike) for alike in groups.values() if len(alike) > 1)
