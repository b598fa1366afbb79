"""Helpers live in ``tests/support`` and ``conftest.py``: no test module lends things to another."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.memory import memory_for_no_more_than

TESTS = Path(__file__).parent
FILES = sorted(path for path in TESTS.rglob("*.py") if "golden" not in path.parts)
HOMES = ("tests.support", "tests.golden", "tests")


def imported(source: str) -> Iterator[str]:
    """The modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def borrowed(source: str) -> list[str]:
    """What is imported from the tests, but not from the helpers' home."""
    found = [n for n in imported(source) if n.split(".")[0] in ("tests", "", "conftest")]
    return [n for n in found if n not in HOMES and not n.startswith(HOMES[:2])]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_helpers_come_from_support(path: Path) -> None:
    assert borrowed(path.read_text()) == []
    named = path.name.startswith("test_") or path.name in ("conftest.py", "__init__.py")
    assert named or path.parent == TESTS / "support", f"move {path} to tests/support"


def test_borrowing_is_noticed() -> None:
    lines = ("from tests.adaptation.test_adapt import SETTINGS", "from tests.conftest import rng")
    inside = "def f():\n    from .test_other import helper\n"
    for line in (*lines, "import tests.cli.test_cli_data", inside):
        assert len(borrowed(line)) == 1, line
    assert borrowed("from tests.support import piv\nfrom tests.support.piv import flow") == []


def test_growth_of_memory_is_noticed() -> None:
    with memory_for_no_more_than(64):
        np.ones(32 * 2**20, np.uint8)
    with pytest.raises(AssertionError, match="grew by"), memory_for_no_more_than(64):
        np.ones(128 * 2**20, np.uint8)
