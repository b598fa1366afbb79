"""Docstrings say what a reader needs: long functions have one, and none is a fragment."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "r2no"
FILES = sorted(SOURCE.rglob("*.py"))
DOZEN = 12
FRAGMENT = re.compile(r"(Likewise|Ditto|The pass|(Of|As) (\S+ ?){1,3})\.")

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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_long_functions_say_what_they_do_in_sentences(path: Path) -> None:
    assert silent(path.read_text()) == []
    assert fragments(path.read_text()) == []


def test_silence_and_fragments_are_noticed() -> None:
    body = "\n".join("    x = 1" for _ in range(DOZEN + 1))
    assert silent(f"def f():\n{body}\n") == ["f"]
    assert silent(f'def f():\n    """Say."""\n{body}\n') == []
    for words in ("Likewise.", "Of one pair.", "As an object.", "Of a mask."):
        assert fragments(f'def f():\n    """{words}"""\n') == [words]
    assert fragments('def f():\n    """Of the windows that are known, the first."""\n') == []
