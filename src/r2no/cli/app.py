"""The parser that every command registers on, and the console they print to."""

import shlex
import sys
from pathlib import Path

import typer
from rich.console import Console

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Adapt simulation-pretrained neural operators to real measurements.",
)
console = Console()


@app.callback()
def _root() -> None:
    """Adapt simulation-pretrained neural operators to real measurements."""


def command_line() -> str:
    """This command as it was typed, for provenance."""
    return shlex.join(["r2no", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("r2no", "main") else ""
