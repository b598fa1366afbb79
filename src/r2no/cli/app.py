"""The parsers that commands register on, how they print, and where went what stood elsewhere."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from r2no.errors import ConfigError, FileMissingError, R2NOError

if TYPE_CHECKING:
    from r2no.progress import Reporter

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Adapt simulation-pretrained neural operators to real measurements.",
)


class _Later(TyperGroup):
    """A group whose commands are made when one is asked for: their configs bring PyTorch."""

    _known: dict[str, Any]

    @property  # type: ignore[override]
    def commands(self) -> dict[str, Any]:
        """By name."""
        if not self._known:
            self._known = _bench_commands()
        return self._known

    @commands.setter
    def commands(self, known: dict[str, Any]) -> None:
        self._known = known


def _bench_commands() -> dict[str, Any]:
    """The commands of ``r2no bench`` by name."""
    import r2no.cli.bench  # noqa: F401  (they register themselves)

    group: Any = typer.main.get_group(bench_app)
    return group.commands  # type: ignore[no-any-return]


bench_app = typer.Typer(
    cls=_Later,
    no_args_is_help=True,
    help="RealPDEBench: its data, its protocol, the paper's experiments.",
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
    from r2no import storage

    typer.echo(storage.json_text(content), nl=False)


def reporter() -> "Reporter":
    """What shows progress on the terminal."""
    from r2no.progress import Reporter

    return Reporter()


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
        given = {word.split("=")[0] for word in args if word.startswith("--")}
        unknown = given - mine - {"--help"}
        if unknown and unknown & _bench_options(name):
            error = moved(name, f"bench {name}", args)
            raise MovedError(f"{error} With data of your own, settings stand in the YAML file.")
        return super().parse_args(ctx, args)


def _bench_options(command: str) -> set[str]:
    """The options of a command of ``r2no bench``."""
    parameters = _bench_commands()[command].params
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
