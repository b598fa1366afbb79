"""Run every measurement of this folder, each in a process of its own.

python -m benchmarks [--brief]
"""

import os
import pkgutil
import subprocess
import sys

import benchmarks


def names() -> list[str]:
    """The measurements: every module of this folder but this one."""
    found = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def main() -> None:
    brief = benchmarks.parser(__doc__).parse_args().brief
    environment = {"OMP_NUM_THREADS": "1"} if brief else {}  # threads that spin slow a busy machine
    for name in names():
        print(f"\n== benchmarks.{name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *(["--brief"] if brief else [])]
        subprocess.run(command, env={**environment, **os.environ}, check=True)


if __name__ == "__main__":
    main()
