"""``r2no bench run | plan | submit | status``: the paper's experiments, here or on a cluster."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from r2no.cli import options
from r2no.cli.app import bench_app, console, say
from r2no.progress import Reporter

Device = Annotated[str | None, typer.Option(help="Where to compute: auto, cpu, cuda:1, ...")]
Precision = Annotated[str | None, typer.Option(help="float32 (default), tf32 or bf16.")]
Forecasts = Annotated[
    str | None, typer.Option(help="Of the sources, on disk: keep (default), or drop once used.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Processes.")]
Norms = Annotated[
    list[str] | None,
    typer.Option("--norm", help="Of the spectral loss: ortho (default), forward; repeat for both."),
]


def _chosen(
    preset: Annotated[
        str, typer.Option(help="paper, or mini: synthetic data, small networks.")
    ] = "paper",
    data: Annotated[
        Path | None, typer.Option(help="Folder that holds one folder per system.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("bench-out"),
    systems: Annotated[
        list[str] | None, typer.Option("--system", help="Repeat for several.")
    ] = None,
    backbones: Annotated[
        list[str] | None, typer.Option("--backbone", help="Repeat for several.")
    ] = None,
    sources: Annotated[
        list[str] | None, typer.Option("--source", help="finetune, pretrained; default both.")
    ] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Released weights, SYSTEM/BACKBONE/PARADIGM.pth.")
    ] = None,
    dpot: Annotated[Path | None, typer.Option(help="DPOT's released backbone.")] = None,
    members: Annotated[int | None, typer.Option(help="Repair modules; published: 3.")] = None,
    compat: Annotated[
        str | None, typer.Option(help="benchmark: score as the benchmark does.")
    ] = None,
    extent: Annotated[str | None, typer.Option(help="corner (default) or ellipse.")] = None,
    norms: Norms = None,
    weight_exponent: Annotated[
        float | None, typer.Option(help="p of the window weight; published: 1.")
    ] = None,
    statistics: Annotated[str | None, typer.Option(help="exact, benchmark, or a file.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Windows per batch when not training.")
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Use released files known not to work.")
    ] = False,
) -> None:
    """Which study, wherever it runs: fields of ``BenchConfig``, and several norms."""


def _configs(study: dict[str, Any], **more: Any) -> list[Any]:
    """A ``BenchConfig`` for each norm that is asked for."""
    from r2no.realpdebench.study import BenchConfig

    given = options.given(**study, **more)
    norms = given.pop("norms", ["ortho"])
    return [BenchConfig.of(**given, norm=norm) for norm in norms]


@bench_app.command("run")
@options.also(_chosen, first=True)
def run(
    device: Device = None,
    precision: Precision = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Processes that read ahead in training: auto (default), 0, 2."),
    ] = None,
    forecasts: Forecasts = None,
    beyond: Annotated[
        bool, typer.Option("--beyond", help="Also r2no's default fit, for `table beyond`.")
    ] = False,
    jobs: Jobs = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each process.")] = None,
    **study: Any,
) -> None:
    """Run every pair of a study; what is done is kept, and a stopped run goes on.

    Example: r2no bench run --preset mini --out bench-out --system cylinder --backbone fno
    """
    from r2no.realpdebench.study import run_bench

    here = {"device": device, "precision": precision, "workers": workers, "forecasts": forecasts}
    outcomes = []
    for config in _configs(study, **here, beyond=beyond):
        outcomes += run_bench(config, jobs=jobs, threads=threads, reporter=Reporter())
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    out = study["out"]
    say(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} results are in {out}/results. "
        f"Show them with `r2no bench table main --run {out}`."
    )
    for outcome in failed:
        say(f"Failed: {outcome.name} {outcome.error}")
    if failed:
        raise typer.Exit(1)


@bench_app.command("plan")
@options.also(_chosen, first=True)
def plan(
    device: Device = None,
    precision: Precision = None,
    forecasts: Forecasts = None,
    jobs: Jobs = 1,
    calibrate: Annotated[bool, typer.Option(help="Time unit costs on this machine.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="The jobs of `bench submit`, with GPU hours and disk.")
    ] = False,
    tflops: Annotated[float, typer.Option(min=0.01, help="Sustained rate of a GPU.")] = 7.8,
    **study: Any,
) -> None:
    """Say what a run would do: steps, evaluations, time, disk, memory, what is cached.

    Example: r2no bench plan --data ROOT --checkpoints checkpoints --jobs 4
    """
    from r2no.realpdebench.study import plan_sheet
    from r2no.realpdebench.study.hours import plan_jobs

    configs = _configs(study, device=device, precision=precision, forecasts=forecasts)
    if as_json:
        typer.echo(json.dumps([plan_jobs(config, tflops=tflops) for config in configs], indent=2))
        return
    for config in configs:
        typer.echo(plan_sheet(config, jobs=jobs, calibrate=calibrate).render("md"))


@bench_app.command("submit")
@options.also(_chosen)
def submit(
    executor: Annotated[str, typer.Option(help="slurm, or local: run the jobs here.")] = "slurm",
    cluster: Annotated[
        Path | None, typer.Option(help="YAML: partition, gpus, memory, minutes, stages, ...")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Of the cluster.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs of a job.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes of a job.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Cores of each process.")] = None,
    memory: Annotated[float | None, typer.Option(help="GB of a job.")] = None,
    minutes: Annotated[int | None, typer.Option(min=1, help="Time of a job.")] = None,
    **study: Any,
) -> None:
    """Hand a study to Slurm as a graph of jobs that go on when they are stopped.

    Jobs are the checkpoint of a source, its forecasts, each repair module, fit and test, the table.
    What is done or queued is not handed in again. Needs `pip install 'r2no[cluster]'`.

    Example: r2no bench submit --data ROOT --cluster cluster.yaml --system cylinder
    """
    from r2no.reading import read_yaml
    from r2no.realpdebench.study.cluster import ClusterConfig, submit_study

    stored = {} if cluster is None else read_yaml(cluster)
    size = {"gpus": gpus, "processes": processes, "cpus": cpus}
    asked = options.given(partition=partition, **size, memory=memory, minutes=minutes)
    wanted = ClusterConfig(**{**stored, **asked})
    names: list[str] = []
    for config in _configs(study):
        names += submit_study(config, wanted, executor=executor, reporter=Reporter())
    verb = "Ran" if executor == "local" else "Queued"
    say(f"{verb} {len(names)} jobs. See how they do with `r2no bench status --run {study['out']}`.")


@bench_app.command("status")
def status(
    run: Annotated[Path, typer.Option(help="Folder of a run.")],
    follow: Annotated[
        float, typer.Option(min=0, help="Show it every so many seconds; 0: once.")
    ] = 0,
) -> None:
    """Show how the jobs of a study do.

    Example: r2no bench status --run bench-out --follow 30
    """
    from r2no.realpdebench.study.cluster import statuses, stored_configs

    while True:
        found = [one for config in stored_configs(run) for one in statuses(config)]
        table = Table(
            title=f"{sum(one.state == 'done' for one in found)} of {len(found)} jobs done"
        )
        for name in ("job", "state", "minutes ago", "where", "note"):
            table.add_column(name)
        for one in found:
            since = f"{one.minutes:.1f}" if one.where else ""
            table.add_row(one.job.name, one.state, since, one.where, one.note)
        console.print(table)
        if not follow or all(one.state not in ("waiting", "running") for one in found):
            return
        time.sleep(follow)
