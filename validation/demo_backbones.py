"""The demo with a small network of each of the six backbones.

    python -m validation.demo_backbones [--seed 0] [--members 3] [--out FOLDER] [--backbones ...]

Exits with 1 unless R2NO is no worse than the finetuned source, by test RMSE, for every backbone.
Takes about an hour on one core; a run that is stopped goes on where it was.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

from r2no import backbones

COLUMNS = ("persistence", "pretrained", "source", "irno_selected", "r2no_m1")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out/demo-backbones"))
    parser.add_argument("--backbones", nargs="+", default=list(backbones.names()))
    arguments = parser.parse_args()
    best = f"r2no_m{arguments.members}"
    columns = (*COLUMNS, best) if arguments.members > 1 else COLUMNS
    print(f"{datetime.date.today()}, {platform.machine()}, {torch.get_num_threads()} threads,")
    print(f"torch {torch.__version__}, seed {arguments.seed}; test RMSE\n")
    print(f"| backbone | {' | '.join(columns)} | verdict | seconds |")
    print("|---|" + "---|" * (len(columns) + 2), flush=True)
    worse = []
    for name in arguments.backbones:
        out = arguments.out / f"{name}-{arguments.seed}"
        command = [sys.executable, "-m", "r2no.cli.main", "demo", "--out", str(out)]
        command += ["--seed", str(arguments.seed), "--members", str(arguments.members)]
        start = time.monotonic()
        subprocess.run([*command, "--backbone", name], check=True, stdout=subprocess.DEVNULL)
        found = json.loads((out / "results.json").read_text())
        scores = {method: found["readouts"][method]["rmse"] for method in columns}
        verdict = found["ensembles"][best]["verdict"]["decision"]
        values = " | ".join(f"{value:.5f}" for value in scores.values())
        print(f"| {name} | {values} | {verdict} | {time.monotonic() - start:.0f} |", flush=True)
        if max(scores["r2no_m1"], scores[best]) > scores["source"]:
            worse.append(name)
    if worse:
        sys.exit(f"R2NO is worse than its source for {worse}.")
    print("\nR2NO is no worse than its finetuned source for every backbone.")


if __name__ == "__main__":
    main()
