"""``r2no checkpoints``: released weights."""

from pathlib import Path
from typing import Annotated

import typer

from r2no.cli import options
from r2no.cli.app import app
from r2no.cli.downloads import run_plan
from r2no.realpdebench.files import fetch
from r2no.realpdebench.files.hub import HuggingFaceHub

checkpoints_app = typer.Typer(no_args_is_help=True, help="Released weights.")
app.add_typer(checkpoints_app, name="checkpoints")


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

    Example: r2no checkpoints fetch cylinder fno --paradigm finetune
    """
    hub = HuggingFaceHub(endpoint)
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
    """Fetch DPOT's pretrained backbone, for `r2no train --backbone dpot_s --pretrained FILE`.

    Example: r2no checkpoints dpot --size S
    """
    hub = HuggingFaceHub(endpoint)
    run_plan(fetch.plan_dpot(hub, out, size, revision=revision), hub, yes=yes)
