"""``r2no adapt``: your operator and your measurements, from one YAML file to an artifact."""

from pathlib import Path
from typing import Annotated

import typer

from r2no import storage
from r2no.cli import options
from r2no.cli.app import app, command_line, console, say, what_helped
from r2no.cli.moved import HalfMoved, config_told
from r2no.progress import Reporter


@app.command(cls=HalfMoved)
def adapt(
    config: options.Config,
    out: Annotated[Path | None, typer.Option(help="Folder, instead of the file's.")] = None,
    members: Annotated[int | None, typer.Option(help="Repair modules; 0 trains none.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time to spend.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first module.")] = None,
    device: options.DeviceOfFile = None,
) -> None:
    """Adapt your operator to your measurements, as CONFIG says.

    Writes an artifact, its scores on the test split and a report. Look at CONFIG with
    `r2no doctor` first. A run that is stopped goes on where it was.

    Example: r2no adapt own.yaml --out runs/piv
    """
    from r2no.runs import read_own_config, run_own_adaptation

    given = options.given(out=out, members=members, minutes=minutes, seed=seed, device=device)
    with config_told(config):
        own = read_own_config(config, given)
    path = run_own_adaptation(own, reporter=Reporter(), command=command_line())
    if helped := storage.read_json(path.parent / "run.json")["contributions"]:
        console.print(what_helped(helped))
    say(
        f"Wrote {path}, its scores in {path.parent / 'run.json'} and the page "
        f"{path.parent / 'report.html'}. "
        + (
            f"Score it with `r2no evaluate {path}`; stored forecasts cannot answer new data."
            if own.source.kind == "forecasts"
            else f"Forecast with `r2no predict {path} DATA`."
        )
    )
