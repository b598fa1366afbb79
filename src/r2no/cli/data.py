"""``r2no data``: fetch, make and look at benchmark data."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from r2no.cli import options
from r2no.cli.app import app, console
from r2no.cli.downloads import run_plan
from r2no.realpdebench import SYSTEMS, Audit, audit, write_tiny
from r2no.realpdebench.files import fetch
from r2no.realpdebench.files.hub import HuggingFaceHub
from r2no.realpdebench.protocol.info import KindReport
from r2no.realpdebench.systems import KINDS, SPLITS

data_app = typer.Typer(no_args_is_help=True, help="Benchmark data: fetch, make small, look at.")
app.add_typer(data_app, name="data")

Systems = Annotated[list[str] | None, typer.Option("--system", help="Repeat for several.")]


@data_app.command("fetch")
def fetch_data(
    root: Annotated[Path, typer.Option(help="Folder to fetch into.")] = Path("realpdebench"),
    system: Systems = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="real or numerical; fetches fields.")
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="train, val, test; fetches fields.")
    ] = None,
    fields: Annotated[bool, typer.Option("--fields", help="Fetch fields, of all kinds.")] = False,
    endpoint: options.Endpoint = None,
    revision: options.Revision = "main",
    yes: options.Yes = False,
) -> None:
    """Fetch window lists and groups; with --kind, --split or --fields also the fields they need.

    Shows sizes and asks before anything above 1 GB. Resumes, and checks every file's hash. A
    token is taken from HF_TOKEN only.

    Example: r2no data fetch --root ROOT --system cylinder --kind real
    """
    hub = HuggingFaceHub(endpoint)
    systems = system or list(SYSTEMS)
    run_plan(fetch.plan_metadata(hub, root, systems, revision=revision), hub, yes=yes)
    if fields or kind or split:
        plan = fetch.plan_shards(
            hub, root, systems, kind or KINDS, split or SPLITS, revision=revision
        )
        run_plan(plan, hub, yes=yes)


@data_app.command()
def tiny(
    root: Annotated[Path, typer.Argument(help="Folder to write into.")],
    system: Systems = None,
    layout: Annotated[list[str] | None, typer.Option(help="arrow, hdf5; default both.")] = None,
    frames: Annotated[int, typer.Option(min=41, help="Frames of a trajectory.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 0,
) -> None:
    """Write small synthetic data in the benchmark's exact formats.

    Example: r2no data tiny ROOT --system cylinder
    """
    names = system or list(SYSTEMS)
    write_tiny(root, names, seed=seed, frames=frames, layouts=layout or ("arrow", "hdf5"))
    console.print(f"Wrote {', '.join(names)} to {root}.", highlight=False, soft_wrap=True)


@data_app.command()
def info(
    root: Annotated[Path, typer.Argument(help="Folder that holds one folder per system.")],
    system: Systems = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is there and what is missing, count windows, and look for leaks between splits.

    Example: r2no data info ROOT
    """
    found = audit(root, system or tuple(SYSTEMS))
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    console.print(_inventory(found))
    for line in _remarks(found):
        console.print(f"- {line}", highlight=False, soft_wrap=True)


def _inventory(found: Audit) -> Table:
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


def _remarks(found: Audit) -> list[str]:
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
