"""The verdict on the wake with 1, 2, 3, 4 and 6 recordings: does its interval hold, does it harm?

    python -m validation.verdict [--seed 0] [--repeats 10] [--numbers 1 2 3 4 6] [--out FOLDER]

The demo with ten fit recordings instead of six. For every number of recordings, subsets of the ten
are drawn, the model without modules is fitted on each, and its verdict is compared with the gain on
all recordings that it did not see: those left out of the ten and the four of the test split. How
often the interval holds the gain on the test split alone, four recordings that are the same for
every fit, is shown beside it. Exits with 1 unless the 90 % interval holds the truth at least 80
times in 100 in every row, and no more than 2 in 100 deployments do harm.
"""

import argparse
import datetime
import math
import random
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from r2no.adaptation import adapt, score_readouts
from r2no.progress import SILENT, Reporter
from r2no.wake.demo import DemoSettings, prepare

NUMBERS = (1, 2, 3, 4, 6)


@dataclass(frozen=True)
class Settings(DemoSettings):
    """The demo's settings with more fit recordings."""

    def wake(self):
        """Ten fit recordings."""
        return replace(super().wake(), real_fit=10)


def subsets(number, repeats, seed):
    """Different subsets of ten recordings; all there are if they are fewer."""
    draw, found = random.Random(seed + 100 * number), set()
    most = min(repeats, math.comb(10, number))
    while len(found) < most:
        found.add(tuple(sorted(draw.sample(range(10), number))))
    return sorted(found)


def gain(squares):
    """Relative reduction of the RMSE, from summed squares of forecast and source."""
    return 1 - float(squares[0] / squares[1]) ** 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--numbers", type=int, nargs="+", default=NUMBERS)
    parser.add_argument("--out", type=Path, default=Path("out/verdict"))
    arguments = parser.parse_args()
    settings = Settings(arguments.seed, 0)
    wake, pretrained, source, work = prepare(arguments.out, settings, Reporter())
    normalisers = source.normalisers
    print(f"{datetime.date.today()}, torch {torch.__version__}, {arguments}\n")
    print("| recordings | fits | deployed | did harm | gain told | true gain | held | test alone |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    sound, fits, harmed = True, 0, 0
    for number in arguments.numbers:
        rows = []
        for chosen in subsets(number, arguments.repeats, arguments.seed):
            model = adapt(
                source,
                wake.real_train,
                wake.real_fit.subset(chosen),
                settings=settings.adapt(),
                also={"pretrained": pretrained},
                normalisers=normalisers,
                folder=work,
                reporter=SILENT,
            )
            fitted = replace(model.ensemble, weights=model.ensemble.nested.weights)
            others = wake.real_fit.subset([n for n in range(10) if n not in chosen])
            scored = []
            for windows in (others, wake.real_test):
                scores, _ = score_readouts(model, windows, {"r2no": fitted}, reporter=SILENT)
                squares = [scores[name]["rmse"] ** 2 for name in ("r2no", "source")]
                scored.append(torch.tensor(squares, dtype=torch.float64) * len(windows))
            rows.append((model.verdict, gain(sum(scored)), gain(scored[1])))
        told = sum(verdict.gain for verdict, *_ in rows) / len(rows)
        true = sum(truth for _, truth, _ in rows) / len(rows)
        held = sum(v.interval[0] <= truth <= v.interval[1] for v, truth, _ in rows) / len(rows)
        alone = sum(v.interval[0] <= test <= v.interval[1] for v, _, test in rows) / len(rows)
        deployed = [truth for verdict, truth, _ in rows if verdict.deploy]
        harm = sum(truth < 0 for truth in deployed)
        print(
            f"| {number} | {len(rows)} | {len(deployed)} | {harm} | {100 * told:.1f} % | "
            f"{100 * true:.1f} % | {100 * held:.0f} % | {100 * alone:.0f} % |",
            flush=True,
        )
        sound &= held >= 0.8
        fits, harmed = fits + len(rows), harmed + harm
    sys.exit(not (sound and harmed <= 0.02 * fits))


if __name__ == "__main__":
    main()
