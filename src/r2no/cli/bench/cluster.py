"""``r2no bench submit | status``: a study as jobs of a cluster."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from r2no.cli.app import console, say
from r2no.cli.bench import study
from r2no.cli.bench.app import bench_app
from r2no.progress import Reporter

Follow = Annotated[float, typer.Option(min=0, help="Show it every so many seconds; 0: once.")]


@bench_app.command("submit")
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
    preset: study.Preset = "paper",
    data: study.Data = None,
    out: study.Out = Path("bench-out"),
    system: study.Systems = None,
    backbone: study.Backbones = None,
    source: study.Sources = None,
    checkpoints: study.Checkpoints = None,
    dpot: study.Dpot = None,
    members: study.Members = None,
    compat: study.Compat = None,
    extent: study.Extent = None,
    norm: study.Norms = None,
    weight_exponent: study.Exponent = None,
    statistics: study.Statistics = None,
    batch_size: study.BatchSize = None,
    accept: study.Accept = False,
) -> None:
    """Hand a study to Slurm as a graph of jobs that go on when they are stopped.

    Jobs are the checkpoint of a source, its forecasts, each repair module, fit and test, the table.
    What is done or queued is not handed in again. Needs `pip install 'r2no[cluster]'`.

    Example: r2no bench submit --data ROOT --cluster cluster.yaml --system cylinder
    """
    asked = ("partition", "gpus", "processes", "cpus", "memory", "minutes")
    values = locals()
    resources = {name: values[name] for name in asked if values[name] is not None}
    given = study.given(values, *asked, "executor", "cluster", "norm", "asked")
    from r2no.realpdebench.study import BenchConfig
    from r2no.realpdebench.study.cluster import ClusterConfig, submit_study
    from r2no.yaml_text import read_yaml

    stored = {} if cluster is None else read_yaml(cluster)
    wanted = ClusterConfig(**{**stored, **resources})
    names: list[str] = []
    for config in [BenchConfig.of(**given, norm=one) for one in norm or ["ortho"]]:
        names += submit_study(config, wanted, executor=executor, reporter=Reporter())
    verb = "Ran" if executor == "local" else "Queued"
    say(f"{verb} {len(names)} jobs. See how they do with `r2no bench status --run {out}`.")


@bench_app.command("status")
def status(
    run: Annotated[Path, typer.Option(help="Folder of a run.")],
    follow: Follow = 0,
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
