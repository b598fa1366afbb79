"""Roll-out and training step against a plain eager loop of the same module (DESIGN section 5).

    python -m benchmarks.rollout [--repeats 3]

The plain loop is what one would write first: concatenate history and estimate along the channel
axis at every step, contiguous layout, BatchNorm kept. Memory is the growth of the process's peak,
each variant in a process of its own.
"""

import argparse
import datetime
import platform
import resource
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

from r2no import RepairUNet
from r2no.repair import RepairObjective, repair, spectral_weight

GRID, FRAMES, CHANNELS, STEPS, BATCH = (64, 128), 20, 3, 12, 2
MEASURED = [0, 1]


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
    return module.last(values).unflatten(1, (FRAMES, CHANNELS)).permute(0, 1, 3, 4, 2)


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
        weight = spectral_weight(GRID, depth=depth, steps=STEPS).float()
        loss = loss + (weight * (gap[0] - gap[1]) ** 2).mean() / STEPS
    still = plain_forward(module, history, filled)[..., MEASURED]
    return loss + 0.01 * still.square().mean()


def build(plain):
    torch.manual_seed(0)
    module = RepairUNet(FRAMES * CHANNELS, FRAMES * CHANNELS, width=32)
    if plain:
        module.to(memory_format=torch.contiguous_format)
    fields = [torch.randn(BATCH, FRAMES, *GRID, CHANNELS) for _ in range(3)]
    return module, fields


def step(kind):
    """One training step of a kind; returns the loss."""
    module, fields = build(kind == "plain")

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


def timed(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def peak_growth(kind):
    """Run in a fresh process: peak memory of one training step, in MB."""
    run = step(kind)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-of", choices=["plain", "ours", "checkpointed"])
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(peak_growth(arguments.memory_of))
        return
    plain, fields = build(True)
    plain.eval()
    fast = build(False)[0].folded()
    history, source, _ = fields
    with torch.no_grad():
        difference = float(
            (plain_loop(plain, history, source) - repair(fast, history, source)).abs().max()
        )
        loops = {
            "plain": lambda: plain_loop(plain, history, source),
            "ours": lambda: repair(fast, history, source),
        }
        times = {name: [] for name in loops}
        for _ in range(arguments.repeats):
            for name, action in loops.items():
                times[name].append(timed(action))
    steps = {kind: step(kind) for kind in ("plain", "ours", "checkpointed")}
    losses = {kind: run() for kind, run in steps.items()}
    train = {kind: [] for kind in steps}
    for _ in range(arguments.repeats):
        for kind, run in steps.items():
            train[kind].append(timed(run))
    command = [sys.executable, "-m", "benchmarks.rollout", "--memory-of"]
    memory = {
        kind: float(subprocess.run([*command, kind], check=True, capture_output=True).stdout)
        for kind in steps
    }
    print(f"{datetime.date.today()}, {platform.machine()}, {torch.get_num_threads()} threads,")
    print(f"torch {torch.__version__}, batch {BATCH}; largest difference {difference:.1e},")
    print(f"losses {losses}\n")
    print("| what | plain s | ours s | ratio | target |")
    print("|---|---|---|---|---|")
    a, b = (statistics.median(times[name]) for name in ("plain", "ours"))
    print(f"| roll-out of 12 steps | {a:.2f} | {b:.2f} | {a / b:.2f}x faster | >= 1.35x |")
    a, b, c = (statistics.median(train[name]) for name in ("plain", "ours", "checkpointed"))
    print(f"| training step | {a:.2f} | {b:.2f} | {b / a:.2f} of the time | <= 1 |")
    print(f"| with checkpointing | {a:.2f} | {c:.2f} | {c / a:.2f} of the time | <= 1.4 |")
    share = memory["checkpointed"] / memory["plain"]
    print(
        f"| its peak memory, MB | {memory['plain']:.0f} | {memory['checkpointed']:.0f} "
        f"| {share:.2f} | <= 0.35 |"
    )


if __name__ == "__main__":
    main()
