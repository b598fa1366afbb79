"""``r2no evaluate``: all metrics of a checkpoint or an artifact on one split."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from r2no import storage
from r2no.cli import options
from r2no.cli.app import app, check_exists
from r2no.errors import ConfigError
from r2no.progress import Reporter


@app.command()
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
    trust_source: Annotated[
        bool, typer.Option(help="Import the factory, or open the program, the artifact names.")
    ] = False,
    small: options.Small = None,
    layout: options.Layout = None,
    exclude: options.Exclude = None,
    incomplete: options.Incomplete = None,
    statistics: options.Statistics = None,
    normaliser: options.NormaliserName = None,
    cache: options.Cache = None,
) -> None:
    """Score a checkpoint or an artifact on a split and print JSON.

    An artifact's source is scored beside it. Progress goes to standard error. An artifact of your
    own data knows them; of the options only --split, --output and --trust-source apply.

    Example: r2no evaluate runs/cylinder-adapt/model.r2no --data ROOT --output scores.json
    """
    given = options.given(locals())
    check_exists(model, "There is no checkpoint or artifact")
    from r2no.runs import evaluate_own, is_own_artifact

    if is_own_artifact(model):
        found = evaluate_own(
            model, **_own_options(given[1]), trust_source=trust_source, reporter=Reporter()
        )
        if output is not None:
            storage.write_json(output, found)
        typer.echo(json.dumps(found, indent=2))
        return
    given[1].pop("trust_source", None)
    from r2no.realpdebench.protocol import EvaluateConfig, read_config, run_evaluation

    result = run_evaluation(read_config(EvaluateConfig, *given), reporter=Reporter())
    typer.echo(json.dumps(result, indent=2))


def _own_options(given: dict[str, Any]) -> dict[str, Any]:
    known = {"model", "split", "output", "trust_source"}
    if others := sorted(set(given) - known):
        raise ConfigError(
            "Of the options only --split, --output and --trust-source apply to an artifact of your "
            f"own data, but got {', '.join(others)}."
        )
    name = given.get("split", "test")
    if name not in ("train", "fit", "test"):
        raise ConfigError(f"`--split` must be train, fit or test, but got {name!r}.")
    return {"name": name}
