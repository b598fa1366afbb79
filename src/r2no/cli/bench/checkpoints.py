"""``r2no bench checkpoints``: released weights."""

from pathlib import Path
from typing import Annotated

import typer

from r2no.cli.bench import options
from r2no.cli.bench.app import bench_app

checkpoints_app = typer.Typer(no_args_is_help=True, help="Released weights.")
bench_app.add_typer(checkpoints_app, name="checkpoints")


@checkpoints_app.command("fetch")
def fetch_checkpoint(
    system: Annotated[str, typer.Argument(help="System.")],
    backbone: Annotated[str, typer.Argument(help="Network.")],
    paradigm: Annotated[str, typer.Option(help="numerical, real or finetune.")] = "finetune",
    out: Annotated[Path, typer.Option(help="Folder to fetch into.")] = Path("checkpoints"),
    endpoint: options.Endpoint = None,
    revision: options.Revision = "main",
    yes: options.Yes = False,
) -> None:
    """Fetch the benchmark's released weights of a network on a system.

    Example: r2no bench checkpoints fetch cylinder fno --paradigm finetune
    """
    from r2no.cli.bench.downloads import connect, fetch, run_plan

    hub = connect(endpoint)
    plan = fetch.plan_checkpoint(hub, out, system, backbone, paradigm=paradigm, revision=revision)
    run_plan(plan, hub, yes=yes)


@checkpoints_app.command("dpot")
def fetch_dpot(
    size: Annotated[str, typer.Option(help="Ti, S, M, L or H.")] = "S",
    out: Annotated[Path, typer.Option(help="Folder to fetch into.")] = Path("checkpoints"),
    endpoint: options.Endpoint = None,
    revision: options.Revision = "main",
    yes: options.Yes = False,
) -> None:
    """Fetch DPOT's pretrained backbone, which `r2no bench train --pretrained` starts from.

    Example: r2no bench checkpoints dpot --size S
    """
    from r2no.cli.bench.downloads import connect, fetch, run_plan

    hub = connect(endpoint)
    run_plan(fetch.plan_dpot(hub, out, size, revision=revision), hub, yes=yes)
