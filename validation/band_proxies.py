"""Bands of one recording, on recordings made of measured and simulated frames.

    python -m validation.band_proxies FRAMES [--systems cylinder combustion] [--fit 75]
        [--out FOLDER]

FRAMES is that of `validation.little_data`. Each system gives four recordings: the measured frames,
the simulated ones as if they were measured (the source is pretrained on the others then), and both
backwards in time. Frames 0 to 149 train, so many as --fit says fit. Each is adapted to without
repair modules, and its bands are scored on the frames after those of the fit: with the level of all
held-out blocks, and with that of outer folds (M14), which is what the library does. *Off* is the
mean of |coverage - nominal| over 0.5, 0.8, 0.9 and 0.95.

Exits with 1 unless outer folds bring coverage nearer to the nominal on average and the interval
score does not rise on average.
"""

import argparse
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from validation.bands import COVERAGES, QUIET
from validation.little_data import operators

from r2no.adaptation import adapt
from r2no.data.window import batches
from r2no.metrics import BandScores


def recording(folder, system, simulated, backwards, out):
    """Write the frames under a name of their own, which is returned."""
    name = system + simulated * "-simulated" + backwards * "-backwards"
    stored = np.load(folder / f"{system}.npz")
    frames = [stored[key][:: -1 if backwards else 1] for key in ("real", "numerical")]
    real, numerical = reversed(frames) if simulated else frames
    np.savez(out / f"{name}.npz", real=real, numerical=numerical, scale=stored["scale"])
    return name


@torch.no_grad()
def scored(bands, model, test):
    """Coverages and interval scores of these bands around the forecasts of a model."""
    scores, measured = BandScores(COVERAGES), list(model.fields.measured)
    widths = torch.stack([bands.half_width(coverage) for coverage in COVERAGES])
    for _, window in batches(test, 8):
        source = model.source_forecast(window.history)
        middle = model.compose(window.history, source)[..., measured]
        half = widths[:, None] * bands.follow(middle)
        scores.update(middle - half, middle + half, window.target[..., measured])
    rows = scores.compute()["rows"]
    return np.array([[row["coverage"], row["interval_score"]] for row in rows]).T


def case(folder, name, frames):
    """A row of the table; both misses and the ratio of interval scores."""
    (train, fit, test), pretrained, source, work = operators(
        folder, name, "fno", 2, 0, folder, frames
    )
    units = (source.history_normaliser, source.target_normaliser)
    options = {"also": {"pretrained": pretrained}, "normalisers": units, "folder": work}
    model = adapt(source, train, fit, 0, reporter=QUIET, **options)
    bands = model.calibration.bands
    every = replace(bands, residuals=replace(bands.residuals, outer=()))
    before, after = (scored(each, model, test) for each in (every, bands))
    ratio = (after[1] / before[1]).mean()
    missed = [abs(found[0] - COVERAGES).mean() for found in (before, after)]
    pairs = zip(before[0], after[0], strict=True)
    shown = " | ".join(f"{share:.3f}" for pair in pairs for share in pair)
    points = " | ".join(f"{100 * each:.1f}" for each in missed)
    print(f"| {name} | {shown} | {points} | {100 * ratio - 100:+.1f} % |", flush=True)
    return *missed, ratio


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("frames", type=Path)
    parser.add_argument("--systems", nargs="+", default=["cylinder", "combustion"])
    parser.add_argument("--fit", type=int, default=75, help="frames of the fit split")
    parser.add_argument("--out", type=Path, default=Path("out/band-proxies"))
    given = parser.parse_args()
    out = given.out / f"{given.fit}"
    out.mkdir(parents=True, exist_ok=True)
    heads = [f"{p:g}, {level}" for p in COVERAGES for level in ("all", "outer")]
    print(f"| data | {' | '.join(heads)} | off, all | off, outer | interval score |")
    print("|---" * (len(heads) + 4) + "|", flush=True)
    found = []
    for system, *kind in product(given.systems, (False, True), (False, True)):
        found.append(case(out, recording(given.frames, system, *kind, out), given.fit))
    before, after, ratio = np.mean(found, 0)
    print(f"\noff by {100 * before:.2f} points, with outer folds by {100 * after:.2f}")
    print(f"interval score {100 * ratio - 100:+.2f} %")
    sys.exit(not (after < before and ratio <= 1))


if __name__ == "__main__":
    main()
