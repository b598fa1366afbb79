"""Cost of the ensemble against the roll-out that feeds it (DESIGN section 5).

    python -m benchmarks.ensemble [--repeats 9] [--brief]

A 64 x 128 case of 20 frames and 3 channels with three RepairUNets of width 32. Both ratios are of
times taken in one run, alternating: the median over the rounds of each round's ratio.
"""

import statistics
from dataclasses import dataclass

import torch

from benchmarks import parser, print_conditions, seconds
from r2no import FourierCells, RepairUNet
from r2no.ensemble import Columns, FittedEnsemble, GramAccumulator
from r2no.repair_loop import repair_steps

CHANNELS, MEMBERS, BATCH = 3, 3, 2


@dataclass(frozen=True)
class Size:
    """Of a window, the modules, their loops and the partition; as published."""

    grid: tuple[int, int] = (64, 128)
    frames: int = 20
    width: int = 32
    steps: int = 12
    radial: int = 128


BRIEF = Size((16, 32), frames=4, width=4, steps=2, radial=8)


def roll_out(modules, history, source, steps, consume):
    """The bare loop: every iterate of every member goes to ``consume``."""
    for member, module in enumerate(modules):
        loop = repair_steps(module, history, source, steps=steps, step_size=0.2)
        for depth, iterate in enumerate(loop):
            if depth:
                consume(member, depth, iterate)


@torch.no_grad()
def measure(size, repeats):
    torch.manual_seed(0)
    channels = size.frames * CHANNELS
    modules = [RepairUNet(channels, channels, width=size.width).folded() for _ in range(MEMBERS)]
    history, source, target = torch.randn(3, BATCH, size.frames, *size.grid, CHANNELS)
    cells = FourierCells.polar(size.grid, radial=size.radial, angular=16)
    columns = Columns(MEMBERS, tuple(range(1, size.steps + 1)))
    weights = 0.01 * torch.randn(columns.number)
    fitted = FittedEnsemble.from_weights(weights, columns, cells, measured=(0, 1))
    sums = GramAccumulator(columns, cells, measured=(0, 1), exponents=(1.0,), groups=1)
    group = torch.zeros(BATCH, dtype=torch.long)

    def bare():
        roll_out(modules, history, source, size.steps, lambda *_: None)

    def predict():
        composition = fitted.compose(source)
        roll_out(modules, history, source, size.steps, composition.add)
        composition.result()

    def gram():
        spectra = sums.begin(source, target)
        roll_out(modules, history, source, size.steps, spectra.add)
        sums.add(group)  # as fitting does: into running sums

    times = {"bare": [], "predict": [], "gram": []}
    bare()
    for _ in range(repeats):
        for action in (bare, predict, gram):
            times[action.__name__].append(seconds(action))
    return times


def main():
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=9)
    given = options.parse_args()
    size = BRIEF if given.brief else Size()
    print_conditions(brief=given.brief)
    times = measure(size, given.repeats)
    print(f"batch {BATCH}, M = {MEMBERS}, L = {size.steps}\n")
    print("| what | seconds per batch | ratio to the bare roll-out | target |")
    print("|---|---|---|---|")
    targets = {"bare": "", "predict": "<= 1.03", "gram": "<= 1.10"}
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, times["bare"], strict=True))
        print(f"| {name} | {statistics.median(taken):.3f} | {ratio:.3f} | {targets[name]} |")


if __name__ == "__main__":
    main()
