"""Nothing to gain: how often the verdict is to keep what there is.

    python -m validation.noise_only [--trials 100]

Two worlds, each with six recordings and with one. *Noise only*: measurements are white noise, and
the source forecasts its mean, zero. *Perfect but for noise*: the source knows the flow exactly, and
the measurements are the flow plus white noise, so only the noise is left. The model without
modules, with all columns that cost nothing, is fitted to each. Exits with 1 unless the verdict is
to keep a forecast that needs no adaptation in at least 95 of 100 trials of each.
"""

import argparse
import datetime
import itertools
import sys

import numpy as np
import torch

import r2no
from r2no.adaptation import AdaptSettings, EnsembleSettings
from r2no.data import ArrayWindows
from r2no.progress import SILENT

GRID, HISTORY, HORIZON = (16, 20), 4, 4
SETTINGS = AdaptSettings(members=0, ensemble=EnsembleSettings(radial=16, angular=8))


def recording(random, length, world):
    """Measured frames; the second channel says what the source knows, and is not measured."""
    noise = random.standard_normal((length, *GRID))
    if world == "noise only":
        return np.stack([noise, 0 * noise], -1)
    time, y, x = np.meshgrid(*(np.arange(n) for n in (length, *GRID)), indexing="ij")
    phase = 2 * np.pi * (x / GRID[1] + y / GRID[0] - time / 7 + random.random())
    flow = 2 * np.cos(phase)
    return np.stack([flow + noise, np.roll(flow, -HORIZON, 0)], -1)


def source(history):
    """What the second channel knew a horizon ago."""
    known = history[:, -HORIZON:, ..., 1]
    return torch.stack([known, torch.zeros_like(known)], -1)


def trial(seed, world, recordings, length):
    """The verdict of one trial."""
    random = np.random.default_rng(seed)

    def windows(number, frames):
        made = [recording(random, frames, world).astype(np.float32) for _ in range(number)]
        for one in made:
            one[-HORIZON:, ..., 1] = 0  # rolled in from the start
        stride = 1 if number == 1 else HORIZON
        return ArrayWindows(made, HISTORY, HORIZON, stride=stride, measured=(0,))

    train, fit = windows(recordings, length), windows(recordings, length)
    return r2no.adapt(source, train, fit, settings=SETTINGS, reporter=SILENT).verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    trials = parser.parse_args().trials
    print(f"{datetime.date.today()}, torch {torch.__version__}\n")
    print("| world | windows from | trials | kept | what | largest gain over the best |")
    print("|---|---|---|---|---|---|")
    enough = True
    shapes = (("six recordings", (6, 24)), ("one recording", (1, 72)))
    for world, (name, shape) in itertools.product(("noise only", "perfect but for noise"), shapes):
        verdicts = [trial(seed, world, *shape) for seed in range(trials)]
        kept = [verdict for verdict in verdicts if not verdict.deploy]
        largest = 100 * max(verdict.gain_over_best for verdict in verdicts)
        what = ", ".join(sorted({verdict.decision for verdict in kept}))
        print(
            f"| {world} | {name} | {trials} | {len(kept)} | {what} | {largest:.2f} % |", flush=True
        )
        enough &= len(kept) >= 0.95 * trials
    sys.exit(not enough)


if __name__ == "__main__":
    main()
