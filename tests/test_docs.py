"""README and docs: labels, links and figures exist; every snippet, config and command runs.

A page is a session in a folder of its own, block after block: ``python`` is executed, ``yaml`` is
written under the name in its first line and read, ``bash`` runs line by line through the real
command line. Two remarks in HTML steer this: ``<!-- options only -->`` before a block of commands
that need a network, a benchmark or minutes, whose options are checked instead; ``<!-- output -->``
before a text block that must be what the last Python block printed.
"""

import ast
import contextlib
import importlib
import io
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import r2no
from r2no.cli.main import app
from r2no.runs import read_own_config

ROOT = Path(__file__).parent.parent
DOCS, PACKAGE = ROOT / "docs", Path(r2no.__file__).parent
EXAMPLES = DOCS / "examples"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
SESSIONS = [
    page for page in PAGES if re.search(r"^```(python|bash|yaml)\n", page.read_text(), re.M)
]
TOYS = ("piv.nc", "simulation.nc", "weights.pt")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the remark in HTML before it."""

    language: str
    text: str
    remark: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    pattern = r"(?:^<!-- ([\w ]+) -->\n)?^```([^\n]*)\n(.*?)^```$"
    for found in re.finditer(pattern, text, flags=re.MULTILINE | re.DOTALL):
        remark, language, content = found.groups(default="")
        yield Block(language, content, remark, text.count("\n", 0, found.start(3)))


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


# -- what pages cite ------------------------------------------------------------------------------


def test_cited_labels_exist_in_the_method_page():
    page = (DOCS / "method.md").read_text()
    defined = set(re.findall(r"^## \((M\d+)\)", page, flags=re.MULTILINE))
    cited = set()
    for path in PACKAGE.rglob("*.py"):
        for first, last in re.findall(r"\bM(\d{1,2})(?:-M(\d{1,2}))?\b", path.read_text()):
            cited |= {f"M{n}" for n in range(int(first), int(last or first) + 1)}
    assert defined == {f"M{n}" for n in range(1, 17)}
    assert cited == defined


def test_public_names_exist():
    assert all(hasattr(r2no, name) for name in r2no.__all__)


def test_api_page_names_exist_and_hold_every_public_callable():
    text = (DOCS / "api.md").read_text()
    named = re.findall(r"auto(?:function|class|module):: r2no\.([\w.]+)", text)
    assert sorted(set(named)) == sorted(named)  # the build refuses a name that comes twice
    for name in named:
        found: Any = r2no
        for part in name.split("."):
            found = getattr(found, part) if hasattr(found, part) else _submodule(name)
        assert found.__doc__, name
    callables = {name for name in r2no.__all__ if callable(getattr(r2no, name))}
    assert callables <= set(named)
    members = re.findall(r"auto\w+:: r2no\.([\w.]+)\(?\)?\n   :members: ([\w, ]+)", text)
    for name, listed in members:
        owner = _submodule(name)
        assert all(hasattr(owner, member) for member in listed.split(", ")), name


def test_names_that_snippets_import_are_in_the_reference():
    text = (DOCS / "api.md").read_text()
    for page in SESSIONS:
        for block in (block for block in blocks(page) if block.language == "python"):
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("r2no"):
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                    assert all(f":: {name}" in text or f":: {name}." in text for name in names)


def _submodule(name: str) -> Any:
    module, _, attribute = f"r2no.{name}".rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError:
        return importlib.import_module(f"r2no.{name}")


def test_every_page_is_in_the_table_of_contents():
    listed = set()
    for block in blocks(DOCS / "index.md"):
        if block.language == "{toctree}":
            listed |= {line for line in block.text.splitlines() if line and ":" not in line}
    assert listed == {page.stem for page in DOCS.glob("*.md")} - {"index"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        assert not target.startswith("http"), f"{target}: pages must not need the network"
        name, _, anchor = target.partition("#")
        if name.startswith("_build/"):  # made by the build
            assert Path(name).name in _constant(DOCS / "figures.py", "FIGURES")
            continue
        file = (page.parent / name) if name else page
        assert file.is_file(), target
        if anchor:
            assert anchor in {_slug(heading) for heading in _headings(file)}, target


def test_tables_of_the_readme_are_those_of_the_results_page():
    """Numbers have one home: every row of README's tables stands in docs/results.md."""
    known = [_rows(text) for text in re.split(r"\n\s*\n", (DOCS / "results.md").read_text())]
    tables = re.split(r"\n\s*\n", (ROOT / "README.md").read_text())
    shown = [rows for rows in map(_rows, tables) if any(map(_is_number, rows[-1][1:]))]
    assert shown
    for rows in shown:
        (home,) = [table for table in known if table and set(rows[0]) <= set(table[0])]
        places = [home[0].index(column) for column in rows[0]]
        found = [[row[place] for place in places] for row in home]
        assert all(row in found for row in rows), rows


def _rows(text: str) -> list[list[str]]:
    """Cells of a table, without the line under its head; one empty row for anything else."""
    lines = [line for line in text.strip().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if not set("".join(row)) <= set("-: ")] or [[""]]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?\d+(\.\d+)?", text) is not None


def _headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _constant(path: Path, name: str) -> Any:
    """A literal that a module of the site defines, without importing it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} defines no {name}")


def test_pages_include_only_what_exists_or_the_build_makes():
    made = {f"_build/reference/{name}" for name in _constant(DOCS / "reference.py", "FILES")}
    for page in DOCS.glob("*.md"):
        for block in blocks(page):
            if block.language.startswith(("{include}", "{literalinclude}")):
                name = block.language.split()[1]
                assert name in made or (DOCS / name).is_file(), name


def test_faq_shows_messages_that_the_code_raises():
    shown = [b.text.strip() for b in blocks(DOCS / "faq.md") if b.language == "text"]
    assert len(shown) >= 20
    for text in shown:
        name, _, message = text.partition(": ")
        assert issubclass(getattr(r2no.errors, name), r2no.errors.R2NOError)
        wanted = _normal(message)
        assert any(kind == name and _normal(m).startswith(wanted) for kind, m in _raises()), text


def _normal(message: str) -> str:
    """Messages with … for what varies, whatever stands around it (quotes, brackets, digits)."""
    text = re.sub(r"`?…`?", "…", re.sub(r"\s+", " ", message))
    text = re.sub(r"…( ?\(…\))?", "…", text)
    return re.sub(r"…+", "…", text).rstrip("….: ")


@cache
def _raises() -> list[tuple[str, str]]:
    """(class, message) of every ``raise Name(...)`` or ``return Name(...)`` in the package."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            call = getattr(node, "exc", None) if isinstance(node, ast.Raise) else None
            if isinstance(node, ast.Return):
                call = node.value
            if isinstance(call, ast.Call) and call.args:
                name = getattr(call.func, "id", "")
                if name.endswith("Error"):
                    found.append((name, _template(call.args[0])))
    return found


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _template(node.left) + _template(node.right)
    return "…"


# -- sessions -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What ``python toy.py`` leaves behind, made once."""
    folder = tmp_path_factory.mktemp("toys")
    with _importable(EXAMPLES):
        import toy

        toy.main(folder)
        yield folder


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in ("toy", "mynet"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_snippets_run(
    page: Path, toys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    for name in TOYS:
        shutil.copy(toys / name, tmp_path)
    namespace: dict[str, object] = {}
    printed = ""
    for block in blocks(page):
        if block.language == "python":
            code = compile("\n" * block.line + block.text, str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, namespace)
            printed = out.getvalue()
        elif block.language == "yaml":
            _read_yaml(block, tmp_path)
        elif block.language == "bash":
            for line in block.text.splitlines():
                _run_line(line, only_options=block.remark == "options only")
        elif block.remark == "output":
            assert block.text.rstrip() == printed.rstrip()
        else:
            assert block.language == "text" or block.language.startswith("{"), block
    if page.stem == "README":
        assert (tmp_path / "wave.r2no" / "manifest.json").exists()
    if page.stem == "tour":
        made = ("piv.r2no", "forecast.nc", "report.html", "runs/piv/model.r2no", "scores.json",
                "forecast-cli.nc", "report-cli.html")  # fmt: skip
        assert all((tmp_path / name).exists() for name in made)
        both = [r2no.load(name, trust_source=True) for name in (made[0], made[3])]
        assert both[0].ensemble.weights.equal(both[1].ensemble.weights)  # "both do the same"


def _read_yaml(block: Block, folder: Path) -> None:
    """The first line names the file, as a comment."""
    path = folder / block.text.splitlines()[0].removeprefix("# ")
    assert path.suffix == ".yaml"
    path.write_text(block.text)
    read_own_config(path)


def _run_line(line: str, *, only_options: bool) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    program, arguments = words[0], words[1:]
    if program == "r2no":
        _check_command(arguments)
        if not only_options and "--help" not in arguments:
            _run_command(arguments)
    elif program == "make":
        targets = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{name}:", targets, re.M) for name in arguments), line
    elif program == "pip":
        _check_extras(line)
    else:
        assert line.split("#")[0].strip() in (
            "python toy.py",  # the fixture has done it
            "export PYTHONPATH=.",
            ". .venv/bin/activate",
        ), line


def _check_extras(text: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"\[([\w,]+)\]", text):
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), text


def _run_command(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output


def _check_command(arguments: list[str]) -> None:
    """Let the real parser read a command, without running it."""
    if arguments == ["--help"]:
        return
    command, rest, context = typer.main.get_command(app), arguments, None
    while hasattr(command, "commands"):
        assert rest[0] in command.commands, arguments
        assert not command.commands[rest[0]].hidden, f"{arguments} has moved"
        context = command.make_context(rest[0], list(rest), parent=context)
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context("r2no", list(rest), parent=context)  # a usage error fails the test


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_named_in_the_text_exist(page: Path) -> None:
    """Inline commands may hold placeholders, so their names and options are looked up."""
    for text in re.findall(r"`([^`\n]+)`", prose(page)):
        words = [word for word in text.split() if not re.fullmatch(r"[A-Z_]+=\S+", word)]
        if words[:1] == ["r2no"] and len(words) > 1:
            _look_up(words[1:])
        elif words[:1] == ["python"] and len(words) > 1:
            _look_up_script(words[1:])
        elif words[:1] == ["make"] and len(words) == 2:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), text
        elif words[:2] == ["pip", "install"]:
            _check_extras(text)


def _look_up(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
        assert not command.hidden, f"{command.name} {words} has moved"
    groups = hasattr(command, "commands")
    if groups and words and words[0].islower() and "|" not in words[0]:
        raise AssertionError(f"there is no command {words}")
    known = {option for parameter in command.params for option in (*parameter.opts, "--help")}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    for word in words:
        if word.startswith("--") and not groups:
            assert word in known, words


def _look_up_script(words: list[str]) -> None:
    if words[0] == "-m":
        path = ROOT / Path(*words[1].split("."))
        assert path.with_suffix(".py").is_file() or path.is_dir(), words
    elif words[0].endswith(".py"):
        assert (ROOT / words[0]).is_file() or (EXAMPLES / words[0]).is_file(), words


def test_an_unknown_option_in_a_page_is_noticed():
    with pytest.raises(Exception, match="No such option"):
        _check_command(["adapt", "own.yaml", "--memebrs", "3"])
    with pytest.raises(AssertionError):
        _look_up(["predict", "--ouput", "x.nc"])
    with pytest.raises(AssertionError, match="has moved"):
        _check_command(["data", "info", "ROOT"])
    with pytest.raises(AssertionError, match="has moved"):
        _look_up(["train", "CONFIG"])
