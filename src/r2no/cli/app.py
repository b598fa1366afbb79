"""The parser that every command registers on, and the console they print to."""

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
