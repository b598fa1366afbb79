"""Cost of the ensemble against the roll-out that feeds it (DESIGN section 5).

    python -m benchmarks.ensemble [--repeats 9]

A 64 x 128 case of 20 frames and 3 channels with three RepairUNets of width 32. Both ratios are of
times taken in one run, alternating: the median over the rounds of each round's ratio.
"""

import argparse
import datetime
import platform
import statistics
import time

import torch

from r2no import FourierCells, RepairUNet, SpectralEnsemble
from r2no.ensemble import Columns, GramSums
from r2no.repair import repair_steps

GRID, FRAMES, CHANNELS, MEMBERS, STEPS, BATCH = (64, 128), 20, 3, 3, 12, 2


def roll_out(modules, history, source, consume):
    """The bare loop: every iterate of every member goes to ``consume``."""
    for member, module in enumerate(modules):
        loop = repair_steps(module, history, source, steps=STEPS, step_size=0.2)
        for depth, iterate in enumerate(loop):
            if depth:
                consume(member, depth, iterate)


def timed(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


@torch.no_grad()
def measure(repeats):
    torch.manual_seed(0)
    channels = FRAMES * CHANNELS
    modules = [RepairUNet(channels, channels, width=32).folded() for _ in range(MEMBERS)]
    history, source, target = (torch.randn(BATCH, FRAMES, *GRID, CHANNELS) for _ in range(3))
    cells = FourierCells.polar(GRID, radial=128, angular=16)
    columns = Columns(MEMBERS, tuple(range(1, STEPS + 1)))
    weights = 0.01 * torch.randn(columns.number)
    fitted = SpectralEnsemble.from_weights(weights, columns, cells, measured=(0, 1))
    fitting = SpectralEnsemble(cells, measured=(0, 1))
    sums = GramSums.zeros(fitting.set_columns(MEMBERS, STEPS), cells, 2, 1)
    group = torch.zeros(BATCH, dtype=torch.long)

    def bare():
        roll_out(modules, history, source, lambda *_: None)

    def predict():
        composition = fitted.compose(source)
        roll_out(modules, history, source, composition.add)
        composition.result()

    spectra = None

    def gram():
        nonlocal spectra
        spectra = fitting.begin(source, target, reuse=spectra)
        roll_out(modules, history, source, spectra.add)
        spectra.add_to(sums, group, 1.0)  # as fitting does: into running sums

    times = {"bare": [], "predict": [], "gram": []}
    bare()
    for _ in range(repeats):
        for action in (bare, predict, gram):
            times[action.__name__].append(timed(action))
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    times = measure(parser.parse_args().repeats)
    print(f"{datetime.date.today()}, {platform.machine()}, {torch.get_num_threads()} threads,")
    print(f"torch {torch.__version__}, batch {BATCH}, M = {MEMBERS}, L = {STEPS}\n")
    print("| what | seconds per batch | ratio to the bare roll-out | target |")
    print("|---|---|---|---|")
    targets = {"bare": "", "predict": "<= 1.03", "gram": "<= 1.10"}
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, times["bare"], strict=True))
        print(f"| {name} | {statistics.median(seconds):.3f} | {ratio:.3f} | {targets[name]} |")


if __name__ == "__main__":
    main()
