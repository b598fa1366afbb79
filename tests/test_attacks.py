"""A few trials of the attacks in `validation/attacks`; their full table is in docs/results.md."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FEW = [
    ["artifact_bits", "--flips", "5", "--every", "1999"],
    ["artifact_edits", "--thin", "211"],
    ["api", "--thin", "23"],
]


@pytest.mark.parametrize("script", FEW, ids=[script[0] for script in FEW])
def test_attack_ends_in_named_errors_or_right_results(script: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", f"validation.attacks.{script[0]}", *script[1:]],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "| refused |" in run.stdout
