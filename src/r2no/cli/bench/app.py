"""The parser that the benchmark's commands register on."""

import typer

from r2no.cli.app import app

bench_app = typer.Typer(
    no_args_is_help=True, help="RealPDEBench: its data, its protocol, the paper's experiments."
)
app.add_typer(bench_app, name="bench")
