"""docs/reproduction.md lists every element of the paper, with commands that exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from r2no.cli.main import app
from r2no.realpdebench.study.figures import FIGURES
from r2no.realpdebench.study.studies import STUDIES
from r2no.realpdebench.study.values import published_studies

PAGE = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text()
SECTION = PAGE.split("## Every element of the paper")[1].split("\n## ")[0]
COMMANDS = sorted(set(re.findall(r"`(r2no bench [^`]+)`", SECTION)))


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """The command's name and what its parser makes of the arguments; nothing runs."""
    command, words, context = typer.main.get_command(app), shlex.split(text)[1:], None
    while hasattr(command, "commands"):
        context = command.make_context(words[0], list(words), parent=context)
        command, words = command.commands[words[0]], words[1:]
    return command.name, command.make_context(command.name, list(words), parent=context).params


@pytest.mark.parametrize("text", COMMANDS)
def test_listed_command_parses_and_names_what_exists(text):
    name, found = parsed(text)
    if name == "table":
        assert found["study"] in STUDIES
        assert found["run"] is not None or found["study"] in published_studies()
    elif name == "figure":
        assert found["name"] in FIGURES
    else:
        assert name in ("run", "plan", "compare")


def test_every_study_and_figure_is_listed():
    listed = [parsed(text) for text in COMMANDS]
    assert {found["study"] for name, found in listed if name == "table"} == set(STUDIES)
    assert {found["name"] for name, found in listed if name == "figure"} == set(FIGURES)


def test_help_names_every_study_and_figure():
    commands = typer.main.get_command(app).commands["bench"].commands
    for name, known in (("table", STUDIES), ("figure", FIGURES)):
        assert set(known) <= set(re.findall(r"[\w-]+", commands[name].help)), name


def test_every_figure_and_table_of_the_paper_is_listed():
    elements = re.findall(r"^\| ([^|]+) \|", SECTION, re.M)
    for wanted in (
        *(f"Figure 1 ({part})" for part in "abc"),
        *(f"Figure {number}:" for number in (2, 3, 4)),
        "Figures 5 to 9:",
        *(f"Table {number}:" for number in range(1, 7)),
    ):
        assert sum(wanted in element for element in elements) == 1, wanted


def test_files_named_beside_the_elements_exist():
    root = Path(__file__).parents[2]
    for name in re.findall(r"`(tests/[^`]+\.py)`", PAGE):
        assert (root / name).is_file(), name


def test_an_unknown_option_would_be_noticed():
    with pytest.raises(Exception, match="No such option"):
        parsed("r2no bench table main --rnu RUN")
