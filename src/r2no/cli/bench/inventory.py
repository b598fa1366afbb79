"""What ``r2no bench info`` found, as a table and sentences."""

from rich.table import Table

from r2no.realpdebench import Audit
from r2no.realpdebench.protocol.info import KindReport
from r2no.realpdebench.systems import SPLITS


def inventory(found: Audit) -> Table:
    """One row per system and kind: formats, recordings, sizes, windows."""
    table = Table(title=f"RealPDEBench data in {found.root}", box=None, padding=(0, 1, 0, 0))
    for name in ("system", "kind", "layouts", "runs", "frames x grid", "train/val/test"):
        table.add_column(name)
    for system in found.systems:
        for kind in system.kinds:
            table.add_row(system.name, *_row(kind))
    return table


def _row(kind: KindReport) -> list[str]:
    expected = f" of {kind.expected}" if kind.expected else ""
    low, high = kind.frames
    frames = str(low) if low == high else f"{low}-{high}"
    windows = dict(kind.windows)
    return [
        kind.kind,
        ",".join(kind.layouts) or "none",
        f"{len(kind.trajectories)}{expected}",
        ", ".join(f"{frames} x {height} x {width}" for height, width in kind.grids),
        "/".join(str(windows.get(split, "-")) for split in SPLITS),
    ]


def remarks(found: Audit) -> list[str]:
    """Everything that deserves a sentence."""
    lines = list(found.problems)
    for system in found.systems:
        for kind in system.kinds:
            where = f"{system.name} {kind.kind}"
            lines += [f"{where}: {problem}" for problem in kind.problems]
            lines += [f"{where}: missing {name}" for name in kind.missing]
            lines += [f"{where}: same frames in {', '.join(names)}" for names in kind.duplicates]
            lines += [
                f"{where}: {overlap.first_windows} {overlap.first} and {overlap.second_windows} "
                f"{overlap.second} windows share frames (as published)"
                for overlap in kind.overlaps
                if overlap.first_windows
            ]
        if system.unpaired:
            lines.append(f"{system.name}: only one kind has {', '.join(system.unpaired)}")
    return lines
