"""Real processes that work together over gloo, started as torchrun would, without its overhead."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from r2no import ranks
from r2no.errors import R2NOError

ROOT = Path(__file__).parents[2]


def start(arguments: Sequence[str], *, number: int = 2, **more: str) -> list[subprocess.Popen]:
    """``python -m ARGUMENTS`` as each of ``number`` ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = []
    for rank in range(number):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "MASTER_PORT": port}
        own |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": 1}
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        variables = {**os.environ, "PYTHONPATH": path, **{k: str(v) for k, v in own.items()}}
        found.append(
            subprocess.Popen(
                [sys.executable, "-m", *arguments],
                env={**variables, **more},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return found


def ended(started: list[subprocess.Popen], *, within: float = 180) -> list[tuple[int, str, str]]:
    """Exit code and both outputs of each; those that do not end are killed."""
    last = time.monotonic() + within
    found = []
    try:
        for process in started:
            out, err = process.communicate(timeout=max(last - time.monotonic(), 0.1))
            found.append((process.returncode, out, err))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()  # closes its pipes, which would warn in a later test
    return found


def together(
    target: str, *arguments: object, number: int = 2, within: float = 180
) -> list[tuple[int, str, str]]:
    """Call ``module:function`` with these arguments, as texts, in processes of one group."""
    called = ["tests.support.processes", target, *map(str, arguments)]
    return ended(start(called, number=number), within=within)


def main() -> None:
    module, function = sys.argv[1].split(":")
    try:
        with ranks.group():
            getattr(import_module(module), function)(*sys.argv[2:])
    except R2NOError as error:
        print(type(error).__name__, error, file=sys.stderr)
        ranks.ends_at_once()
        sys.exit(1)


if __name__ == "__main__":
    main()
