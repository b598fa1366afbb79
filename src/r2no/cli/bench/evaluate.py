"""``r2no bench evaluate``: all metrics of a checkpoint or an artifact on one split."""

import json
from pathlib import Path
from typing import Annotated

import typer

from r2no.cli.app import check_exists
from r2no.cli.bench import options
from r2no.cli.bench.app import bench_app
from r2no.progress import Reporter


@bench_app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="A checkpoint file or an artifact folder.")],
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of these options; options win.")
    ] = None,
    system: options.System = None,
    backbone: options.Backbone = None,
    data: options.Data = None,
    source: Annotated[
        Path | None, typer.Option(help="The artifact's source, if not beside it.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="train, val or test (default).")] = None,
    kind: Annotated[str | None, typer.Option(help="real (default) or numerical.")] = None,
    test_mode: Annotated[
        str | None, typer.Option(help="all (default), in_dist, out_dist, seen or unseen.")
    ] = None,
    autoregressive: Annotated[
        int | None,
        typer.Option(help="Blocks of the roll-out: 1, or the preset's with --compat benchmark."),
    ] = None,
    frames: Annotated[int | None, typer.Option(help="Nominal frames of a trajectory.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows per batch.")] = None,
    compat: Annotated[
        str | None, typer.Option(help="benchmark: score exactly as the benchmark does.")
    ] = None,
    probes: Annotated[
        bool | None, typer.Option(help="Also the mean velocity profile error behind the body.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON here.")] = None,
    small: options.Small = None,
    layout: options.Layout = None,
    exclude: options.Exclude = None,
    incomplete: options.Incomplete = None,
    statistics: options.Statistics = None,
    normaliser: options.NormaliserName = None,
    cache: options.Cache = None,
    device: options.Device = None,
) -> None:
    """Score a checkpoint or an artifact on a split and print JSON.

    An artifact's source is scored beside it. Progress goes to standard error.

    Example: r2no bench evaluate runs/cylinder-adapt/model.r2no --data ROOT --output scores.json
    """
    given = options.given(locals())
    check_exists(model, "There is no checkpoint or artifact")
    from r2no.realpdebench.protocol import EvaluateConfig, read_config, run_evaluation

    result = run_evaluation(read_config(EvaluateConfig, *given), reporter=Reporter())
    typer.echo(json.dumps(result, indent=2))
