"""Fitting with cells sized to the data, against fitting the published partition, roll-out included.

    python -m benchmarks.fit [--windows 96] [--repeats 2]

Three RepairUNets of width 16 on a 32 x 64 grid, 10 + 10 frames, two channels, twelve iterates,
windows of six trajectories, 128 x 16 cells. Processor seconds, alternating, best of the repeats.
"""

import argparse
import datetime
import platform
import tempfile
import time
from pathlib import Path

import torch

from r2no import RepairUNet
from r2no.adaptation import AdaptSettings, EnsembleSettings, Trajectories
from r2no.adaptation.fitting import fit_ensemble
from r2no.data import ArrayWindows
from r2no.training import Persistence, Reporter, cached_source
from r2no.training.backbone import fit_normalisers

GRID, FRAMES, CHANNELS, MEMBERS, TRAJECTORIES = (32, 64), 10, 2, 3, 6


def trajectories(length):
    """Smooth random fields that travel and change."""
    found = []
    for seed in range(TRAJECTORIES):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randn(length // 4 + 2, CHANNELS, 8, 16, generator=generator)
        volume = coarse.movedim(1, 0)[None]
        size = (length, *GRID)
        fine = torch.nn.functional.interpolate(volume, size, mode="trilinear")[0]
        found.append(fine.permute(1, 2, 3, 0).contiguous())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    length = 2 * FRAMES + arguments.windows // TRAJECTORIES - 1
    windows = ArrayWindows(trajectories(length), FRAMES, FRAMES)
    torch.manual_seed(0)
    size = FRAMES * CHANNELS
    modules = tuple(RepairUNet(size, size, width=16).eval() for _ in range(MEMBERS))
    loops = Trajectories(modules, *fit_normalisers(windows), 12, 0.2)
    times = {"published": [], "auto": []}
    with tempfile.TemporaryDirectory() as folder:
        source = Persistence(FRAMES, CHANNELS)
        cache = cached_source(source, windows, Path(folder), batch_size=8)
        for _ in range(arguments.repeats):
            for name, seconds in times.items():
                settings = AdaptSettings(ensemble=EnsembleSettings(cells=name))
                start = time.process_time()
                fit_ensemble(loops, windows, cache, settings, Reporter(quiet=True))
                seconds.append(time.process_time() - start)
    best = {name: min(seconds) for name, seconds in times.items()}
    print(f"{datetime.date.today()}, {platform.machine()}, {torch.get_num_threads()} threads,")
    print(f"torch {torch.__version__}, {len(windows)} windows\n")
    print("| cells | processor seconds | ratio | target |\n|---|---|---|---|")
    for name, seconds in best.items():
        target = "<= 1.5" if name == "auto" else ""
        print(f"| {name} | {seconds:.1f} | {seconds / best['published']:.2f} | {target} |")


if __name__ == "__main__":
    main()
