"""The YAML file of an adaptation, as the commands read it."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from r2no.cli.moved import MovedError
from r2no.errors import ConfigError
from r2no.runs import OwnConfig, read_own_config


def read_config(path: Path, overrides: dict[str, Any]) -> OwnConfig:
    """Read the file; one that names a system of the benchmark is told where it belongs.

    Raises:
        MovedError: for a file of options of ``r2no bench adapt``, which stood here before.
    """
    try:
        return read_own_config(path, overrides)
    except ConfigError as error:
        if isinstance(error.__cause__, ValidationError) and _names_a_system(error.__cause__):
            raise MovedError(
                f"`{path}` names a `system`, so it is for RealPDEBench, whose commands now stand "
                f"under `r2no bench`. Run `r2no bench adapt {path}`."
            ) from error
        raise


def _names_a_system(error: ValidationError) -> bool:
    return any(problem["loc"] == ("system",) for problem in error.errors())
