"""Cost of the ensemble against the roll-out that feeds it (DESIGN section 5).

    python -m benchmarks.ensemble [--repeats 9] [--brief]

A 64 x 128 case of 20 frames and 3 channels with three RepairUNets of width 32. ``predict`` and
``gram`` have the paper's columns, all iterates; the others those of ``adapt`` by default: three
depths, five recalled frames with their quadrature partners, and the mean field. Processor seconds,
taken in one run, alternating: the median over the rounds of each round's ratio.
"""

import statistics
import time

import torch

from benchmarks import Size, parser, print_conditions
from r2no import FourierCells, RepairUNet
from r2no.adaptation.groups import MeanField, Recall, group_forecasts
from r2no.ensemble import Columns, FittedEnsemble, GramAccumulator
from r2no.repair_loop import repair_steps

CHANNELS, MEMBERS, BATCH = 3, 3, 2


BRIEF = Size((16, 32), frames=4, width=4, steps=2, radial=8)


def roll_out(modules, history, source, steps, consume):
    """The bare loop: every iterate of every member goes to ``consume``."""
    for member, module in enumerate(modules):
        loop = repair_steps(module, history, source, steps=steps, step_size=0.2)
        for depth, iterate in enumerate(loop):
            if depth:
                consume(member, depth, iterate)


class Ensemble:
    """Prediction and Gram sums with given columns."""

    def __init__(self, size, columns, groups):
        cells = FourierCells.polar(size.grid, radial=size.radial, angular=16)
        weights = 0.01 * torch.randn(columns.number)
        self.groups = groups
        self.fitted = FittedEnsemble.from_weights(weights, columns, cells, measured=(0, 1))
        self.sums = GramAccumulator(columns, cells, measured=(0, 1), exponents=(1.0,), groups=1)

    def predict(self, roll, history, source):
        """As a model predicts."""
        composition = self.fitted.compose(source)
        for label, forecast in group_forecasts(self.groups, history, source):
            composition.put(label, forecast)
        roll(composition.add)
        composition.result()

    def gram(self, roll, history, source, target):
        """As fitting does: into running sums."""
        spectra = self.sums.begin(source, target)
        for label, forecast in group_forecasts(self.groups, history, source):
            spectra.put(label, forecast)
        roll(spectra.add)
        self.sums.add(torch.zeros(BATCH, dtype=torch.long))


def ensembles(size):
    """With the paper's columns, and with those of ``adapt`` by default."""
    every = tuple(range(1, size.steps + 1))
    some = tuple(sorted({1, -(-size.steps // 3), size.steps}))
    groups = (
        Recall(min(5, size.frames)),
        MeanField(torch.randn(*size.grid, CHANNELS, dtype=torch.float64)),
    )
    labels = tuple(label for group in groups for label in group.labels)
    default = Columns(MEMBERS, some, centred=True, further=labels, partners=groups[0].labels)
    return Ensemble(size, Columns(MEMBERS, every), ()), Ensemble(size, default, groups)


@torch.no_grad()
def measure(size, repeats):
    """Processor seconds of each action, one entry per round."""
    torch.manual_seed(0)
    channels = size.frames * CHANNELS
    modules = [RepairUNet(channels, channels, width=size.width).folded() for _ in range(MEMBERS)]
    history, source, target = torch.randn(3, BATCH, size.frames, *size.grid, CHANNELS)
    published, default = ensembles(size)

    def roll(consume):
        roll_out(modules, history, source, size.steps, consume)

    actions = {
        "bare": lambda: roll(lambda *_: None),
        "predict": lambda: published.predict(roll, history, source),
        "predict, default columns": lambda: default.predict(roll, history, source),
        "gram": lambda: published.gram(roll, history, source, target),
        "gram, default columns": lambda: default.gram(roll, history, source, target),
    }
    times = {name: [] for name in actions}
    actions["bare"]()
    for _ in range(repeats):
        for name, action in actions.items():
            start = time.process_time()
            action()
            times[name].append(time.process_time() - start)
    return times


def main():
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=9)
    given = options.parse_args()
    size = BRIEF if given.brief else Size()
    print_conditions(brief=given.brief)
    times = measure(size, given.repeats)
    print(f"batch {BATCH}, M = {MEMBERS}, L = {size.steps}\n")
    print("| what | processor seconds per batch | ratio to the bare roll-out | target |")
    print("|---|---|---|---|")
    targets = {"predict": "<= 1.03", "predict, default columns": "<= 1.05", "gram": "<= 1.10"}
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, times["bare"], strict=True))
        print(
            f"| {name} | {statistics.median(taken):.3f} | {ratio:.3f} | {targets.get(name, '')} |"
        )


if __name__ == "__main__":
    main()
