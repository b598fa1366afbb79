"""The shape of the command line: two wings, what moved says so, one screen of help, the schema."""

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from r2no import backbones, runs, storage
from r2no.cli import main
from r2no.cli.app import MovedError, say_json
from r2no.errors import ConfigError
from r2no.runs import OwnConfig, config_schema

GOLDEN = Path(__file__).parents[1] / "golden" / "artifacts" / "v1"
OWN = {"adapt", "demo", "doctor", "evaluate", "inspect", "predict", "report", "schema"}
BENCH = {
    *("fetch", "tiny", "info", "checkpoints", "train", "adapt", "evaluate"),
    *("run", "plan", "submit", "status", "table", "figure", "compare"),
}


def visible(group: Any) -> set[str]:
    return {name for name, command in group.commands.items() if not command.hidden}


def test_commands_stand_in_two_wings() -> None:
    root: Any = typer.main.get_command(main.app)
    assert visible(root) == OWN | {"bench"}
    assert visible(root.commands["bench"]) == BENCH


def test_the_demo_names_every_network() -> None:
    root: Any = typer.main.get_command(main.app)
    told = next(each.help for each in root.commands["demo"].params if each.name == "backbone")
    assert told == f"Source network: {', '.join(backbones.names())}."


def test_printed_json_is_what_a_file_would_hold(tmp_path: Path, capsys) -> None:
    content = {"scores": {"r2": -math.inf, "rmse": math.nan, "mae": 0.25}, "split": "test"}
    say_json(content)
    storage.write_json(tmp_path / "scores.json", content)
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "scores.json").read_text()
    json.loads(printed, parse_constant=pytest.fail)


def test_help_of_adapt_fits_one_screen() -> None:
    shown = CliRunner().invoke(main.app, ["adapt", "--help"], env={"COLUMNS": "80"}).output
    lines = shown.rstrip().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert all(word in shown for word in ("--out", "--members", "--seed", "doctor", "Example"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("train --system fsi", "bench train --system fsi"),
        ("train --help", "bench train --help"),
        ("data fetch --root 'my data' -y", "bench fetch --root 'my data' -y"),
        ("data tiny ROOT", "bench tiny ROOT"),
        ("data info ROOT --json", "bench info ROOT --json"),
        ("checkpoints dpot --size S", "bench checkpoints dpot --size S"),
        ("adapt --system fsi --source x.pth", "bench adapt --system fsi --source x.pth"),
        ("adapt c.yaml --data=ROOT", "bench adapt c.yaml --data=ROOT"),
        ("evaluate a.r2no --data ROOT", "bench evaluate a.r2no --data ROOT"),
        ("evaluate a.r2no --no-probes", "bench evaluate a.r2no --no-probes"),
    ],
)
def test_what_moved_says_where_it_went(old, new, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["r2no", *shlex.split(old)])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("MovedError: ")
    assert f"Run `r2no {new}`." in said


@pytest.mark.parametrize("command", ["adapt", "doctor"])
def test_file_of_the_benchmark_is_told_where_it_belongs(command, tmp_path: Path, r2no) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text("system: cylinder\ndata: ROOT\nsource: x.pth\n")
    with pytest.raises(MovedError, match=r"r2no bench adapt .*bench\.yaml"):
        r2no(command, path)
    path.write_text("data: ROOT\nsource: x.pth\n")
    with pytest.raises(ConfigError, match="`data`"):
        r2no(command, path)


def test_artifact_without_a_config_is_told_how_it_is_scored(tmp_path: Path, r2no) -> None:
    with pytest.raises(ConfigError, match=r"keeps no config of `r2no adapt`.*evaluate\(windows\)"):
        r2no("evaluate", GOLDEN)


def test_scores_that_are_no_numbers_are_printed_as_json_that_others_read(
    tmp_path: Path, r2no, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "evaluate_own", lambda *_, **__: {"frmse_mid": math.nan})
    said = r2no("evaluate", GOLDEN, "--output", tmp_path / "scores.json")
    assert json.loads(said, parse_constant=pytest.fail) == {"frmse_mid": "nan"}
    assert said == (tmp_path / "scores.json").read_text()


def test_unknown_option_is_no_moved_one(r2no) -> None:
    result = CliRunner().invoke(main.app, ["adapt", "own.yaml", "--memebrs", "3"])
    assert result.exit_code == 2
    assert "No such option" in result.output


def test_schema_has_every_key_with_its_meaning(tmp_path: Path, r2no) -> None:
    schema = json.loads(r2no("schema"))
    assert schema == config_schema()
    assert schema["title"] == "r2no adapt"
    assert set(schema["properties"]) == set(OwnConfig.model_fields)
    assert set(schema["required"]) == {"data", "source"}
    models = [schema, *schema["$defs"].values()]
    for model in models:
        assert model["additionalProperties"] is False  # so that editors mark misspelt keys
        assert model["description"]
        for name, part in model["properties"].items():
            assert part.get("description"), (model["title"], name)
            assert "title" not in part
    r2no("schema", "--output", tmp_path / "schema.json")
    assert json.loads((tmp_path / "schema.json").read_text()) == schema
    text = json.dumps(schema)
    assert "``" not in text
    assert ":func:" not in text
    assert {"SplitConfig", "AdaptSettings", "TrainSettings"} <= set(schema["$defs"])
