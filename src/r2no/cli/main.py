"""``r2no``: the parser, and how errors are shown."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from r2no.errors import R2NOError
from r2no.training import Reporter

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Adapt simulation-pretrained neural operators to real measurements.",
)
console = Console()


@app.callback()
def _root() -> None:
    """Adapt simulation-pretrained neural operators to real measurements."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for results, figures and work.")] = Path(
        "demo-out"
    ),
    members: Annotated[int, typer.Option(min=1, help="Number of repair modules.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and networks.")] = 0,
    quick: Annotated[bool, typer.Option(help="A smaller run, for a first look.")] = False,
    backbone: Annotated[str, typer.Option(help="Source network.")] = "fno",
) -> None:
    """Run the whole method on the built-in wake: train, adapt, score, show.

    The wake's `real` data are a simulated stand-in for measurement. A run that is stopped goes on
    where it was.

    Example: r2no demo --out demo-out
    """
    from r2no.experiments import DemoSettings, run_demo

    settings = DemoSettings(seed=seed, members=members, quick=quick, backbone=backbone)
    results = run_demo(out, settings, reporter=Reporter())
    console.print(_score_table(results["readouts"]))
    for name, note in results["ensembles"].items():
        if name.startswith("r2no"):
            console.print(_partition_note(name, note, results["ensembles"]["finest"]))
    console.print(f"Wrote {out}/results.json, figures (*.png) and the artifact {out}/wake.r2no.")


def _score_table(readouts: dict[str, dict[str, float]]) -> Table:
    table = Table(title="Test split of the wake (a simulated stand-in for measurement)")
    table.add_column("method")
    columns = ("rmse", "frmse", "frmse_full", "rel_l2", "r2", "ke_error")
    for name in columns:
        table.add_column(name, justify="right")
    best = min(scores["rmse"] for scores in readouts.values())
    for name, scores in readouts.items():
        style = "bold" if scores["rmse"] == best else None
        table.add_row(name, *(f"{scores[key]:.5f}" for key in columns), style=style)
    return table


def _partition_note(name: str, chosen: dict[str, Any], finest: dict[str, Any]) -> str:
    text = (
        f"{name}: {chosen['radial']} x {chosen['angular']} cells "
        f"({chosen['occupied_cells']} occupied), ridge {chosen['ridge']:g}."
    )
    if chosen["radial"] * chosen["angular"] < finest["radial"] * finest["angular"]:
        text += (
            f" The finest partition tried, {finest['radial']} x {finest['angular']}, overfits this "
            "fit split on held-out trajectories, so a coarser one was chosen there."
        )
    return text


def main() -> None:
    """Entry point: named errors become one clear line and exit code 1."""
    try:
        app()
    except R2NOError as error:
        Console(stderr=True).print(
            f"[bold red]{type(error).__name__}[/]: ",
            str(error),
            highlight=False,
            markup=True,
            sep="",
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
