"""The parser that every command registers on, and the console they print to."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from r2no.errors import FileMissingError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Adapt simulation-pretrained neural operators to real measurements.",
)
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
