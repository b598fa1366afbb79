"""``r2no bench train | adapt | evaluate``: one network on one system, by the published protocol.

Options are the fields of the command's config, which says what they are.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from r2no.cli import options
from r2no.cli.app import bench_app, check_exists, command_line, reporter, say, say_json
from r2no.realpdebench.protocol.config import AdaptConfig, EvaluateConfig, TrainConfig, read_config

ConfigFile = Annotated[
    Path | None, typer.Argument(help="YAML file with any of the options below; options win.")
]


@bench_app.command()
@options.also(options.fields(TrainConfig))
def train(config: ConfigFile = None, **given: Any) -> None:
    """Pretrain or finetune a backbone; options that are not given are the published ones.

    Selects by RMSE on the real validation split. A run that is stopped goes on where it was.

    Example: r2no bench train --system cylinder --backbone fno --data ROOT --paradigm numerical
    """
    from r2no.realpdebench.protocol.run import run_training

    wanted = read_config(TrainConfig, config, options.given(**given))
    found = run_training(wanted, reporter=reporter())
    path = found["checkpoint"]
    say(
        f"Validation RMSE {found['best_validation_rmse']:.6g} at update {found['best_update']}. "
        f"Wrote {path}. Adapt it with `r2no bench adapt --source {path} --data ROOT`, "
        f"score it with `r2no bench evaluate {path} --data ROOT`."
    )


@bench_app.command()
@options.also(options.fields(AdaptConfig))
def adapt(config: ConfigFile = None, **given: Any) -> None:
    """Fit repair modules and a spectral ensemble on real windows, and save them.

    Modules learn on the real training split, the ensemble is fitted on the validation split. A
    run that is stopped goes on where it was.

    Example: r2no bench adapt --system cylinder --backbone fno --data ROOT --source finetune.pth
    """
    from r2no.realpdebench.protocol.run import run_adaptation

    wanted = read_config(AdaptConfig, config, options.given(**given))
    path = run_adaptation(wanted, reporter=reporter(), command=command_line())
    say(f"Wrote {path}. Score it with `r2no bench evaluate {path} --data ROOT`.")


@bench_app.command()
@options.also(options.fields(EvaluateConfig))
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
    from r2no.realpdebench.protocol.run import run_evaluation

    wanted = read_config(EvaluateConfig, config, options.given(model=model, **given))
    result = run_evaluation(wanted, reporter=reporter())
    say_json(result)
