"""Commands of r2no as forked processes, which start at once, and a workspace for them.

A child has this process's imports, so that it can be killed in its work and not in PyTorch's.
"""

import contextlib
import hashlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import xarray
from validation.attacks.common import toy_source, wave

from r2no.cli import main as cli
from r2no.errors import R2NOError
from r2no.training import save_operator

NAMED, RAW = 3, 4  # codes of a child that ended in an error
RESIDUE = re.compile(r"\.(tmp|lock|old|part|part\.json|partial)$")


@dataclass
class Child:
    """A running process and the pipe that it speaks into, which no limit on files concerns."""

    pid: int
    pipe: int
    said: bytes = b""

    def wait(self) -> int:
        """Its exit code, negative if a signal ended it."""
        while piece := os.read(self.pipe, 65536):
            self.said += piece
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill_after(self, seconds: float, number: int) -> bool:
        """Send it a signal after a while; False if it had ended before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                os.close(self.pipe)
                return False
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        self.wait()
        return True

    def text(self) -> str:
        """What it said."""
        return self.said.decode(errors="replace")


def fork(action: Callable[[], object]) -> Child:
    """Run ``action`` in a child; its code tells named errors from others."""
    sys.stdout.flush()
    sys.stderr.flush()
    there, here = os.pipe()
    pid = os.fork()
    if pid:
        os.close(here)
        return Child(pid, there)
    code = RAW
    try:
        os.close(there)
        os.dup2(here, 1)
        os.dup2(here, 2)
        os.close(here)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        action()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except R2NOError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = NAMED
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def r2no(*arguments: object) -> Child:
    """A command in a child."""

    def action() -> None:
        sys.argv = ["r2no", *map(str, arguments)]
        cli.main()

    return fork(action)


def is_named(child: Child, code: int) -> bool:
    """Whether a child that failed said why, by name and without a traceback."""
    said = child.text()
    return code > 0 and code != RAW and "Traceback" not in said and "Error: " in said


def residue(folder: Path) -> list[str]:
    """Temporary files and locks that stayed below a folder."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if RESIDUE.search(p.name))


def digest(path: Path, *ignored: str) -> dict[str, str]:
    """Hash of a file, or of each file of a folder; of JSON files without the keys ``ignored``."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    found = {}
    for file in files:
        content = file.read_bytes()
        if ignored and file.suffix == ".json":
            values = json.loads(content)
            if isinstance(values, dict):
                values = {k: v for k, v in values.items() if k not in ignored}
            content = json.dumps(values).encode()
        found[str(file.relative_to(path.parent))] = hashlib.sha256(content).hexdigest()
    return found


def own_workspace(folder: Path, *, epochs: int = 3) -> Path:
    """Measurements, a checkpoint and a config below ``folder``; returns the config."""
    waves = torch.stack([wave(seed) for seed in range(8)]).numpy()
    dims = ("trajectory", "time", "y", "x")
    names = {name: (dims, waves[..., number]) for number, name in enumerate("01")}
    xarray.Dataset(names).to_netcdf(folder / "piv.nc")
    save_operator(toy_source(), folder / "source.safetensors", backbone="fno")
    train = {"epochs": epochs, "batch_size": 2, "lr": 1e-3, "validations": 6}
    repair = {"width": 4, "depth": 2, "steps": 3, "train": train}
    config = {
        "data": {"path": str(folder / "piv.nc"), "history": 4, "horizon": 4, "stride": 3},
        "source": {"backbone": "fno", "checkpoint": str(folder / "source.safetensors")},
        "adapt": {"members": 2, "repair": repair, "ensemble": {"radial": 4, "angular": 4}},
        "out": str(folder / "run"),
    }
    path = folder / "own.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return path


def bench_arguments(out: Path) -> list[object]:
    """One pair of the mini study, data and checkpoints included."""
    pair = ["--system", "cylinder", "--backbone", "fno", "--source", "pretrained"]
    return ["bench", "run", "--preset", "mini", *pair, "--members", 1, "--out", out]
