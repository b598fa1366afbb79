"""How commands share a group of options."""

from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from r2no.cli import options
from r2no.cli.main import app
from r2no.realpdebench.protocol.config import AdaptConfig, EvaluateConfig, TrainConfig


def group(
    grid: Annotated[int, typer.Option(help="Points.")] = 3,
    names: Annotated[list[str] | None, typer.Option("--name")] = None,
) -> None:
    """Options that a command takes besides its own."""


def program(*, first: bool) -> tuple[typer.Typer, dict[str, Any]]:
    app, seen = typer.Typer(), {}

    @app.command()
    @options.also(group, first=first)
    def command(path: str, loud: bool = False, **more: Any) -> None:
        seen.update(path=path, loud=loud, **more)

    return app, seen


def test_a_command_gets_the_options_of_a_group_beside_its_own() -> None:
    app, seen = program(first=False)
    given = ["here", "--loud", "--grid", "5", "--name", "u", "--name", "v"]
    assert CliRunner().invoke(app, given).exit_code == 0
    assert seen == {"path": "here", "loud": True, "grid": 5, "names": ["u", "v"]}


def test_options_of_a_group_keep_their_defaults() -> None:
    app, seen = program(first=True)
    assert CliRunner().invoke(app, ["here"]).exit_code == 0
    assert (seen["grid"], seen["names"] or []) == (3, [])


def test_a_group_stands_behind_the_commands_own_options_or_first() -> None:
    for first in (False, True):
        parameters = typer.main.get_command(program(first=first)[0]).params
        named = [parameter.name for parameter in parameters if parameter.name != "help"]
        own, shared = ["path", "loud"], ["grid", "names"]
        assert named[:4] == (shared + own if first else own + shared)


def test_what_was_not_given_is_left_to_the_config() -> None:
    assert options.given(a=None, b=[], c=0, d=False, e="x") == {"c": 0, "d": False, "e": "x"}


def test_options_of_the_protocol_are_fields_of_its_configs() -> None:
    group = typer.main.get_command(app).commands["bench"]
    configs = {"train": TrainConfig, "adapt": AdaptConfig, "evaluate": EvaluateConfig}
    for name, config in configs.items():
        known = {parameter.name for parameter in group.commands[name].params}
        assert known - {"config", "help"} == config.model_fields.keys()
