"""``r2no bench train | adapt | evaluate``: one network on one system, by the published protocol.

Options are fields of the command's config, which knows what they are when they are not given.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from r2no.cli import options
from r2no.cli.app import bench_app, check_exists, command_line, say
from r2no.progress import Reporter

ConfigFile = Annotated[
    Path | None, typer.Argument(help="YAML file with any of the options below; options win.")
]

_WHICH: options.Table = {
    "system": (str, "cylinder, controlled_cylinder, fsi, foil or combustion."),
    "backbone": (str, "unet, deeponet, fno, cno, transolver or dpot_s."),
    "data": (Path, "Folder that holds one folder per system."),
}
_READING: options.Table = {
    "small": (bool, "A small network, for tiny data."),
    "layout": (str, "auto, arrow or hdf5."),
    "exclude": (list[str], "Trajectory to leave out; repeat for several."),
    "incomplete": (str, "raise, or skip windows whose frames are not there."),
    "statistics": (str, "exact, benchmark, or a file such as mean_std.pt."),
    "normaliser": (str, "gaussian, range or none."),
    "cache": (Path, "Folder to share statistics between runs."),
    "device": (str, "Where to compute: auto (an accelerator if there is one), cpu, cuda:1, ..."),
}
_LEARNING: options.Table = {
    "out": (Path, "Folder for the run."),
    "seed": (int, "Seed."),
    "lr": (float, "First learning rate."),
    "batch_size": (int, "Windows per step."),
    "precision": (str, "How networks multiply: float32 (default), tf32 or bf16."),
    "workers": (str, "Processes that read ahead in training: auto (default), 0, 2, ..."),
}
_TRAINING: options.Table = {
    "paradigm": (str, "numerical (default), real or finetune."),
    "source": (Path, "Checkpoint that finetuning starts from."),
    "pretrained": (Path, "DPOT's released backbone."),
    "updates": (int, "Optimiser steps."),
    "eval_batch_size": (int, "Windows per batch of validation."),
    "clip": (float, "Largest gradient norm; 0 for none."),
    "mask_prob": (float, "Share of masked simulated windows."),
    "noise_scale": (float, "Noise on simulated windows."),
    "validations": (int, "Number of validations."),
    "measured_only": (bool, "Loss over measured channels; published: all."),
    "benchmark_file": (bool, "Also write the benchmark's dictionary, PARADIGM.pth."),
}
_ADAPTING: options.Table = {
    "source": (Path, "Checkpoint of the operator to adapt."),
    "members": (int, "Number of repair modules."),
    "preset": (str, "auto: cells sized to the fit split (default); paper: 128 x 16 cells."),
    "target": (str, "Weight windows for this score: rmse or rel_l2."),
    "budget": (int, "Most evaluations of the repair module per forecast."),
    "width": (int, "Base width of the repair U-Net."),
    "depth": (int, "Levels of the repair U-Net."),
    "steps": (int, "Iterates of the loop, L."),
    "epochs": (int, "Epochs of each repair module."),
    "updates": (int, "Optimiser steps, instead of epochs."),
    "eval_batch_size": (int, "Windows per batch when not training."),
    "checkpointing": (bool, "Less memory for more time when training."),
    "radial": (int, "Radial bands."),
    "angular": (int, "Angular sectors."),
}
_SCORING: options.Table = {
    "source": (Path, "The artifact's source, if not beside it."),
    "split": (str, "train, val or test (default)."),
    "kind": (str, "real (default) or numerical."),
    "test_mode": (str, "all (default), in_dist, out_dist, seen or unseen."),
    "autoregressive": (int, "Blocks of the roll-out: 1, or the preset's with --compat benchmark."),
    "frames": (int, "Nominal frames of a trajectory."),
    "batch_size": (int, "Windows per batch."),
    "compat": (str, "benchmark: score exactly as the benchmark does."),
    "probes": (bool, "Also the mean velocity profile error behind the body."),
    "output": (Path, "Also write the JSON here."),
}


@bench_app.command()
@options.also({**_WHICH, **_TRAINING, **_LEARNING, **_READING})
def train(config: ConfigFile = None, **given: Any) -> None:
    """Pretrain or finetune a backbone; options that are not given are the published ones.

    Selects by RMSE on the real validation split. A run that is stopped goes on where it was.

    Example: r2no bench train --system cylinder --backbone fno --data ROOT --paradigm numerical
    """
    from r2no.realpdebench.protocol.config import TrainConfig, read_config
    from r2no.realpdebench.protocol.run import run_training

    wanted = read_config(TrainConfig, config, options.given(**given))
    found = run_training(wanted, reporter=Reporter())
    path = found["checkpoint"]
    say(
        f"Validation RMSE {found['best_validation_rmse']:.6g} at update {found['best_update']}. "
        f"Wrote {path}. Adapt it with `r2no bench adapt --source {path} --data ROOT`, "
        f"score it with `r2no bench evaluate {path} --data ROOT`."
    )


@bench_app.command()
@options.also({**_WHICH, **_ADAPTING, **_LEARNING, **_READING})
def adapt(config: ConfigFile = None, **given: Any) -> None:
    """Fit repair modules and a spectral ensemble on real windows, and save them.

    Modules learn on the real training split, the ensemble is fitted on the validation split. A
    run that is stopped goes on where it was.

    Example: r2no bench adapt --system cylinder --backbone fno --data ROOT --source finetune.pth
    """
    from r2no.realpdebench.protocol.config import AdaptConfig, read_config
    from r2no.realpdebench.protocol.run import run_adaptation

    wanted = read_config(AdaptConfig, config, options.given(**given))
    path = run_adaptation(wanted, reporter=Reporter(), command=command_line())
    say(f"Wrote {path}. Score it with `r2no bench evaluate {path} --data ROOT`.")


@bench_app.command()
@options.also({**_WHICH, **_SCORING, **_READING})
def evaluate(
    model: Annotated[Path, typer.Argument(help="A checkpoint file or an artifact folder.")],
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of these options; options win.")
    ] = None,
    **given: Any,
) -> None:
    """Score a checkpoint or an artifact on a split and print JSON.

    An artifact's source is scored beside it. Progress goes to standard error.

    Example: r2no bench evaluate runs/cylinder-adapt/model.r2no --data ROOT --output scores.json
    """
    check_exists(model, "There is no checkpoint or artifact")
    from r2no.realpdebench.protocol.config import EvaluateConfig, read_config
    from r2no.realpdebench.protocol.run import run_evaluation

    wanted = read_config(EvaluateConfig, config, options.given(model=model, **given))
    result = run_evaluation(wanted, reporter=Reporter())
    typer.echo(json.dumps(result, indent=2))
