"""``r2no report``: what an artifact does, as one page."""

from pathlib import Path
from typing import Annotated

import typer

from r2no.cli.app import app, check_exists, command_line, say
from r2no.progress import Reporter


@app.command()
def report(
    artifact: Annotated[Path, typer.Argument(help="An artifact folder.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page; default the folder's name.")] = "",
) -> None:
    """Write one self-contained HTML page: verdict, scores, retention map, fields, provenance.

    Needs neither source nor data: scores and fields are shown if the artifact holds an evaluation,
    as that of `r2no demo` does.

    Example: r2no report demo-out/wake.r2no --out report.html
    """
    from r2no.report import write_report

    check_exists(artifact, "There is no artifact")

    path = write_report(artifact, out, title=title, command=command_line(), reporter=Reporter())
    size = path.stat().st_size / 1e6
    say(f"Wrote {path} ({size:.1f} MB).")
