"""``r2no bench``: the paper's experiments as commands."""

from pathlib import Path
from typing import Annotated, Any

import typer

from r2no.cli.app import app, console
from r2no.errors import ConfigError
from r2no.progress import Reporter

bench_app = typer.Typer(no_args_is_help=True, help="The paper's experiments: run, show, compare.")
app.add_typer(bench_app, name="bench")

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
Norm = Annotated[
    str | None, typer.Option(help="Results of this spectral loss, where the run has both.")
]
Exponent = Annotated[float | None, typer.Option(help="p of the window weight; published: 1.")]
Statistics = Annotated[str | None, typer.Option(help="exact, benchmark, or a file.")]
Accept = Annotated[bool, typer.Option("--accept", help="Use released files known not to work.")]
BatchSize = Annotated[int | None, typer.Option(help="Windows per batch when not training.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes.")]
Study = Annotated[str, typer.Argument(help="main, combination-rule, ...; see --help.")]
Run = Annotated[Path | None, typer.Option(help="Folder of a run; default the paper's numbers.")]
Format = Annotated[str, typer.Option("--format", help="md, latex or csv.")]


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
    accept: Accept = False,
    jobs: Jobs = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each process.")] = None,
) -> None:
    """Run every pair of a study; what is done is kept, and a stopped run goes on.

    Example: r2no bench run --preset mini --out bench-out --system cylinder --backbone fno
    """
    given = _given(locals(), "jobs", "threads", "norm")
    from r2no.realpdebench.study import BenchConfig, run_bench

    configs = [BenchConfig.of(**given, norm=one) for one in norm or ["ortho"]]
    outcomes = []
    for config in configs:
        outcomes += run_bench(config, jobs=jobs, threads=threads, reporter=Reporter())
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    _say(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} results are in {out}/results. "
        f"Show them with `r2no bench table main --run {out}`."
    )
    for outcome in failed:
        _say(f"Failed: {outcome.name} {outcome.error}")
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
    accept: Accept = False,
    jobs: Jobs = 1,
    calibrate: Annotated[bool, typer.Option(help="Time unit costs on this machine.")] = True,
) -> None:
    """Say what a run would do: steps, evaluations, time, disk, memory, what is cached.

    Example: r2no bench plan --data ROOT --checkpoints checkpoints --jobs 4
    """
    given = _given(locals(), "jobs", "calibrate", "norm")
    from r2no.realpdebench.study import BenchConfig, plan_sheet

    for config in [BenchConfig.of(**given, norm=one) for one in norm or ["ortho"]]:
        typer.echo(plan_sheet(config, jobs=jobs, calibrate=calibrate).render("md"))


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
    pretrained-source, diagnostic, theory, qualitative, cost.

    Example: r2no bench table main --run bench-out --format latex
    """
    from r2no.realpdebench.study import study_sheet

    if frmse not in ("octant", "full"):
        raise ConfigError(f"`frmse` must be octant or full, but got `{frmse}`.")
    metric = "frmse" if frmse == "octant" else "frmse_full"
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
    from r2no.realpdebench.study import draw, load_results

    folder = out or run / ("figures" if norm in (None, "ortho") else f"figures-{norm}")
    for path in draw(name, load_results(run, norm), run, folder):
        _say(f"Wrote {path}.")


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
    from r2no.realpdebench.study import comparable, compare_sheet, results_by_norm

    results = results_by_norm(run).values()
    sheets = [compare_sheet(name, *results) for name in ([study] if study else comparable())]
    _write("\n".join(sheet.render(form) for sheet in sheets if sheet.rows), output)


def _given(arguments: dict[str, Any], *others: str) -> dict[str, Any]:
    """The options of a config that were given, under the config's names."""
    plural = {"system": "systems", "backbone": "backbones", "source": "sources"}
    return {
        plural.get(name, name): tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
        if value not in (None, []) and name not in others
    }


def _say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _write(text: str, output: Path | None) -> None:
    typer.echo(text)
    if output is not None:
        from r2no import storage

        storage.write_bytes(output, text.encode())
