"""``r2no bench run | plan``: the paper's experiments."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from r2no.cli.app import say
from r2no.cli.bench.app import bench_app
from r2no.progress import Reporter

Preset = Annotated[str, typer.Option(help="paper, or mini: synthetic data, small networks.")]
Data = Annotated[Path | None, typer.Option(help="Folder that holds one folder per system.")]
Out = Annotated[Path, typer.Option(help="Folder of the run.")]
Systems = Annotated[list[str] | None, typer.Option("--system", help="Repeat for several.")]
Backbones = Annotated[list[str] | None, typer.Option("--backbone", help="Repeat for several.")]
Sources = Annotated[
    list[str] | None, typer.Option("--source", help="finetune, pretrained; default both.")
]
Checkpoints = Annotated[
    Path | None, typer.Option(help="Released weights, SYSTEM/BACKBONE/PARADIGM.pth.")
]
Dpot = Annotated[Path | None, typer.Option(help="DPOT's released backbone.")]
Members = Annotated[int | None, typer.Option(help="Repair modules; published: 3.")]
Compat = Annotated[str | None, typer.Option(help="benchmark: score as the benchmark does.")]
Extent = Annotated[str | None, typer.Option(help="corner (default) or ellipse.")]
Norms = Annotated[
    list[str] | None,
    typer.Option("--norm", help="Of the spectral loss: ortho (default), forward; repeat for both."),
]
Exponent = Annotated[float | None, typer.Option(help="p of the window weight; published: 1.")]
Statistics = Annotated[str | None, typer.Option(help="exact, benchmark, or a file.")]
Accept = Annotated[bool, typer.Option("--accept", help="Use released files known not to work.")]
BatchSize = Annotated[int | None, typer.Option(help="Windows per batch when not training.")]
Beyond = Annotated[
    bool, typer.Option("--beyond", help="Also r2no's default fit, for `table beyond`.")
]
Device = Annotated[str | None, typer.Option(help="Where to compute: auto, cpu, cuda:1, ...")]
Precision = Annotated[str | None, typer.Option(help="float32 (default), tf32 or bf16.")]
Workers = Annotated[
    str | None, typer.Option(help="Processes that read ahead in training: auto (default), 0, 2.")
]
Forecasts = Annotated[
    str | None, typer.Option(help="Of the sources, on disk: keep (default), or drop once used.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Processes.")]


@bench_app.command("run")
def run(
    preset: Preset = "paper",
    data: Data = None,
    out: Out = Path("bench-out"),
    system: Systems = None,
    backbone: Backbones = None,
    source: Sources = None,
    checkpoints: Checkpoints = None,
    dpot: Dpot = None,
    members: Members = None,
    compat: Compat = None,
    extent: Extent = None,
    norm: Norms = None,
    weight_exponent: Exponent = None,
    statistics: Statistics = None,
    batch_size: BatchSize = None,
    device: Device = None,
    precision: Precision = None,
    workers: Workers = None,
    forecasts: Forecasts = None,
    accept: Accept = False,
    beyond: Beyond = False,
    jobs: Jobs = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each process.")] = None,
) -> None:
    """Run every pair of a study; what is done is kept, and a stopped run goes on.

    Example: r2no bench run --preset mini --out bench-out --system cylinder --backbone fno
    """
    options = given(locals(), "jobs", "threads", "norm")
    from r2no.realpdebench.study import BenchConfig, run_bench

    configs = [BenchConfig.of(**options, norm=one) for one in norm or ["ortho"]]
    outcomes = []
    for config in configs:
        outcomes += run_bench(config, jobs=jobs, threads=threads, reporter=Reporter())
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    say(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} results are in {out}/results. "
        f"Show them with `r2no bench table main --run {out}`."
    )
    for outcome in failed:
        say(f"Failed: {outcome.name} {outcome.error}")
    if failed:
        raise typer.Exit(1)


@bench_app.command("plan")
def plan(
    preset: Preset = "paper",
    data: Data = None,
    out: Out = Path("bench-out"),
    system: Systems = None,
    backbone: Backbones = None,
    source: Sources = None,
    checkpoints: Checkpoints = None,
    dpot: Dpot = None,
    members: Members = None,
    compat: Compat = None,
    extent: Extent = None,
    norm: Norms = None,
    weight_exponent: Exponent = None,
    statistics: Statistics = None,
    batch_size: BatchSize = None,
    device: Device = None,
    precision: Precision = None,
    forecasts: Forecasts = None,
    accept: Accept = False,
    jobs: Jobs = 1,
    calibrate: Annotated[bool, typer.Option(help="Time unit costs on this machine.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="The jobs of `bench submit`, with GPU hours and disk.")
    ] = False,
    tflops: Annotated[float, typer.Option(min=0.01, help="Sustained rate of a GPU.")] = 7.8,
) -> None:
    """Say what a run would do: steps, evaluations, time, disk, memory, what is cached.

    Example: r2no bench plan --data ROOT --checkpoints checkpoints --jobs 4
    """
    options = given(locals(), "jobs", "calibrate", "norm", "as_json", "tflops")
    from r2no.realpdebench.study import BenchConfig, plan_sheet
    from r2no.realpdebench.study.hours import plan_jobs

    configs = [BenchConfig.of(**options, norm=one) for one in norm or ["ortho"]]
    if as_json:
        typer.echo(json.dumps([plan_jobs(config, tflops=tflops) for config in configs], indent=2))
        return
    for config in configs:
        typer.echo(plan_sheet(config, jobs=jobs, calibrate=calibrate).render("md"))


def given(arguments: dict[str, Any], *others: str) -> dict[str, Any]:
    """The options of a config that were given, under the config's names."""
    plural = {"system": "systems", "backbone": "backbones", "source": "sources"}
    return {
        plural.get(name, name): tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
        if value not in (None, []) and name not in others
    }
