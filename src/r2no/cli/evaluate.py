"""``r2no evaluate``: all metrics of an artifact on a split of the data it was made from."""

import json
from typing import Annotated

import typer

from r2no import storage
from r2no.cli import options
from r2no.cli.app import app, check_exists
from r2no.cli.moved import HalfMoved
from r2no.progress import Reporter


@app.command(cls=HalfMoved)
def evaluate(
    artifact: options.Artifact,
    split: Annotated[str, typer.Option(help="train, fit or test.")] = "test",
    output: options.AlsoWrite = None,
    trust_source: options.TrustSource = False,
    device: options.Device = "auto",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Windows at a time; default as the artifact says.")
    ] = None,
) -> None:
    """Score an artifact, its source and persistence on a split, and print JSON.

    The artifact knows its data, which are read anew. Progress goes to standard error. Checkpoints
    and artifacts of RealPDEBench are scored by `r2no bench evaluate`.

    Example: r2no evaluate runs/piv/model.r2no --output scores.json
    """
    from r2no.runs import evaluate_own

    check_exists(artifact, "There is no artifact")
    found = evaluate_own(
        artifact,
        name=split,
        trust_source=trust_source,
        device=device,
        batch_size=batch_size,
        reporter=Reporter(),
    )
    if output is not None:
        storage.write_json(output, found)
    typer.echo(json.dumps(found, indent=2))
