"""Roll-out and training step against a plain eager loop of the same module (DESIGN section 5).

    python -m benchmarks.rollout [--repeats 5] [--roll-out] [--widths] [--brief]

The plain loop is what one would write first: concatenate history and estimate along the channel
axis at every step, contiguous layout, BatchNorm kept. Loops are timed by the wall and by processor
time, alternating, medians; their results must agree to 1e-5. Memory is the growth of the process's
peak, each variant in a process of its own. ``--roll-out`` leaves training out; ``--widths`` only
compares the prepared levels of folded modules of several widths with their plain ones.
"""

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from benchmarks import parser, peak_megabytes, print_conditions, share
from r2no import RepairUNet
from r2no.repair_loop import RepairObjective, inference, repair, spectral_weight

CHANNELS, STEPS, BATCH = 3, 12, 2
MEASURED = [0, 1]
AGREED = 1e-5
KINDS = ("plain", "ours", "checkpointed")


@dataclass(frozen=True)
class Size:
    """Of a window and of the module."""

    grid: tuple[int, int] = (64, 128)
    frames: int = 20
    width: int = 32


BRIEF = Size((16, 32), frames=4, width=4)


def plain_forward(module, history, estimate):
    """The same network and weights, written plainly."""
    planes = [x.permute(0, 1, 4, 2, 3).flatten(1, 2) for x in (history, estimate)]
    values = torch.cat(planes, 1)
    values = module.second(F.gelu(module.first.norm(module.first.conv(values))))
    skips = []
    for down in module.down:
        skips.append(values)
        values = down(F.max_pool2d(values, 2))
    for up in module.up:
        values = up(values, skips.pop())
    return module.last(values).unflatten(1, (-1, CHANNELS)).permute(0, 1, 3, 4, 2)


def plain_loop(module, history, estimate):
    iterates = [estimate]
    for _ in range(STEPS):
        iterates.append(iterates[-1] + 0.2 * plain_forward(module, history, iterates[-1]))
    return torch.stack(iterates)


def plain_loss(module, history, source, target):
    filled = target.clone()
    filled[..., 2] = source[..., 2]
    iterates = plain_loop(module, history, source)
    loss = 0.0
    wanted = target[..., MEASURED].permute(0, 1, 4, 2, 3)
    for depth in range(1, STEPS + 1):
        found = iterates[depth][..., MEASURED].permute(0, 1, 4, 2, 3)
        loss = loss + F.mse_loss(found, wanted) / STEPS
        gap = [torch.fft.rfft2(x, norm="ortho").abs() for x in (found, wanted)]
        weight = spectral_weight(tuple(target.shape[2:4]), depth=depth, steps=STEPS).float()
        loss = loss + (weight * (gap[0] - gap[1]) ** 2).mean() / STEPS
    still = plain_forward(module, history, filled)[..., MEASURED]
    return loss + 0.01 * still.square().mean()


def build(size, plain):
    torch.manual_seed(0)
    planes = size.frames * CHANNELS
    module = RepairUNet(planes, planes, width=size.width)
    if plain:
        module.to(memory_format=torch.contiguous_format)
    fields = [torch.randn(BATCH, size.frames, *size.grid, CHANNELS) for _ in range(3)]
    return module, fields


def step(size, kind):
    """One training step of a kind; returns the loss."""
    module, fields = build(size, kind == "plain")

    def run():
        module.zero_grad(set_to_none=True)
        if kind == "plain":
            loss = plain_loss(module, *fields)
        else:
            objective = RepairObjective(checkpointing=kind == "checkpointed")
            loss = objective(module, *fields, measured=(0, 1)).total
        loss.backward()
        return float(loss.detach())

    return run


def peak_growth(size, kind):
    """Run in a fresh process: peak memory of one training step, in MB."""
    run, before = step(size, kind), peak_megabytes()
    run()
    return peak_megabytes() - before


def growths_apart(brief):
    """The growth of each kind, in processes of their own."""
    command = [sys.executable, "-m", "benchmarks.rollout", *(["--brief"] if brief else [])]
    found = {}
    for kind in KINDS:
        done = subprocess.run([*command, "--memory-of", kind], check=True, stdout=subprocess.PIPE)
        found[kind] = float(done.stdout)
    return found


@torch.no_grad()
def roll_outs(size, repeats):
    """Median seconds of both loops, and the largest difference of what they compute."""
    plain, (history, source, _) = build(size, True)
    plain.eval()
    fast = build(size, False)[0].folded()
    loops = {
        "plain": lambda: plain_loop(plain, history, source),
        "ours": lambda: repair(fast, history, source),
    }
    difference = float((loops["plain"]() - loops["ours"]()).abs().max())
    if difference > AGREED:
        raise SystemExit(f"The loops differ by {difference:.1e}, more than {AGREED:.0e}.")
    return medians(loops, repeats), difference


@torch.no_grad()
def compare_widths(size, repeats):
    """Print the time of prepared levels next to plain ones, by width."""
    print("| width | plain levels, s | prepared, s | prepared / plain |\n|---|---|---|---|")
    for width in (4, 8, 16, 32):
        module, (history, source, _) = build(Size(size.grid, size.frames, width), False)
        plain, fast = module.folded(), module.folded()
        plain._kept = None
        loops = {
            "plain": lambda m=plain, x=history, h=source: repair(m, x, h),
            "prepared": lambda m=fast, x=history, h=source: repair(m, x, h),
        }
        least, inference._LEAST_WIDTH = inference._LEAST_WIDTH, 1
        try:
            for loop in loops.values():
                loop()
            taken = {name: found.processor for name, found in medians(loops, repeats).items()}
        finally:
            inference._LEAST_WIDTH = least
        a, b = taken["plain"], taken["prepared"]
        print(f"| {width} | {a:.3f} | {b:.3f} | {share(b, a)} |")


class Seconds(NamedTuple):
    """Of one call."""

    wall: float
    processor: float


def medians(actions, repeats):
    """Median seconds of each action, taken in turn."""
    times = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            begun = time.perf_counter(), time.process_time()
            action()
            ended = time.perf_counter(), time.process_time()
            times[name].append([b - a for a, b in zip(begun, ended, strict=True)])
    return {
        name: Seconds(*map(statistics.median, zip(*taken, strict=True)))
        for name, taken in times.items()
    }


def main():
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--roll-out", action="store_true", help="without training steps")
    options.add_argument("--widths", action="store_true", help="prepared levels by width only")
    options.add_argument("--memory-of", choices=KINDS, help=argparse.SUPPRESS)
    given = options.parse_args()
    size = BRIEF if given.brief else Size()
    if given.memory_of:
        print(peak_growth(size, given.memory_of))
        return
    if given.widths:
        print_conditions(brief=given.brief)
        compare_widths(size, given.repeats)
        return
    roll, difference = roll_outs(size, given.repeats)
    print_conditions(brief=given.brief)
    print(f"batch {BATCH}; largest difference {difference:.1e}\n")
    if given.roll_out:
        print_table(roll)
        return
    steps = {kind: step(size, kind) for kind in KINDS}
    print(f"losses { {kind: run() for kind, run in steps.items()} }\n")
    print_table(roll, medians(steps, given.repeats), growths_apart(given.brief))


def print_table(roll, train=None, memory=None):
    """Seconds of the loops and of the training steps, and the growth of memory in MB."""
    print("| what | plain | ours | ratio | target |")
    print("|---|---|---|---|---|")
    for clock in Seconds._fields:
        a, b = (getattr(roll[name], clock) for name in ("plain", "ours"))
        what = f"roll-out of {STEPS} steps, {clock} s"
        print(f"| {what} | {a:.2f} | {b:.2f} | {share(a, b)}x faster | >= 1.35x |")
    if train is None or memory is None:
        return
    a, b, c = (train[kind].processor for kind in KINDS)
    print(f"| training step, processor s | {a:.2f} | {b:.2f} | {share(b, a)} of the time | <= 1 |")
    what = "with checkpointing, processor s"
    print(f"| {what} | {a:.2f} | {c:.2f} | {share(c, a)} of the time | <= 1.4 |")
    a, c = memory["plain"], memory["checkpointed"]
    print(f"| its peak memory, MB | {a:.0f} | {c:.0f} | {share(c, a)} | <= 0.35 |")


if __name__ == "__main__":
    main()
