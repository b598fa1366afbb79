"""``r2no bench train``: a backbone on one system, by the published protocol."""

from pathlib import Path
from typing import Annotated

import typer

from r2no.cli.app import say
from r2no.cli.bench import options
from r2no.cli.bench.app import bench_app
from r2no.progress import Reporter


@bench_app.command()
def train(
    config: options.ConfigFile = None,
    system: options.System = None,
    backbone: options.Backbone = None,
    data: options.Data = None,
    paradigm: Annotated[
        str | None, typer.Option(help="numerical (default), real or finetune.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Checkpoint that finetuning starts from.")
    ] = None,
    pretrained: Annotated[Path | None, typer.Option(help="DPOT's released backbone.")] = None,
    out: options.Out = None,
    updates: Annotated[int | None, typer.Option(help="Optimiser steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows per step.")] = None,
    eval_batch_size: Annotated[
        int | None, typer.Option(help="Windows per batch of validation.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="First learning rate.")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm; 0 for none.")] = None,
    mask_prob: Annotated[
        float | None, typer.Option(help="Share of masked simulated windows.")
    ] = None,
    noise_scale: Annotated[float | None, typer.Option(help="Noise on simulated windows.")] = None,
    validations: Annotated[int | None, typer.Option(help="Number of validations.")] = None,
    seed: options.Seed = None,
    measured_only: Annotated[
        bool | None, typer.Option(help="Loss over measured channels; published: all.")
    ] = None,
    benchmark_file: Annotated[
        bool | None, typer.Option(help="Also write the benchmark's dictionary, PARADIGM.pth.")
    ] = None,
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
    """Pretrain or finetune a backbone; options that are not given are the published ones.

    Selects by RMSE on the real validation split. A run that is stopped goes on where it was.

    Example: r2no bench train --system cylinder --backbone fno --data ROOT --paradigm numerical
    """
    given = options.given(locals())
    from r2no.realpdebench.protocol import TrainConfig, read_config, run_training

    found = run_training(read_config(TrainConfig, *given), reporter=Reporter())
    path = found["checkpoint"]
    say(
        f"Validation RMSE {found['best_validation_rmse']:.6g} at update {found['best_update']}. "
        f"Wrote {path}. Adapt it with `r2no bench adapt --source {path} --data ROOT`, "
        f"score it with `r2no bench evaluate {path} --data ROOT`."
    )
