"""``r2no doctor``: what would spoil a long run, found before it starts."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from r2no.cli import options
from r2no.cli.app import app, console, say, shown
from r2no.cli.moved import config_told

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@app.command()
def doctor(
    config: options.Config,
    full: Annotated[
        bool, typer.Option(help="Compare the frames of the splits however large the data are.")
    ] = False,
    device: options.DeviceOfFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check data, splits, source, units, one batch through everything, time, disk and memory.

    Each finding is ok, warn or fail and says what to do. Ends with code 1 if any is fail.

    Example: r2no doctor own.yaml
    """
    from r2no.runs import examine, read_own_config

    levels, rows = [], []
    with config_told(config):
        own = read_own_config(config, options.given(device=device))
    for finding in examine(own, full=full):
        levels.append(finding.level)
        rows.append(asdict(finding))
        if as_json:
            continue
        level = (f"{finding.level:4}", _STYLE[finding.level])
        line = Text.assemble(level, f" {finding.check}: ", shown(finding.message))
        say(line)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        console.print(
            f"{levels.count('ok')} ok, {levels.count('warn')} to look at, "
            f"{levels.count('fail')} to mend before a run."
        )
    if "fail" in levels:
        raise typer.Exit(1)
