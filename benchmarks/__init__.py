"""Measured claims: speed and memory, as ratios within one run.

Each module is one measurement, ``python -m benchmarks.NAME`` from the root of the repository: it
makes its own data, needs no argument and no network. With ``--brief`` it runs in seconds on small
sizes, to show that it works; the numbers then mean nothing. ``python -m benchmarks`` runs all.
"""

import argparse
import datetime
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True)
class Size:
    """Of the windows, the modules, their loops and the partition; as published."""

    grid: tuple[int, int] = (64, 128)
    frames: int = 20
    width: int = 32
    steps: int = 12
    radial: int = 128


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options that all measurements share; ``description`` is the module's docstring."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--brief", action="store_true", help="small sizes: seconds, not a result")
    return made


def print_conditions(*, brief: bool) -> None:
    """When and on what this was measured, above every table."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(
        f"{datetime.date.today()}, {_processor()}, {os.cpu_count()} cores, load {load:.1f}; "
        f"{platform.system()}; Python {platform.python_version()}, torch {version('torch')}, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    if brief:
        print("Brief: small sizes, which show that this runs. The numbers are no result.")
    print()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def peak_megabytes() -> float:
    """Largest resident memory of this program so far.

    On Linux not ``ru_maxrss``: that of a child begins with the peak of the process that started
    it, so that a child of a large parent never seems to grow.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def share(part: float, whole: float) -> str:
    """``part / whole`` for a table; a dash where nothing was measured to divide by."""
    return f"{part / whole:.2f}" if whole > 0 else "-"
