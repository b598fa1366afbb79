"""``r2no bench train | adapt | evaluate``: one network on one system, by the published protocol."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from r2no.cli import options
from r2no.cli.app import bench_app, check_exists, say
from r2no.progress import Reporter

ConfigFile = Annotated[
    Path | None, typer.Argument(help="YAML file with any of the options below; options win.")
]
System = Annotated[
    str | None, typer.Option(help="cylinder, controlled_cylinder, fsi, foil or combustion.")
]
Backbone = Annotated[
    str | None, typer.Option(help="unet, deeponet, fno, cno, transolver or dpot_s.")
]
Data = Annotated[Path | None, typer.Option(help="Folder that holds one folder per system.")]


def _reading(
    small: Annotated[bool | None, typer.Option(help="A small network, for tiny data.")] = None,
    layout: Annotated[str | None, typer.Option(help="auto, arrow or hdf5.")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Trajectory to leave out; repeat for several.")
    ] = None,
    incomplete: Annotated[
        str | None, typer.Option(help="raise, or skip windows whose frames are not there.")
    ] = None,
    statistics: Annotated[
        str | None, typer.Option(help="exact, benchmark, or a file such as mean_std.pt.")
    ] = None,
    normaliser: Annotated[str | None, typer.Option(help="gaussian, range or none.")] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder to share statistics between runs.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where to compute: auto (an accelerator if there is one), cpu, cuda:1, ..."
        ),
    ] = None,
) -> None:
    """How all three read data and networks: fields of ``BenchmarkConfig``."""


def _learning(
    out: Annotated[Path | None, typer.Option(help="Folder for the run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed.")] = None,
    lr: Annotated[float | None, typer.Option(help="First learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows per step.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="How networks multiply: float32 (default), tf32 or bf16.")
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Processes that read ahead in training: auto (default), 0, 2, ..."),
    ] = None,
) -> None:
    """How both that train do so: fields of ``LearningConfig``."""


def _given(values: dict[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """The config file and the options that were given, of a command's arguments."""
    shared = values.pop("shared")
    given = options.given(**values, **shared)
    return given.pop("config", None), given


@bench_app.command()
@options.also(_reading)
@options.also(_learning)
def train(
    config: ConfigFile = None,
    system: System = None,
    backbone: Backbone = None,
    data: Data = None,
    paradigm: Annotated[
        str | None, typer.Option(help="numerical (default), real or finetune.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Checkpoint that finetuning starts from.")
    ] = None,
    pretrained: Annotated[Path | None, typer.Option(help="DPOT's released backbone.")] = None,
    updates: Annotated[int | None, typer.Option(help="Optimiser steps.")] = None,
    eval_batch_size: Annotated[
        int | None, typer.Option(help="Windows per batch of validation.")
    ] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm; 0 for none.")] = None,
    mask_prob: Annotated[
        float | None, typer.Option(help="Share of masked simulated windows.")
    ] = None,
    noise_scale: Annotated[float | None, typer.Option(help="Noise on simulated windows.")] = None,
    validations: Annotated[int | None, typer.Option(help="Number of validations.")] = None,
    measured_only: Annotated[
        bool | None, typer.Option(help="Loss over measured channels; published: all.")
    ] = None,
    benchmark_file: Annotated[
        bool | None, typer.Option(help="Also write the benchmark's dictionary, PARADIGM.pth.")
    ] = None,
    **shared: Any,
) -> None:
    """Pretrain or finetune a backbone; options that are not given are the published ones.

    Selects by RMSE on the real validation split. A run that is stopped goes on where it was.

    Example: r2no bench train --system cylinder --backbone fno --data ROOT --paradigm numerical
    """
    given = _given(locals())
    from r2no.realpdebench.protocol import TrainConfig, read_config, run_training

    found = run_training(read_config(TrainConfig, *given), reporter=Reporter())
    path = found["checkpoint"]
    say(
        f"Validation RMSE {found['best_validation_rmse']:.6g} at update {found['best_update']}. "
        f"Wrote {path}. Adapt it with `r2no bench adapt --source {path} --data ROOT`, "
        f"score it with `r2no bench evaluate {path} --data ROOT`."
    )


@bench_app.command()
@options.also(_reading)
@options.also(_learning)
def adapt(
    config: ConfigFile = None,
    system: System = None,
    backbone: Backbone = None,
    data: Data = None,
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
    width: Annotated[int | None, typer.Option(help="Base width of the repair U-Net.")] = None,
    depth: Annotated[int | None, typer.Option(help="Levels of the repair U-Net.")] = None,
    steps: Annotated[int | None, typer.Option(help="Iterates of the loop, L.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of each repair module.")] = None,
    updates: Annotated[int | None, typer.Option(help="Optimiser steps, instead of epochs.")] = None,
    eval_batch_size: Annotated[
        int | None, typer.Option(help="Windows per batch when not training.")
    ] = None,
    checkpointing: Annotated[
        bool | None, typer.Option(help="Less memory for more time when training.")
    ] = None,
    radial: Annotated[int | None, typer.Option(help="Radial bands.")] = None,
    angular: Annotated[int | None, typer.Option(help="Angular sectors.")] = None,
    **shared: Any,
) -> None:
    """Fit repair modules and a spectral ensemble on real windows, and save them.

    Modules learn on the real training split, the ensemble is fitted on the validation split. A
    run that is stopped goes on where it was.

    Example: r2no bench adapt --system cylinder --backbone fno --data ROOT --source finetune.pth
    """
    given = _given(locals())
    from r2no.realpdebench.protocol import AdaptConfig, read_config, run_adaptation

    path = run_adaptation(read_config(AdaptConfig, *given), reporter=Reporter())
    say(f"Wrote {path}. Score it with `r2no bench evaluate {path} --data ROOT`.")


@bench_app.command()
@options.also(_reading)
def evaluate(
    model: Annotated[Path, typer.Argument(help="A checkpoint file or an artifact folder.")],
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of these options; options win.")
    ] = None,
    system: System = None,
    backbone: Backbone = None,
    data: Data = None,
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
    output: options.AlsoWrite = None,
    **shared: Any,
) -> None:
    """Score a checkpoint or an artifact on a split and print JSON.

    An artifact's source is scored beside it. Progress goes to standard error.

    Example: r2no bench evaluate runs/cylinder-adapt/model.r2no --data ROOT --output scores.json
    """
    given = _given(locals())
    check_exists(model, "There is no checkpoint or artifact")
    from r2no.realpdebench.protocol import EvaluateConfig, read_config, run_evaluation

    result = run_evaluation(read_config(EvaluateConfig, *given), reporter=Reporter())
    typer.echo(json.dumps(result, indent=2))
