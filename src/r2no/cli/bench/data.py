"""``r2no bench fetch | tiny | info``: the benchmark's data."""

import json
from pathlib import Path
from typing import Annotated

import typer

from r2no.cli.app import console, say
from r2no.cli.bench import options
from r2no.cli.bench.app import bench_app

Systems = Annotated[list[str] | None, typer.Option("--system", help="Repeat for several.")]


@bench_app.command("fetch")
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

    Example: r2no bench fetch --root ROOT --system cylinder --kind real
    """
    from r2no.cli.bench.downloads import connect, fetch, run_plan
    from r2no.realpdebench.systems import KINDS, SPLITS, SYSTEMS

    hub = connect(endpoint)
    systems = system or list(SYSTEMS)
    run_plan(fetch.plan_metadata(hub, root, systems, revision=revision), hub, yes=yes)
    if fields or kind or split:
        plan = fetch.plan_shards(
            hub, root, systems, kind or KINDS, split or SPLITS, revision=revision
        )
        run_plan(plan, hub, yes=yes)


@bench_app.command()
def tiny(
    root: Annotated[Path, typer.Argument(help="Folder to write into.")],
    system: Systems = None,
    layout: Annotated[list[str] | None, typer.Option(help="arrow, hdf5; default both.")] = None,
    frames: Annotated[int, typer.Option(min=41, help="Frames of a trajectory.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 0,
) -> None:
    """Write small synthetic data in the benchmark's exact formats.

    Example: r2no bench tiny ROOT --system cylinder
    """
    from r2no.realpdebench import SYSTEMS, write_tiny

    names = system or list(SYSTEMS)
    write_tiny(root, names, seed=seed, frames=frames, layouts=layout or ("arrow", "hdf5"))
    say(f"Wrote {', '.join(names)} to {root}.")


@bench_app.command()
def info(
    root: Annotated[Path, typer.Argument(help="Folder that holds one folder per system.")],
    system: Systems = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is there and what is missing, count windows, and look for leaks between splits.

    Example: r2no bench info ROOT
    """
    from r2no.cli.bench.inventory import inventory, remarks
    from r2no.realpdebench import SYSTEMS, audit

    found = audit(root, system or tuple(SYSTEMS))
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    console.print(inventory(found))
    for line in remarks(found):
        say(f"- {line}")
