"""Seconds per window and peak memory of the six networks at the published cylinder config.

Each network runs in a process of its own, on one thread, one window at a time, in eval mode and
without gradients; times are medians of repeated runs after a warm-up. Weights are random. Where
other processes share the machine, CPU seconds are the fairer number. The reference is the code of
RealPDEBench itself on a machine of the same kind.

    python -m benchmarks.backbones [--names unet cno] [--repeats 3]
"""

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

REFERENCE_SECONDS = {
    "unet": 24.0,
    "deeponet": 2.5,
    "fno": 5.9,
    "cno": 39.0,
    "transolver": 28.0,
    "dpot_s": 0.6,
}
SYSTEM, SHAPE = "cylinder", (1, 20, 64, 128, 3)


def measure(name: str, repeats: int) -> dict[str, float]:
    """Time one network in this process."""
    import torch

    from r2no.backbones import build

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, x = build(name, system=SYSTEM).eval(), torch.randn(SHAPE)
    wall, cpu = [], []
    with torch.inference_mode():
        for _ in range(1 + repeats):
            start = time.perf_counter(), time.process_time()
            net(x)
            wall.append(time.perf_counter() - start[0])
            cpu.append(time.process_time() - start[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return {
        "seconds": statistics.median(wall[1:]),
        "cpu_seconds": statistics.median(cpu[1:]),
        "gigabytes": peak * unit / 1e9,
    }


def measure_apart(name: str, repeats: int) -> dict[str, float]:
    """Time one network in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.backbones", "--repeats", str(repeats)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--measure", name], env=environment, check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)


def machine() -> str:
    """Processor, system and versions, in a line."""
    from importlib.metadata import version

    names = [
        line.partition(":")[2].strip()
        for line in _lines(Path("/proc/cpuinfo"))
        if line.startswith("model name")
    ]
    processor = names[0] if names else platform.processor() or platform.machine()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"{processor}, {os.cpu_count()} cores, load {load:.1f}; {platform.system()}; "
        f"Python {platform.python_version()}, torch {version('torch')}"
    )


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--names", nargs="+", choices=list(REFERENCE_SECONDS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=list(REFERENCE_SECONDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.repeats)))
        return
    print(f"{datetime.date.today()}, {machine()}; one thread, one window of {SYSTEM}.\n")
    print("| network | s per window | CPU s | reference s | reference / ours | peak memory |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in options.names or REFERENCE_SECONDS:
        found, reference = measure_apart(name, options.repeats), REFERENCE_SECONDS[name]
        seconds = found["seconds"]
        print(
            f"| {name} | {seconds:.2f} | {found['cpu_seconds']:.2f} | {reference:.1f} "
            f"| {reference / seconds:.1f} | {found['gigabytes']:.2f} GB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
