"""Seconds per window and peak memory of the six networks at the published cylinder config.

Each network runs in a process of its own, on one thread, one window at a time, in eval mode and
without gradients; times are medians of repeated runs after a warm-up. Weights are random. Where
other processes share the machine, CPU seconds are the fairer number. The reference is the code of
RealPDEBench itself on a machine of the same kind.

    python -m benchmarks.backbones [--names unet cno] [--repeats 3] [--brief]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from benchmarks import parser, peak_megabytes, print_conditions

REFERENCE_SECONDS = {
    "unet": 24.0,
    "deeponet": 2.5,
    "fno": 5.9,
    "cno": 39.0,
    "transolver": 28.0,
    "dpot_s": 0.6,
}
SYSTEM, SHAPE, BRIEF_SHAPE = "cylinder", (20, 64, 128, 3), (8, 16, 24, 3)


def measure(name: str, repeats: int, brief: bool) -> dict[str, float]:
    """Time one network in this process."""
    import torch

    from r2no.backbones import build, published_config, small_config

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape, config = SHAPE, published_config(name, SYSTEM)
    if brief:
        shape, config = BRIEF_SHAPE, small_config(name, shape_in=BRIEF_SHAPE, shape_out=BRIEF_SHAPE)
    net, x = build(name, config=config).eval(), torch.randn(1, *shape)
    wall, cpu = [], []
    with torch.inference_mode():
        for _ in range(1 + repeats):
            start = time.perf_counter(), time.process_time()
            net(x)
            wall.append(time.perf_counter() - start[0])
            cpu.append(time.process_time() - start[1])
    return {
        "seconds": statistics.median(wall[1:]),
        "cpu_seconds": statistics.median(cpu[1:]),
        "gigabytes": peak_megabytes() * 2**20 / 1e9,
    }


def measure_apart(name: str, repeats: int, brief: bool) -> dict[str, float]:
    """Time one network in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.backbones", "--repeats", str(repeats)]
    command += ["--brief"] if brief else []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--measure", name], env=environment, check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--names", nargs="+", choices=list(REFERENCE_SECONDS))
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--measure", choices=list(REFERENCE_SECONDS), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.repeats, given.brief)))
        return
    print_conditions(brief=given.brief)
    print("| network | s per window | CPU s | reference s | reference / ours | peak memory |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in given.names or REFERENCE_SECONDS:
        found = measure_apart(name, given.repeats, given.brief)
        reference = REFERENCE_SECONDS[name]
        seconds = found["seconds"]
        print(
            f"| {name} | {seconds:.2f} | {found['cpu_seconds']:.2f} | {reference:.1f} "
            f"| {reference / seconds:.1f} | {found['gigabytes']:.2f} GB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
