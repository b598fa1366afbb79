"""Commands, options and files that stood elsewhere before, and where they are now."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from r2no.cli.app import app, bench_app
from r2no.errors import ConfigError, R2NOError


class MovedError(R2NOError):
    """A command or an option is somewhere else now; the message is the new command line."""


def moved(old: str, new: str, rest: list[str]) -> MovedError:
    """The error that names a command line with the same arguments at its new place."""
    return MovedError(
        f"`r2no {shlex.join([*old.split(), *rest])}` is for RealPDEBench, whose commands now stand "
        f"under `r2no bench`. Run `r2no {shlex.join([*new.split(), *rest])}`."
    )


@contextmanager
def config_told(path: Path) -> Iterator[None]:
    """Reading a YAML file that names a system of the benchmark says where it belongs.

    Raises:
        MovedError: for a file of options of ``r2no bench adapt``, which stood here before.
    """
    from pydantic import ValidationError

    try:
        yield
    except ConfigError as error:
        cause = error.__cause__
        wrong = cause.errors() if isinstance(cause, ValidationError) else []
        if any(problem["loc"] == ("system",) for problem in wrong):
            raise MovedError(
                f"`{path}` names a `system`, so it is for RealPDEBench, whose commands now stand "
                f"under `r2no bench`. Run `r2no bench adapt {path}`."
            ) from error
        raise


class HalfMoved(TyperCommand):
    """A command of which the benchmark's options went to ``r2no bench``.

    Whoever gives one of them wants the benchmark, and is told the command line that does it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse the options that moved, before the parser calls them unknown."""
        name = str(self.name)
        mine = {option for parameter in self.params for option in parameter.opts}
        given = {word.split("=")[0] for word in args}
        if given & (_bench_options(name) - mine - {"--help"}):
            error = moved(name, f"bench {name}", args)
            raise MovedError(f"{error} With data of your own, settings stand in the YAML file.")
        return super().parse_args(ctx, args)


def _bench_options(command: str) -> set[str]:
    """The options of a command of ``r2no bench``."""
    group: Any = typer.main.get_command(bench_app)
    parameters = group.commands[command].params
    names = {name for each in parameters for name in (*each.opts, *each.secondary_opts)}
    return {name for name in names if name.startswith("--")}


_NOW = {"checkpoints": "bench checkpoints", "data": "bench", "train": "bench train"}


class Moved(TyperCommand):
    """A command that only says where it went, whatever its arguments are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse them all, ``--help`` included."""
        raise moved(str(self.name), _NOW[str(self.name)], args)


def _nothing() -> None:
    """Never called: the arguments are refused before."""


for _name in _NOW:
    app.command(_name, cls=Moved, hidden=True)(_nothing)
