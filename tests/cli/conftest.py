"""Small data sets of all systems, written once per session, and a runner of commands."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from r2no.cli.main import app
from r2no.realpdebench import write_tiny

Run = Callable[..., str]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every system as Arrow, and fsi alone as HDF5 in a second root."""
    root = tmp_path_factory.mktemp("benchmark")
    write_tiny(root / "arrow", layouts=["arrow"])
    write_tiny(root / "hdf5", ["fsi"], layouts=["hdf5"])
    return root


@pytest.fixture
def cylinder(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the cylinder, free to be damaged."""
    shutil.copytree(tiny / "arrow" / "cylinder", tmp_path / "data" / "cylinder")
    return tmp_path / "data"


@pytest.fixture(scope="session")
def r2no() -> Run:
    """Run a command and return its standard output; its errors are raised."""

    def run(*arguments: object, stdin: str | None = None) -> str:
        result = CliRunner().invoke(app, [str(item) for item in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run
