"""Small data sets, written once; tests that change files work on a copy."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from r2no.realpdebench import SYSTEMS, write_tiny

GOLDEN = Path(__file__).parents[1] / "golden" / "realpdebench"


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def golden() -> dict[str, dict[str, Any]]:
    return {name: json.loads((GOLDEN / f"{name}.json").read_text()) for name in SYSTEMS}


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """The cylinder in both layouts, free to be damaged."""
    shutil.copytree(root / "cylinder", tmp_path / "data" / "cylinder")
    shutil.copy(root / "version.json", tmp_path / "data")
    return tmp_path / "data"
