"""The parsers that commands register on, and how they print."""

import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from r2no import storage
from r2no.errors import FileMissingError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Adapt simulation-pretrained neural operators to real measurements.",
)
bench_app = typer.Typer(
    no_args_is_help=True, help="RealPDEBench: its data, its protocol, the paper's experiments."
)
app.add_typer(bench_app, name="bench")
console = Console(markup=False, emoji=False)  # names and paths are printed as they are


def _show_version(asked: bool | None) -> None:
    if asked:
        from r2no import __version__

        typer.echo(f"r2no {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool | None,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Say which version this is."
        ),
    ] = None,
) -> None:
    """Adapt simulation-pretrained neural operators to real measurements."""


def say(*lines: str | Text) -> None:
    """Print lines as they are: no colours for their numbers, no breaks but the terminal's."""
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def say_json(content: Any) -> None:
    """Print values as JSON, by the one rule of our files: no NaN, no infinity."""
    typer.echo(storage.json_text(content), nl=False)


def check_exists(path: Path, words: str) -> None:
    """Refuse a path that names nothing."""
    if not path.exists():
        raise FileMissingError(f"{words} `{path}`. Check the path.")


def shown(text: str) -> str:
    """``text`` without the codes that a file could steer a terminal with."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def command_line() -> str:
    """This command as it was typed, for provenance."""
    return shlex.join(["r2no", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("r2no", "main") else ""


def what_helped(contributions: Iterable[Mapping[str, Any]]) -> Table:
    """What each group of columns is worth, the most useful first."""
    from r2no.report.wording import contribution_rows

    table = Table(
        title="What helped? Held-out RMSE, 100 % is the source's",
        padding=(0, 0, 0, 1),
        title_justify="left",
    )
    table.add_column("group", no_wrap=True)
    for name in ("worth", "without it", "it alone", "all groups"):
        table.add_column(name, justify="left" if name == "worth" else "right")
    for row in contribution_rows(contributions):
        words = (row[key] for key in ("group", "worth", "without", "alone", "together"))
        table.add_row(*(text.replace("\u00a0", " ") for text in words))
    return table
