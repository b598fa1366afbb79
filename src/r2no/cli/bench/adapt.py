"""``r2no bench adapt``: repair modules and the spectral ensemble on top of a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from r2no.cli.app import say
from r2no.cli.bench import options
from r2no.cli.bench.app import bench_app
from r2no.progress import Reporter


@bench_app.command()
def adapt(
    config: options.ConfigFile = None,
    system: options.System = None,
    backbone: options.Backbone = None,
    data: options.Data = None,
    source: Annotated[
        Path | None, typer.Option(help="Checkpoint of the operator to adapt.")
    ] = None,
    members: Annotated[int | None, typer.Option(help="Number of repair modules.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="auto: cells sized to the fit split (default); paper: 128 x 16 cells."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Weight windows for this score: rmse or rel_l2.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="Most evaluations of the repair module per forecast.")
    ] = None,
    out: options.Out = None,
    seed: options.Seed = None,
    width: Annotated[int | None, typer.Option(help="Base width of the repair U-Net.")] = None,
    depth: Annotated[int | None, typer.Option(help="Levels of the repair U-Net.")] = None,
    steps: Annotated[int | None, typer.Option(help="Iterates of the loop, L.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of each repair module.")] = None,
    updates: Annotated[int | None, typer.Option(help="Optimiser steps, instead of epochs.")] = None,
    lr: Annotated[float | None, typer.Option(help="First learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows per step.")] = None,
    eval_batch_size: Annotated[
        int | None, typer.Option(help="Windows per batch when not training.")
    ] = None,
    checkpointing: Annotated[
        bool | None, typer.Option(help="Less memory for more time when training.")
    ] = None,
    radial: Annotated[int | None, typer.Option(help="Radial bands.")] = None,
    angular: Annotated[int | None, typer.Option(help="Angular sectors.")] = None,
    small: options.Small = None,
    layout: options.Layout = None,
    exclude: options.Exclude = None,
    incomplete: options.Incomplete = None,
    statistics: options.Statistics = None,
    normaliser: options.NormaliserName = None,
    cache: options.Cache = None,
    device: options.Device = None,
    precision: options.Precision = None,
    workers: options.Workers = None,
) -> None:
    """Fit repair modules and a spectral ensemble on real windows, and save them.

    Modules learn on the real training split, the ensemble is fitted on the validation split. A
    run that is stopped goes on where it was.

    Example: r2no bench adapt --system cylinder --backbone fno --data ROOT --source finetune.pth
    """
    given = options.given(locals())
    from r2no.realpdebench.protocol import AdaptConfig, read_config, run_adaptation

    path = run_adaptation(read_config(AdaptConfig, *given), reporter=Reporter())
    say(f"Wrote {path}. Score it with `r2no bench evaluate {path} --data ROOT`.")
