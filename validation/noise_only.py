"""Repairs that carry no information: how often the verdict is to keep the source.

    python -m validation.noise_only [--trials 100]

Target and iterates are the source plus independent noise. Windows come from six trajectories, or
from one recording whose windows overlap, cut into time blocks. Exits with 1 unless the verdict is
*keep the source* in at least 95 of 100 trials of each.
"""

import argparse
import datetime
import sys

import torch

from r2no import FourierCells, SpectralEnsemble
from r2no.ensemble import FitBatch, blocks

GRID, HORIZON, DEPTHS = (16, 20), 4, 4


def frames(generator, count):
    return torch.randn(count, *GRID, 1, generator=generator, dtype=torch.float64)


def trial(seed, trajectories, length):
    """The nested fit of one trial; windows overlap, so noise is drawn frame by frame."""
    generator = torch.Generator().manual_seed(seed)
    starts = list(range(0, length - HORIZON + 1, 1 if trajectories == 1 else HORIZON))
    origins, parts = [], {"source": [], "target": [], "iterates": []}
    for trajectory in range(trajectories):
        source = 2 * frames(generator, length)
        target = source + frames(generator, length)
        repairs = [source + frames(generator, length) for _ in range(DEPTHS)]
        for start in starts:
            origins.append((trajectory, start))
            cut = slice(start, start + HORIZON)
            parts["source"].append(source[cut])
            parts["target"].append(target[cut])
            parts["iterates"].append(torch.stack([repair[cut] for repair in repairs]))
    plan = blocks(torch.tensor(origins), horizon=HORIZON)
    iterates = torch.stack(parts["iterates"], 1)[None]
    source, target = torch.stack(parts["source"]), torch.stack(parts["target"])
    cells = FourierCells.polar(GRID, radial=16, angular=8)
    batch = FitBatch(source, iterates, target, None, plan.group)
    return SpectralEnsemble(cells, "nested").fit([batch], folds=plan.folds).nested_


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    trials = parser.parse_args().trials
    print(f"{datetime.date.today()}, torch {torch.__version__}\n")
    print("| windows from | trials | keep the source | largest held-out gain |\n|---|---|---|---|")
    enough = True
    for name, shape in (("six trajectories", (6, 16)), ("one recording", (1, 64))):
        verdicts = [trial(seed, *shape).verdict for seed in range(trials)]
        kept = sum(verdict.decision == "keep the source" for verdict in verdicts)
        largest = 100 * max(verdict.gain for verdict in verdicts)
        print(f"| {name} | {trials} | {kept} | {largest:.3f} % |", flush=True)
        enough &= kept >= 0.95 * trials
    sys.exit(not enough)


if __name__ == "__main__":
    main()
