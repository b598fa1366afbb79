"""Fitting as ``adapt`` does by default, against other cells and columns, roll-out included.

    python -m benchmarks.fit [--windows 96] [--repeats 3] [--brief]

By default cells are sized to the data, and frames recalled, their quadrature partners and the mean
field are columns beside three depths; published are all depths and nothing else; repairs are all
depths and nothing else, with cells sized to the data: the default before there were free columns.

Three RepairUNets of width 16 on a 32 x 64 grid, 10 + 10 frames, two channels, twelve iterates,
windows of six trajectories, 128 x 16 cells. Processor seconds, alternating, best of the repeats.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import parser, print_conditions
from r2no import RepairUNet
from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairLoops, RepairSettings
from r2no.adaptation.columns import free_groups, resolved
from r2no.adaptation.fitting import fit_ensemble
from r2no.data import ArrayWindows
from r2no.data.normalise import fit_normalisers
from r2no.progress import SILENT
from r2no.training import Persistence, cached_source

CHANNELS, MEMBERS, TRAJECTORIES = 2, 3, 6


@dataclass(frozen=True)
class Size:
    """Of the data, the modules and their loops."""

    grid: tuple[int, int] = (32, 64)
    frames: int = 10
    width: int = 16
    steps: int = 12
    windows: int = 96


COLUMNS = {
    "published": lambda _: {"cells": "published"},
    "repairs": lambda steps: {
        "depths": tuple(range(1, steps + 1)),
        "recall": 0,
        "mean_field": False,
        "partners": False,
        "lead_groups": 1,
    },
    "auto": lambda _: {},
}
BRIEF = Size((16, 32), frames=4, width=4, steps=2, windows=12)


def trajectories(length, grid):
    """Smooth random fields that travel and change."""
    found = []
    for seed in range(TRAJECTORIES):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randn(length // 4 + 2, CHANNELS, 8, 16, generator=generator)
        volume = coarse.movedim(1, 0)[None]
        fine = torch.nn.functional.interpolate(volume, (length, *grid), mode="trilinear")[0]
        found.append(fine.permute(1, 2, 3, 0).contiguous())
    return found


def main():
    options = parser(__doc__)
    options.add_argument("--windows", type=int)
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    size = BRIEF if given.brief else Size()
    frames, number = size.frames, given.windows or size.windows
    length = 2 * frames + number // TRAJECTORIES - 1
    windows = ArrayWindows(trajectories(length, size.grid), frames, frames)
    torch.manual_seed(0)
    planes = frames * CHANNELS
    modules = tuple(RepairUNet(planes, planes, width=size.width).eval() for _ in range(MEMBERS))
    loops = RepairLoops(modules, *fit_normalisers(windows), size.steps, 0.2)
    times = {name: [] for name in COLUMNS}
    with tempfile.TemporaryDirectory() as folder:
        source = Persistence(frames, CHANNELS)
        cache = cached_source(source, windows, Path(folder), batch_size=8)
        for _ in range(given.repeats):
            for name, seconds in times.items():
                wanted = AdaptSettings(
                    repair=RepairSettings(steps=size.steps),
                    ensemble=EnsembleSettings(**COLUMNS[name](size.steps)),
                )
                settings = resolved(wanted, windows.fields)
                probe = (windows[0].history[None], cache[range(1)])
                start = time.process_time()
                groups = free_groups(
                    settings.ensemble, windows, (), probe, batch_size=8, reporter=SILENT
                )
                fit_ensemble(loops, groups, (windows, cache), settings, SILENT)
                seconds.append(time.process_time() - start)
    best = {name: min(seconds) for name, seconds in times.items()}
    print_conditions(brief=given.brief)
    print(f"{len(windows)} windows\n")
    print("| cells and columns | processor seconds | over published | over repairs, target 1.3 |")
    print("|---|---|---|---|")
    for name, seconds in best.items():
        over = (seconds / best[other] for other in ("published", "repairs"))
        print(f"| {name} | {seconds:.1f} | " + " | ".join(f"{ratio:.2f}" for ratio in over) + " |")


if __name__ == "__main__":
    main()
