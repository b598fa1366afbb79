"""The alarm on windows whose law is known: how often it rings for the same kind, and for another.

    python -m validation.alarm [--repetitions 200] [--frames FRAMES]

Features of windows are drawn, not computed: an effect of the recording in two directions (size
`between`) plus a fluctuation that is correlated from window to window (size `within`, correlation
0.9). A recording has 26 windows of 20 frames, two frames apart. Recordings known to the alarm and
the new one are exchangeable; windows of another kind are those of the new one, moved by three
standard deviations in every feature. A single recording has windows one frame apart, goes on after
a gap of one window, and may drift (correlation 0.99). Windows of a recording ring together: *above
10 %* is the share of repetitions in which more than a tenth of the new ones of the same kind do.

With --frames (those of `validation.little_data`) the recordings of `validation.band_proxies`
instead: measured and simulated frames of two systems, forwards and backwards in time, frames 0 to
149 and 150 to 224 known as train and fit split are, and windows of the frames after them. It takes
histories only, so nothing is fitted.

Exits with 1 if more than 10 % of windows of the same kind have p <= 0.1, beyond two standard errors
over repetitions, where there are four recordings or more, or one; with --frames, over recordings.
"""

import argparse
import math
import sys
from itertools import product
from pathlib import Path

import numpy as np
import torch
from validation import little_data

from r2no.data.window import batches
from r2no.ensemble.familiar import Familiar, described

FEATURES, WINDOWS, REACH = 20, 26, 20


def fluctuation(number, correlation, rng):
    """A stationary series of feature vectors."""
    noise = torch.randn(number, FEATURES, generator=rng, dtype=torch.float64)
    series = [noise[0]]
    for step in noise[1:]:
        series.append(correlation * series[-1] + math.sqrt(1 - correlation**2) * step)
    return torch.stack(series)


def recordings(number, between, within, rng):
    """Known windows, where they lie, and those of one more recording."""
    directions = torch.randn(2, FEATURES, generator=rng, dtype=torch.float64)
    effects = between * torch.randn(number + 1, 2, generator=rng, dtype=torch.float64) @ directions
    drawn = [effect + within * fluctuation(WINDOWS, 0.9, rng) for effect in effects]
    places = torch.cartesian_prod(torch.arange(number), 2 * torch.arange(WINDOWS))
    return torch.cat(drawn[:-1]), places, drawn[-1], math.sqrt(2 * between**2 + within**2)


def going_on(number, drift, rng):
    """Windows of one recording, where they lie, and sixty that come later."""
    total = number + REACH + 60
    drawn = fluctuation(total, 0.9, rng) + drift * fluctuation(total, 0.99, rng)
    places = torch.stack([torch.zeros(number, dtype=torch.long), torch.arange(number)], 1)
    return drawn[:number], places, drawn[number + REACH :], math.sqrt(1 + drift**2)


def split(frames):
    """The windows of some frames as the alarm sees them, and where they lie."""
    cut = little_data.windows(np.ascontiguousarray(frames, dtype=np.float32))
    return torch.cat([described(window.history) for _, window in batches(cut, 8)]), cut.origins


def on_frames(folder):
    """A table of recordings made of frames; whether later windows ring no more than they may."""
    shares = []
    print("| data | p <= 0.1 | first frames of windows that ring |\n|---|---|---|")
    for system, key, step in product(("cylinder", "combustion"), ("real", "numerical"), (1, -1)):
        frames = np.load(folder / f"{system}.npz")[key][::step, ::2, ::2, None]
        train, fit = (
            Familiar(*split(frames[part]), REACH) for part in (slice(150), slice(150, 225))
        )
        later, places = split(frames[225:])
        rings = fit.merge(train).p_values(later) <= 0.1
        runs = " ".join(str(225 + start) for start in places[rings, 1].tolist())
        name = f"{system}{'-simulated' * (key != 'real')}{'-backwards' * (step < 0)}"
        print(f"| {name} | {100 * rings.double().mean():.0f} % | {runs} |")
        shares.append(float(rings.double().mean()))
    mean, error = np.mean(shares), np.std(shares, ddof=1) / math.sqrt(len(shares))
    print(f"| mean | {100 * mean:.1f} ± {100 * error:.1f} % | |")
    return mean - 2 * error <= 0.1


def rates(draw, repetitions):
    """Shares of windows with p <= 0.1: same kind, its error, how often above it; another kind."""
    same, other = [], []
    for seed in range(repetitions):
        features, places, new, size = draw(torch.Generator().manual_seed(seed))
        known = Familiar(features, places, REACH)
        for shares, windows in ((same, new), (other, new + 3 * size)):
            shares.append(float((known.p_values(windows) <= 0.1).double().mean()))
    above = np.mean(np.array(same) > 0.1)
    return np.mean(same), np.std(same) / math.sqrt(repetitions), above, np.mean(other)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--frames", type=Path)
    given = parser.parse_args()
    if given.frames:
        sys.exit(not on_frames(given.frames))
    repetitions, held = given.repetitions, True
    print("| known | between / within | same kind, p <= 0.1 | above 10 % | another kind |")
    print("|---" * 5 + "|")
    for number in (2, 3, 4, 6, 12, 20):
        for between, within in ((1, 0.3), (1, 1), (0.3, 1)):
            found = rates(lambda rng: recordings(number, between, within, rng), repetitions)  # noqa: B023
            held &= number < 4 or found[0] - 2 * found[1] <= 0.1
            show(f"{number} recordings", f"{between:g} / {within:g}", found)
    for number in (56, 120, 400):
        for drift in (0, 1):
            found = rates(lambda rng: going_on(number, drift, rng), repetitions)  # noqa: B023
            held &= found[0] - 2 * found[1] <= 0.1
            show(f"one, {number} windows", f"drift {drift}", found)
    sys.exit(not held)


def show(known, kind, found):
    """A row of the table."""
    same, error, above, other = (100 * share for share in found)
    shown = f"{same:.1f} ± {error:.1f} % | {above:.0f} % | {other:.0f} %"
    print(f"| {known} | {kind} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
