"""``r2no adapt | doctor | schema``: your operator and your measurements, from one YAML file."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from r2no.cli import options
from r2no.cli.app import (
    HalfMoved,
    app,
    command_line,
    config_told,
    console,
    reporter,
    say,
    say_json,
    shown,
    what_helped,
)

Config = Annotated[
    Path, typer.Argument(help="YAML file: data, source, adapt, out; see `r2no schema`.")
]
DeviceOfFile = Annotated[
    str | None, typer.Option("--device", help="Where to compute: auto, cpu, cuda:1, mps.")
]
_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@app.command(cls=HalfMoved)
def adapt(
    config: Config,
    out: Annotated[Path | None, typer.Option(help="Folder, instead of the file's.")] = None,
    members: Annotated[int | None, typer.Option(help="Repair modules; 0 trains none.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time to spend.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first module.")] = None,
    device: DeviceOfFile = None,
) -> None:
    """Adapt your operator to your measurements, as CONFIG says.

    Writes an artifact, its scores on the test split and a report. Look at CONFIG with
    `r2no doctor` first. A run that is stopped goes on where it was.

    Example: r2no adapt own.yaml --out runs/piv
    """
    from r2no import storage
    from r2no.runs import read_own_config, run_own_adaptation

    given = options.given(out=out, members=members, minutes=minutes, seed=seed, device=device)
    with config_told(config):
        own = read_own_config(config, given)
    path = run_own_adaptation(own, reporter=reporter(), command=command_line())
    if helped := storage.read_json(path.parent / "run.json")["contributions"]:
        console.print(what_helped(helped))
    say(
        f"Wrote {path}, its scores in {path.parent / 'run.json'} and the page "
        f"{path.parent / 'report.html'}. "
        + (
            f"Score it with `r2no evaluate {path}`; stored forecasts cannot answer new data."
            if any(one.kind == "forecasts" for one in (own.source, *own.also.values()))
            else f"Forecast with `r2no predict {path} DATA`."
        )
    )


@app.command()
def doctor(
    config: Config,
    full: Annotated[
        bool, typer.Option(help="Compare the frames of the splits however large the data are.")
    ] = False,
    device: DeviceOfFile = None,
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
        say_json(rows)
    else:
        console.print(
            f"{levels.count('ok')} ok, {levels.count('warn')} to look at, "
            f"{levels.count('fail')} to mend before a run."
        )
    if "fail" in levels:
        raise typer.Exit(1)


@app.command()
def schema(
    output: Annotated[Path | None, typer.Option(help="File to write instead.")] = None,
) -> None:
    """Print the JSON schema of the YAML file that `adapt` and `doctor` read.

    Editors complete and check the file with it; the docs say how.

    Example: r2no schema --output r2no.schema.json
    """
    from r2no import storage
    from r2no.runs import config_schema

    if output is None:
        say_json(config_schema())
    else:
        storage.write_json(output, config_schema())
        say(f"Wrote {output}.")
