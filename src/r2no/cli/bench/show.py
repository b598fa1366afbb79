"""``r2no bench table | figure | compare``: the results of a run, and the paper's."""

from pathlib import Path
from typing import Annotated

import typer

from r2no.cli.app import bench_app, say
from r2no.errors import ConfigError

Study = Annotated[str, typer.Argument(help="main, combination-rule, ...; see --help.")]
Run = Annotated[Path | None, typer.Option(help="Folder of a run; default the paper's numbers.")]
Format = Annotated[str, typer.Option("--format", help="md, latex or csv.")]
Norm = Annotated[
    str | None, typer.Option(help="Results of this spectral loss, where the run has both.")
]


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
    from r2no.realpdebench.study.tables import study_sheet

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

        storage.write_bytes(output, text.encode())
