"""``r2no schema``: what the YAML file of an adaptation may hold, for editors."""

import json
from pathlib import Path
from typing import Annotated

import typer

from r2no import storage
from r2no.cli.app import app, say


@app.command()
def schema(
    output: Annotated[Path | None, typer.Option(help="File to write instead.")] = None,
) -> None:
    """Print the JSON schema of the YAML file that `adapt` and `doctor` read.

    Editors complete and check the file with it; the docs say how.

    Example: r2no schema --output r2no.schema.json
    """
    from r2no.runs import config_schema

    if output is None:
        typer.echo(json.dumps(config_schema(), indent=2))
    else:
        storage.write_json(output, config_schema())
        say(f"Wrote {output}.")
