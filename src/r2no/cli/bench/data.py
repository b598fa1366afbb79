"""``r2no bench fetch | tiny | info | checkpoints``: the benchmark's data, and released weights."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from r2no.cli import options
from r2no.cli.app import bench_app, console, say, say_json
from r2no.realpdebench import SYSTEMS, audit, write_tiny
from r2no.realpdebench.files import fetch
from r2no.realpdebench.files.fetch import HuggingFaceHub
from r2no.realpdebench.systems import KINDS, SPLITS

checkpoints_app = typer.Typer(no_args_is_help=True, help="Released weights.")
bench_app.add_typer(checkpoints_app, name="checkpoints")

Systems = Annotated[list[str] | None, typer.Option("--system", help="Repeat for several.")]
Checkpoints = Annotated[Path, typer.Option("--out", help="Folder to fetch into.")]
Endpoint = Annotated[str | None, typer.Option(help="Another hub, such as a mirror.")]
Revision = Annotated[str, typer.Option(help="Branch, tag or commit.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before large downloads.")]


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
    endpoint: Endpoint = None,
    revision: Revision = "main",
    yes: Yes = False,
) -> None:
    """Fetch window lists and groups; with --kind, --split or --fields also the fields they need.

    Shows sizes and asks before anything above 1 GB. Resumes, and checks every file's hash. A
    token is taken from HF_TOKEN only.

    Example: r2no bench fetch --root ROOT --system cylinder --kind real
    """
    hub = HuggingFaceHub(endpoint)
    systems = system or list(SYSTEMS)
    _run_plan(fetch.plan_metadata(hub, root, systems, revision=revision), hub, yes=yes)
    if fields or kind or split:
        plan = fetch.plan_shards(
            hub, root, systems, kind or KINDS, split or SPLITS, revision=revision
        )
        _run_plan(plan, hub, yes=yes)


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
    names = system or list(SYSTEMS)
    write_tiny(root, names, seed=seed, frames=frames, layouts=layout or ("arrow", "hdf5"))
    say(f"Wrote {', '.join(names)} to {root}.")


@bench_app.command()
def info(
    root: Annotated[Path, typer.Argument(help="Folder that holds one folder per system.")],
    system: Systems = None,
    as_json: options.AsJSON = False,
) -> None:
    """Say what is there and what is missing, count windows, and look for leaks between splits.

    Example: r2no bench info ROOT
    """
    found = audit(root, system or tuple(SYSTEMS))
    if as_json:
        say_json(found.to_dict())
        return
    table = Table(title=f"RealPDEBench data in {root}", box=None, padding=(0, 1, 0, 0))
    for name in ("system", "kind", "layouts", "runs", "frames x grid", "train/val/test"):
        table.add_column(name)
    for row in found.rows():
        table.add_row(*row)
    console.print(table)
    for line in found.remarks():
        say(f"- {line}")


@checkpoints_app.command("fetch")
def fetch_checkpoint(
    system: Annotated[str, typer.Argument(help="System.")],
    backbone: Annotated[str, typer.Argument(help="Network.")],
    paradigm: Annotated[str, typer.Option(help="numerical, real or finetune.")] = "finetune",
    out: Checkpoints = Path("checkpoints"),
    endpoint: Endpoint = None,
    revision: Revision = "main",
    yes: Yes = False,
) -> None:
    """Fetch the benchmark's released weights of a network on a system.

    Example: r2no bench checkpoints fetch cylinder fno --paradigm finetune
    """
    hub = HuggingFaceHub(endpoint)
    plan = fetch.plan_checkpoint(hub, out, system, backbone, paradigm=paradigm, revision=revision)
    _run_plan(plan, hub, yes=yes)


@checkpoints_app.command("dpot")
def fetch_dpot(
    size: Annotated[str, typer.Option(help="Ti, S, M, L or H.")] = "S",
    out: Checkpoints = Path("checkpoints"),
    endpoint: Endpoint = None,
    revision: Revision = "main",
    yes: Yes = False,
) -> None:
    """Fetch DPOT's pretrained backbone, which `r2no bench train --pretrained` starts from.

    Example: r2no bench checkpoints dpot --size S
    """
    hub = HuggingFaceHub(endpoint)
    _run_plan(fetch.plan_dpot(hub, out, size, revision=revision), hub, yes=yes)


def _run_plan(plan: fetch.Plan, hub: fetch.Hub, *, yes: bool) -> None:
    """Show the plan and its largest files, ask if needed, fetch, say what is there now."""
    say(f"{plan}.")

    def confirm(plan: fetch.Plan) -> bool:
        if yes:
            return True
        for file in sorted(plan.files, key=lambda file: -file.size)[:10]:
            console.print(f"  {file.size / 1e9:8.3f} GB  {file.path}", highlight=False)
        try:
            return typer.confirm(f"Fetch {plan.size / 1e9:.2f} GB?")
        except typer.Abort:  # no terminal to answer from
            return False

    def progress(file: fetch.RemoteFile, left: int) -> None:
        say(f"{file.path}, {left / 1e9:.2f} GB left")

    files = fetch.download(plan, hub, confirm=confirm, progress=progress)
    say(f"{len(files)} files are in {plan.folder}.")
