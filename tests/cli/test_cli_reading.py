"""What commands read, and from where: nothing from the working folder but what was named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from validation.attacks import hostile_makers as make
from validation.attacks.optional import OPTIONAL

from r2no.cli.app import shown
from r2no.errors import ConfigError, FileDamagedError
from r2no.operators import from_python


def test_python_m_r2no_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    for name in OPTIONAL.split():
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    make.npy((4, 3, 3, 2), content=bytes(4 * 3 * 3 * 2 * 4))(tmp_path)
    command = [sys.executable, "-m", "r2no", "inspect", "x.npy", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["frames"] == [4]


@pytest.mark.parametrize("name", ["r2no_factory_here", "r2no_factory_there"])
def test_named_factory_is_found_in_the_working_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "from torch import nn\nimport sys\npath = list(sys.path)\nNet = nn.Identity\n"
    (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    from_python(f"{name}:Net")
    assert sys.path == before
    assert sys.modules[name].path[-1] == os.getcwd()  # last, so it hides nothing
    assert sys.modules[name].path[:-1] == before


def test_factory_that_is_nowhere_leaves_the_path_alone() -> None:
    before = list(sys.path)
    for name in ("r2no_factory_nowhere:Net", ".relative:Net", "a..b:Net", "no colon"):
        with pytest.raises(ConfigError):
            from_python(name)
    assert sys.path == before


def test_inspect_counts_gaps_of_a_sample(tmp_path: Path, r2no) -> None:
    path = make.hdf5("x.h5", make.giant_field)(tmp_path)
    with pytest.raises(FileDamagedError, match="--allow-sparse"):
        r2no("inspect", path)
    found = json.loads(r2no("inspect", path, "--allow-sparse", "--json"))
    assert found["frames"] == [10**8]
    assert found["missing"] == {"u": 0.0}
    assert 0 < found["counted_frames"] <= 256


def test_names_are_printed_as_they_are(tmp_path: Path, r2no) -> None:
    folder = tmp_path / "x[/b] :smile:"
    folder.mkdir(parents=True)  # x[ and b]
    np.save(folder / "u.npy", np.zeros((4, 3, 3, 2), "f4"))
    assert "x[/b] :smile:" in r2no("inspect", folder / "u.npy")
    out = r2no("bench", "tiny", folder / "out", "--system", "fsi")
    assert "x[/b] :smile:" in out


def test_codes_for_the_terminal_are_shown() -> None:
    assert shown("a\x1b[2Jb\x07é\nc") == "a\\x1b[2Jb\\x07é\nc"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[" * 100_000, "nested deeper"),
        ('{"files": NaN}', "NaN is no number"),
        ("[]", "of format 'list'"),
        ('{"a": 1, "a": 2}', "'a' is there twice"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "report", "evaluate"])
def test_hostile_manifests_are_refused(
    content: str, reason: str, command: str, tmp_path: Path, r2no
) -> None:
    path = make.manifest(content)(tmp_path)
    with pytest.raises(FileDamagedError, match=reason):
        r2no(command, path)
