"""The nested fit on the wake with more and more fit trajectories, against fixed partitions.

    python -m validation.wake_fit [--seed 0] [--members 3] [--out FOLDER]

The demo with ten fit trajectories instead of six; its modules are trained once and the ensemble is
fitted on the first 1, 2, 4, 8 and all of them. Exits with 1 unless the nested fit is never above
the source on the test split and, with all, within 1 % of the best fixed partition in hindsight.
"""

import argparse
import datetime
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from r2no.adaptation import adapt, score_readouts
from r2no.adaptation.fitting import fit_ensemble
from r2no.progress import Reporter
from r2no.spectral import FourierCells
from r2no.training import cached_source
from r2no.wake.demo import DemoSettings, prepare

FIXED = ((1, 1), (8, 4), (16, 16), (64, 16), (128, 16))


@dataclass(frozen=True)
class Settings(DemoSettings):
    """The demo's settings with more fit trajectories."""

    def wake(self):
        """Ten fit trajectories."""
        return replace(super().wake(), real_fit=10)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out/wake-fit"))
    arguments = parser.parse_args()
    settings, reporter = Settings(arguments.seed, arguments.members), Reporter()
    wake, _, source, work = prepare(arguments.out, settings, reporter)
    normalisers = (source.history_normaliser, source.target_normaliser)
    common = {"settings": settings.adapt(), "normalisers": normalisers, "reporter": reporter}
    model = adapt(source, wake.real_train, wake.real_fit, folder=work, **common)
    names = [f"{radial}x{angular}" for radial, angular in FIXED]
    print(f"{datetime.date.today()}, torch {torch.__version__}, {arguments}; test RMSE\n")
    print(f"| trajectories | source | nested | verdict | {' | '.join(names)} |")
    print("|" + "---|" * (4 + len(names)), flush=True)
    sound = True
    for number in (1, 2, 4, 8, 10):
        windows = wake.real_fit.subset(range(number))
        cache = cached_source(source, windows, work / "source", batch_size=8, reporter=reporter)
        nested, _, _ = fit_ensemble(
            model.loops, windows, cache, model.settings, reporter, recordings=number
        )
        flat = nested.derive(ridge="auto")
        chosen = {"nested": nested}
        for radial, angular in FIXED:
            cells = FourierCells.polar(model.fields.grid, radial=radial, angular=angular)
            chosen[f"{radial}x{angular}"] = flat.derive(cells=cells)
        scores, _ = score_readouts(model, wake.real_test, chosen, reporter=reporter)
        rmse = {name: row["rmse"] for name, row in scores.items()}
        fixed = " | ".join(f"{rmse[name]:.5f}" for name in names)
        verdict = f"{nested.nested_.verdict.decision}, {100 * nested.nested_.verdict.gain:+.1f} %"
        row = f"{rmse['source']:.5f} | {rmse['nested']:.5f} | {verdict}"
        print(f"| {number} | {row} | {fixed} |", flush=True)
        sound &= rmse["nested"] <= rmse["source"]
        if number == 10:
            sound &= rmse["nested"] <= 1.01 * min(rmse[name] for name in names)
    sys.exit(not sound)


if __name__ == "__main__":
    main()
