"""Whether bands that hold too often or too seldom are wrong by calibration, or by other data.

    python -m validation.band_bias [--seeds 0 1 2] [--together 7] [--frames FRAMES]
        [--systems cylinder combustion] [--out FOLDER]

Models of `validation.bands --members 0`, three coverages each: *inside the fit*, blocks of every
fold held against bands calibrated on the blocks that it fits on only, so calibration bias shows
here; *weights of the folds* on the test windows, within the bands as they are: what differs from
the nominal is test windows unlike those of the fit; *the model* on the test windows, which differs
from the folds by the data these lack. ± is the standard error over blocks, from their spread.

With --together another table for the wakes instead: so many recordings drawn at once, each scored
by the fit on the others, as new to them as they are to each other. Recordings of a test split are
not quite: fit and test are drawn one from each of equal parts of the range of Reynolds numbers, so
one that is held out lies farther from those that are left than a test recording from those of the
fit. ± is the standard error over recordings, and over wakes for the mean.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from validation.bands import COVERAGES, QUIET, adapted, further, rung, score
from validation.little_data import operators

from r2no.adaptation import adapt, calibrating
from r2no.data.window import batches
from r2no.ensemble.bands import Bands
from r2no.errors import EmptySplitError
from r2no.wake.demo import DemoSettings, prepare


class Weighed(calibrating._Task):
    """The library's own, which keeps the model as it was and the weights of its folds."""

    def bands(self, apart, reporter):
        """As in the library."""
        Weighed.model = self._model
        Weighed.folds = [self._model.ensemble.spread_of(each) for each in apart]
        return super().bands(apart, reporter)


def inside(residuals, coverage):
    """Shares of each fold's residuals inside bands that knew nothing of them."""
    shares = []
    for fit, judged in residuals.folds:
        kept = [(tuple(set(f) & set(fit)), tuple(set(s) & set(fit))) for f, s in residuals.folds]
        known = [(f or tuple(set(fit) - set(s)), s) for f, s in kept if s]
        folds = tuple((f, s) for f, s in known if f)
        own = torch.zeros(len(residuals.totals), 1, 1, 1, 1)
        own[list(fit)] = 1.0
        steep = residuals.steepness
        windows = steep.windows * own.flatten().long()
        parts = replace(
            residuals,
            totals=own * residuals.totals,
            counts=own * residuals.counts,
            folds=folds,
            outer=(),
            steepness=replace(steep, totals=own * steep.totals, windows=windows),
        )
        try:
            bands = Bands.of(parts)
            width = bands.half_width(coverage).flatten()
        except EmptySplitError:
            continue
        held, usual = [], residuals.usual(fit)
        for group in judged:
            sizes, places = residuals.of(group)
            steeper = residuals.relative(group, usual) ** bands.exponent
            held.append(sizes <= steeper * width[places])
        shares.append(float(torch.cat(held).float().mean()))
    return shares


@torch.no_grad()
def case(name, source, train, fit, test, **options):
    """Three rows of the table for each coverage."""
    before, calibrating._Task = calibrating._Task, Weighed
    try:
        model = adapt(source, train, fit, reporter=QUIET, **options)
    finally:
        calibrating._Task = before
    bands, measured = model.calibration.bands, list(model.fields.measured)
    final, folds = [], [[] for _ in Weighed.folds]  # |r| / m
    for _, window in batches(test, 8):
        first, target = model.source_forecast(window.history), window.target[..., measured]
        forecasts = [model.compose(window.history, first)]
        forecasts += [Weighed.model.compose(window.history, first, each) for each in Weighed.folds]
        for found, forecast in zip((final, *folds), forecasts, strict=True):
            middle = forecast[..., measured]
            found.append((target - middle) / bands.follow(middle))
    for coverage in COVERAGES:
        width = bands.half_width(coverage)
        own = inside(bands.residuals, coverage)
        error = np.std(own) / len(own) ** 0.5
        shares = [float((torch.cat(e).abs() <= width).float().mean()) for e in (final, *folds)]
        print(
            f"| {name} | {coverage:g} | {np.mean(own):.3f} ± {error:.3f} | "
            f"{np.mean(shares[1:]):.3f} | {shares[0]:.3f} |",
            flush=True,
        )


def left_out(seed, number, out):
    """Coverages of each of some recordings by a fit on the others; shares of windows that ring."""
    settings = DemoSettings(seed=seed, members=0)
    wake, pretrained, source, work = prepare(out, settings, QUIET)
    drawn, found, rings = further(wake, out, number, first=3000), [], []
    for one in range(number):
        model, constant = adapted(
            source,
            wake.real_train,
            drawn.subset([other for other in range(number) if other != one]),
            also={"pretrained": pretrained},
            settings=settings.adapt(),
            normalisers=source.normalisers,
            folder=work,
        )
        test = drawn.subset([one])
        scored, p_values = score(model, constant, test)
        found.append([row["coverage"] for row in scored["bands"]["rows"]])
        rings.append(rung(p_values, test)[0])
    return np.array(found), np.array(rings)


def show(name, shares, rings):
    """A row of that table."""
    errors = shares.std(0, ddof=1) / len(shares) ** 0.5
    cells = [
        f"{share:.3f} ± {error:.3f}" for share, error in zip(shares.mean(0), errors, strict=True)
    ]
    print(f"| {name} | {' | '.join(cells)} | {100 * rings.mean():.0f} % |", flush=True)


def exchangeable(seeds, number, out):
    """The table of --together."""
    print("| data | " + " | ".join(f"{p:g}" for p in COVERAGES) + " | windows with p <= 0.1 |")
    print("|---" * (len(COVERAGES) + 2) + "|", flush=True)
    means = []
    for seed in seeds:
        shares, rings = left_out(seed, number, out)
        show(f"wake {seed}", shares, rings)
        means.append((shares.mean(0), rings.mean()))
    if len(means) > 1:
        show("mean", *(np.array(parts) for parts in zip(*means, strict=True)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--together", type=int, help="recordings that are drawn at once")
    parser.add_argument("--frames", type=Path)
    parser.add_argument("--systems", nargs="+", default=["cylinder", "combustion"])
    parser.add_argument("--out", type=Path, default=Path("out/bands"))
    given = parser.parse_args()
    if given.together:
        exchangeable(given.seeds, given.together, given.out)
        return
    print("| data | nominal | inside the fit | weights of the folds, test | the model, test |")
    print("|---" * 5 + "|", flush=True)
    for system in given.systems if given.frames else ():
        splits, pretrained, source, work = operators(
            given.frames, system, "fno", 2, 0, given.out / "frames"
        )
        units = source.normalisers
        also = {"pretrained": pretrained}
        case(system, source, *splits, members=0, also=also, normalisers=units, folder=work)
    for seed in given.seeds:
        settings = DemoSettings(seed=seed, members=0)
        wake, pretrained, source, work = prepare(given.out, settings, QUIET)
        units = source.normalisers
        also, how = {"pretrained": pretrained}, settings.adapt()
        splits = (wake.real_train, wake.real_fit, wake.real_test)
        case(
            f"wake {seed}", source, *splits, also=also, settings=how, normalisers=units, folder=work
        )


if __name__ == "__main__":
    main()
