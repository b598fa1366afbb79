"""Tables of settings and commands for the API page, written by the build from the code itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairSettings
from r2no.cli.main import app
from r2no.training import TrainSettings

SETTINGS = (AdaptSettings, RepairSettings, EnsembleSettings, TrainSettings)
FILES = ("settings.md", "commands.md")


def make(folder: Path) -> None:
    """Write the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = "\n\n".join(settings_table(model) for model in SETTINGS)
    (folder / "settings.md").write_text(tables + "\n")
    (folder / "commands.md").write_text(command_table() + "\n")


def settings_table(model: type[BaseModel]) -> str:
    """Names, defaults and, where there is one, the meaning of a model's settings."""
    rows = [f"| `{model.__name__}` | default | |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        nested = isinstance(default, BaseModel)
        shown = f"see {type(default).__name__}" if nested else f"`{default!r}`"
        rows.append(f"| `{name}` | {shown} | {field.description or ''} |")
    return "\n".join(rows)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of ``r2no`` by its full name."""
    yield from _below("r2no", typer.main.get_command(app))


def command_table() -> str:
    """Every command with the first line of its help."""
    rows = ["| command | what it does |", "|---|---|"]
    for name, command in commands():
        rows.append(f"| `{name}` | {(command.help or '').splitlines()[0]} |")
    return "\n".join(rows)


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", {})
    if not children:
        yield name, command
    for child, found in sorted(children.items()):
        if found.hidden:  # only says where a command went
            continue
        yield from _below(f"{name} {child}", found)
