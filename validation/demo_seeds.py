"""The demo over several seeds: mean test scores of every readout.

    python validation/demo_seeds.py [--seeds 0 1 2] [--out FOLDER] [--backbone fno]

Exits with 1 unless, on average over the seeds, R2NO (M = 1) has lower RMSE and fRMSE than full
finetuning and than IRNO at the selected depth, and every learned method beats persistence.
"""

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("out/demo-seeds"))
    parser.add_argument("--backbone", default="fno")
    arguments = parser.parse_args()
    found, seconds = [], []
    for seed in arguments.seeds:
        out = arguments.out / f"{arguments.backbone}-{seed}"
        command = [sys.executable, "-m", "r2no.cli.main", "demo", "--out", str(out)]
        command += ["--seed", str(seed), "--backbone", arguments.backbone]
        start = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.monotonic() - start)
        found.append(json.loads((out / "results.json").read_text())["readouts"])
    names = list(found[0])
    print(f"{datetime.date.today()}, {platform.machine()}, {torch.get_num_threads()} threads,")
    print(f"torch {torch.__version__}, seeds {arguments.seeds}, ", end="")
    print(f"seconds {[round(value) for value in seconds]}\n")
    print("| method | RMSE by seed | mean RMSE | mean fRMSE | mean fRMSE, full | mean rel. L2 |")
    print("|---|---|---|---|---|---|")
    means = {}
    for name in names:
        mean = {
            key: statistics.fmean(scores[name][key] for scores in found)
            for key in ("rmse", "frmse", "frmse_full", "rel_l2")
        }
        means[name] = mean
        by_seed = " / ".join(f"{scores[name]['rmse']:.5f}" for scores in found)
        values = " | ".join(f"{value:.5f}" for value in mean.values())
        print(f"| {name} | {by_seed} | {values} |")
    better = all(
        means["r2no_m1"][key] < means[other][key]
        for key in ("rmse", "frmse")
        for other in ("source", "irno_selected")
    )
    beaten = all(
        scores[name]["rmse"] < scores["persistence"]["rmse"]
        for scores in found
        for name in names
        if name != "persistence"
    )
    print(f"\nR2NO (M=1) better than finetuning and IRNO at the selected depth: {better}")
    print(f"every learned method beats persistence: {beaten}")
    sys.exit(not (better and beaten))


if __name__ == "__main__":
    main()
