"""Functions fit a screen; docstrings say what a reader needs, and none is a fragment."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "r2no"
FILES = sorted(SOURCE.rglob("*.py"))
DOZEN = 12
FRAGMENT = re.compile(r"(Likewise|Ditto|The pass|(Of|As) (\S+ ?){1,3})\.")

SCREEN, ARGUMENTS = 60, 10
#: Whose arguments are settings: the two data sets, the estimator, and the one call of all.
SETTINGS = {
    ("ArrayWindows", "__init__"),
    ("RealPDEBench", "__init__"),
    ("SpectralEnsemble", "__init__"),
    ("", "adapt"),
}

Definition = ast.FunctionDef | ast.ClassDef


def definitions(source: str) -> Iterator[tuple[Definition, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node, ast.get_docstring(node) or ""


def silent(source: str) -> list[str]:
    """Functions of more than a dozen lines that do not say what they do; dunders are known."""
    return [
        node.name
        for node, words in definitions(source)
        if isinstance(node, ast.FunctionDef)
        and not (words or node.name.startswith("__"))
        and node.end_lineno - node.body[0].lineno >= DOZEN
    ]


def fragments(source: str) -> list[str]:
    """Docstrings that make sense only beside their neighbours."""
    return [words for _, words in definitions(source) if FRAGMENT.fullmatch(words)]


def oversized(source: str, settings: set[tuple[str, str]] = SETTINGS) -> list[str]:
    """Functions beyond a screen or with more arguments than one can keep apart."""
    tree = ast.parse(source)
    home = {
        id(part): node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for part in node.body
    }
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and (
            node.end_lineno - node.lineno >= SCREEN
            or (
                len(node.args.args + node.args.kwonlyargs) - (id(node) in home) > ARGUMENTS
                and (home.get(id(node), ""), node.name) not in settings
                and not any(".command" in ast.unparse(each) for each in node.decorator_list)
            )
        )
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_functions_fit_a_screen(path: Path) -> None:
    assert oversized(path.read_text()) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_long_functions_say_what_they_do_in_sentences(path: Path) -> None:
    assert silent(path.read_text()) == []
    assert fragments(path.read_text()) == []


def test_silence_length_and_fragments_are_noticed() -> None:
    lines = "\n".join("    x = 1" for _ in range(SCREEN))
    names = ", ".join(f"a{number}" for number in range(ARGUMENTS + 1))
    assert oversized(f"def f():\n{lines}\n") == ["f"]
    assert oversized(f"def f({names}): ...\n") == ["f"]
    assert oversized(f"@app.command()\ndef f({names}): ...\n") == []
    assert oversized(f"class A:\n    def f(self, {names[4:]}): ...\n") == []
    body = "\n".join("    x = 1" for _ in range(DOZEN + 1))
    assert silent(f"def f():\n{body}\n") == ["f"]
    assert silent(f'def f():\n    """Say."""\n{body}\n') == []
    for words in ("Likewise.", "Of one pair.", "As an object.", "Of a mask."):
        assert fragments(f'def f():\n    """{words}"""\n') == [words]
    assert fragments('def f():\n    """Of the windows that are known, the first."""\n') == []
