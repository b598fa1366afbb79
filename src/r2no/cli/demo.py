"""``r2no demo``: the whole method on the built-in wake."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from r2no.cli import options
from r2no.cli.app import app, command_line, console, reporter, say, what_helped

_NETWORKS = "unet, deeponet, fno, cno, transolver, dpot_s"


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for results, figures and work.")] = Path(
        "demo-out"
    ),
    members: Annotated[int, typer.Option(min=0, help="Repair modules; 0 trains none.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and networks.")] = 0,
    quick: Annotated[bool, typer.Option(help="A smaller run, for a first look.")] = False,
    backbone: Annotated[str, typer.Option(help=f"Source network: {_NETWORKS}.")] = "fno",
    device: options.Device = "auto",
) -> None:
    """Run the whole method on the built-in wake: train, adapt, score, show.

    First the instant model, which trains nothing beyond its source, then repair modules. The wake's
    `real` data are a simulated stand-in for measurement. A run that is stopped goes on where it
    was.

    Example: r2no demo --out demo-out
    """
    from r2no.wake.demo import DemoSettings, run_demo

    settings = DemoSettings(seed=seed, members=members, quick=quick, backbone=backbone)
    results = run_demo(out, settings, device=device, reporter=reporter(), command=command_line())
    console.print(_score_table(results["readouts"]))
    console.print(what_helped(results["contributions"]))
    for note in _ensemble_notes(results["ensembles"]):
        console.print(note, highlight=False)
    say(
        f"Wrote {out}/results.json, figures (*.png), the artifact {out}/wake.r2no and the page "
        f"{out}/report.html."
    )


def _score_table(readouts: dict[str, dict[str, float]]) -> Table:
    """All readouts by their scores, the best by RMSE in bold: first what needs no adaptation."""
    from r2no.report.wording import in_order

    table = Table(
        title="Test split of the wake (a simulated stand-in for measurement)", padding=(0, 0, 0, 1)
    )
    table.add_column("method", no_wrap=True)
    columns = ("rmse", "frmse", "frmse_full", "rel_l2", "r2", "ke_error")
    for name in columns:
        table.add_column(name, justify="right")
    best = min(scores["rmse"] for scores in readouts.values())
    for name in in_order(readouts):
        scores = readouts[name]
        style = "bold" if scores["rmse"] == best else None
        table.add_row(name, *(f"{scores[key]:.5f}" for key in columns), style=style)
    return table


def _chain_words(chain: dict[str, Any]) -> str:
    """From which forecast, over which cells, with which penalties."""
    levels = zip(chain["levels"], chain["penalties"], strict=True)
    steps = [f"{_cells_name(*size)} (ridge {ridge:g})" for size, ridge in levels]
    start = chain["start"]
    from r2no.ensemble.verdict import readable

    words = " > ".join(steps if start is None else [readable(start), *steps])
    return f"{words}, without repairs" if chain["free"] else words


def _cells_name(radial: int, angular: int, leads: int) -> str:
    cells = f"{radial} x {angular}" if radial else "one cell"
    return f"{cells} x {leads} lead times" if leads > 1 else cells


def _ensemble_notes(ensembles: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What the held-out blocks decided: at once (r2no_m0), then with repair."""
    from r2no.ensemble import Verdict

    for name in sorted(ensembles):
        found = ensembles[name]
        if found["verdict"] is None:
            continue
        verdict = Verdict(**found["verdict"])
        yield f"{name}: {verdict}."
        for chain in found["nested"]["chains"][:3]:
            yield f"  {100 * chain['share']:.0f} % of the mean: {_chain_words(chain)}"
