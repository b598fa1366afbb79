"""``r2no bench run | plan | submit | status``, and ``table | figure | compare`` of the results."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from r2no.checks import choice
from r2no.cli import options
from r2no.cli.app import bench_app, console, reporter, say, say_json
from r2no.realpdebench.study.config import BenchConfig

Jobs = Annotated[int, typer.Option(min=1, help="Processes.")]
Norms = Annotated[
    list[str] | None,
    typer.Option("--norm", help="Of the spectral loss: ortho (default), forward; repeat for both."),
]
Study = Annotated[str, typer.Argument(help="main, combination-rule, ...; see --help.")]
Run = Annotated[Path | None, typer.Option(help="Folder of a run; default the paper's numbers.")]
Format = Annotated[str, typer.Option("--format", help="md, latex or csv.")]
Norm = Annotated[
    str | None, typer.Option(help="Results of this spectral loss, where the run has both.")
]


def _chosen(*more: str, **flags: str) -> Callable[[options.Command], options.Command]:
    """Options that say which study, wherever it runs, and ``more`` fields of its config."""
    fields = options.fields(
        BenchConfig,
        *("preset", "data", "out", "checkpoints", "dpot", "members", "seed"),
        *("compat", "extent", "weight_exponent", "statistics", "batch_size", *more),
        systems="--system",
        backbones="--backbone",
        sources="--source",
        accept="--accept",
        **flags,
    )
    return options.also(fields, first=True)


def _configs(norms: list[str] | None, study: dict[str, Any]) -> list[BenchConfig]:
    """A config for each norm that is asked for."""
    return [BenchConfig.of(**options.given(**study), norm=norm) for norm in norms or ["ortho"]]


@bench_app.command("run")
@_chosen("device", "precision", "workers", "forecasts", beyond="--beyond")
def run(
    norms: Norms = None,
    jobs: Jobs = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each process.")] = None,
    **study: Any,
) -> None:
    """Run every pair of a study; what is done is kept, and a stopped run goes on.

    Example: r2no bench run --preset mini --out bench-out --system cylinder --backbone fno
    """
    from r2no.realpdebench.study.run import run_bench

    configs, outcomes = _configs(norms, study), []
    for config in configs:
        outcomes += run_bench(config, jobs=jobs, threads=threads, reporter=reporter())
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    out = configs[0].out
    say(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} results are in {out}/results. "
        f"Show them with `r2no bench table main --run {out}`."
    )
    for outcome in failed:
        say(f"Failed: {outcome.name} {outcome.error}")
    if failed:
        raise typer.Exit(1)


@bench_app.command("plan")
@_chosen("device", "precision", "forecasts")
def plan(
    norms: Norms = None,
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
    from r2no.realpdebench.study.plan import plan_jobs, plan_sheet

    configs = _configs(norms, study)
    if as_json:
        say_json([plan_jobs(config, tflops=tflops) for config in configs])
        return
    for config in configs:
        typer.echo(plan_sheet(config, jobs=jobs, calibrate=calibrate).render("md"))


@bench_app.command("submit")
@_chosen()
def submit(
    norms: Norms = None,
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
    configs, names = _configs(norms, study), []
    for config in configs:
        names += submit_study(config, wanted, executor=executor, reporter=reporter())
    verb, out = "Ran" if executor == "local" else "Queued", configs[0].out
    say(f"{verb} {len(names)} jobs. See how they do with `r2no bench status --run {out}`.")


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


@bench_app.command("table")
def table(
    study: Study,
    run: Run = None,
    form: Format = "md",
    frmse: Annotated[
        str, typer.Option(help="octant (the benchmark's) or full spectrum.")
    ] = "octant",
    norm: Norm = None,
    output: Annotated[Path | None, typer.Option(help="Also write it here.")] = None,
) -> None:
    """Print the table of a study: of a run, or without one the paper's numbers.

    Studies: main, relative-l2, combination-rule, partition-axes, base-column, columns, ridge,
    pretrained-source, beyond, diagnostic, theory, qualitative, cost.

    Example: r2no bench table main --run bench-out --format latex
    """
    from r2no.realpdebench.study.tables import study_sheet

    metric = "frmse" if choice("frmse", frmse, ("octant", "full")) == "octant" else "frmse_full"
    sheet = study_sheet(study, run, frmse=metric, norm=norm)
    _write(sheet.render(form), output)


@bench_app.command("figure")
def figure(
    name: Annotated[str, typer.Argument(help="diagnostic, regions, ...; see --help.")],
    run: Annotated[Path, typer.Option(help="Folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="Folder; default RUN/figures[-NORM].")] = None,
    norm: Norm = None,
) -> None:
    """Draw a figure: observation, regions, diagnostic, columns, ridge, qualitative, theory.

    Example: r2no bench figure diagnostic --run bench-out
    """
    from r2no.realpdebench.study.figures import draw
    from r2no.realpdebench.study.values import load_results

    folder = out or run / ("figures" if norm in (None, "ortho") else f"figures-{norm}")
    for path in draw(name, load_results(run, norm), run, folder):
        say(f"Wrote {path}.")


@bench_app.command("compare")
def compare(
    run: Annotated[Path, typer.Option(help="Folder of a run.")],
    study: Annotated[
        str | None, typer.Option(help="One study; default all with published numbers.")
    ] = None,
    form: Format = "md",
    output: Annotated[Path | None, typer.Option(help="Also write it here.")] = None,
) -> None:
    """Set a run beside the paper's values, pair by pair, with differences.

    A run with both norms of the spectral loss is shown with both, side by side.

    Example: r2no bench compare --run bench-out --study main
    """
    from r2no.realpdebench.study.tables import compare_sheet
    from r2no.realpdebench.study.values import published_studies, results_by_norm

    results = results_by_norm(run).values()
    names = [study] if study else published_studies()
    sheets = [compare_sheet(name, *results) for name in names]
    _write("\n".join(sheet.render(form) for sheet in sheets if sheet.rows), output)


def _write(text: str, output: Path | None) -> None:
    typer.echo(text)
    if output is not None:
        from r2no import storage

        storage.write_text(output, text)
