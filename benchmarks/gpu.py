"""Each stage of an adaptation on a device and on the CPU: seconds, memory, and how far apart.

    python -m benchmarks.gpu [--device cuda] [--json FILE] [--brief]

Data and repair module of the benchmark's cylinder (20 + 20 frames of 64 x 128, three channels,
width 32, twelve steps), of random numbers. Best of the repeats, after one call that warms up.
Differences are of the largest value. It runs on the CPU too, against itself.
"""

import json
from pathlib import Path

import torch

from benchmarks import parser, print_conditions, seconds
from r2no import FourierCells, RepairUNet, devices
from r2no.adaptation import RepairLoops
from r2no.data import Normaliser
from r2no.ensemble import Columns, GramAccumulator
from r2no.metrics import Accumulator
from r2no.repair_loop import RepairObjective

SCHEMA = "r2no.gpu/1"
CHANNELS, MEASURED = 3, (0, 1)


def settings(brief):
    """Frames, grid, width, depth, steps, windows and cells."""
    return (4, (16, 16), 4, 2, 2, 2, (4, 2)) if brief else (20, (64, 128), 32, 4, 12, 8, (128, 16))


class Stages:
    """The stages on one device; each returns what is compared."""

    def __init__(self, device, brief):
        frames, grid, width, depth, self.steps, windows, (radial, angular) = settings(brief)
        generator = torch.Generator().manual_seed(0)
        shape = (windows, frames, *grid, CHANNELS)
        fields = [torch.randn(shape, generator=generator) for _ in range(3)]
        torch.manual_seed(0)
        self.module = RepairUNet(frames * CHANNELS, frames * CHANNELS, width, depth).to(device)
        self.start = {name: one.clone() for name, one in self.module.state_dict().items()}
        self.there = [field.to(device) for field in fields]
        self.history, self.source, self.target = (f.to(devices.of_sums(device)) for f in fields)
        self.cells = FourierCells.polar(grid, radial=radial, angular=angular)
        identity = Normaliser.identity(CHANNELS)
        self.loops = RepairLoops((self.module.eval(),), identity, identity, self.steps, 0.2)

    def training_step(self):
        """One objective with its gradient."""
        self.module.load_state_dict(self.start)
        self.module.train().zero_grad()
        objective = RepairObjective(steps=self.steps)
        objective(self.module, *self.there, measured=MEASURED).total.backward()
        gradient = self.module.last.weight.grad.cpu()
        self.module.load_state_dict(self.start)
        self.module.eval()
        return gradient

    @torch.no_grad()
    def rollout(self):
        """All iterates of the loop; the last one."""
        for _, _, iterate in self.loops(self.history, self.source):
            last = iterate
        return last.cpu()

    @torch.no_grad()
    def gram_sums(self):
        """Sums of all depths, roll-out included."""
        columns = Columns(1, tuple(range(1, self.steps + 1)))
        sums = GramAccumulator(columns, self.cells, measured=MEASURED, exponents=(1.0,), groups=1)
        part = sums.begin(self.source, self.target)
        for member, depth, iterate in self.loops(self.history, self.source):
            part.add(member, depth, iterate)
        sums.add(torch.zeros(len(self.target), dtype=torch.long))
        return sums.collected()[1.0].moments

    def metrics(self):
        """All metrics of one forecast."""
        scores = Accumulator(MEASURED).update(self.source, self.target).compute()
        return torch.tensor(list(scores.values())).nan_to_num()


def measured(device, brief, repeats):
    """Of each stage: best seconds, and what it gives."""
    stages, found = Stages(device, brief), {}
    for name in ("training_step", "rollout", "gram_sums", "metrics"):
        stage = getattr(stages, name)
        result = stage()
        found[name] = min(seconds(stage) for _ in range(repeats)), result
    return found


def report(device, brief, repeats):
    """Everything, as it is written to the file."""
    here, there = (measured(one, brief, repeats) for one in (devices.CPU, device))
    rows = {}
    for name, (slow, expected) in here.items():
        fast, result = there[name]
        apart = float((result - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
        rows[name] = {"cpu_seconds": slow, "device_seconds": fast, "difference": apart}
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {
        "schema": SCHEMA,
        "device": devices.describe(device),
        "torch": torch.__version__,
        "windows": settings(brief)[5],
        "brief": brief,
        "peak_memory_bytes": memory,
        "stages": rows,
    }


def main():
    options = parser(__doc__)
    options.add_argument("--device", default="auto")
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    print_conditions(brief=given.brief)
    found = report(devices.choose(given.device), given.brief, given.repeats)
    print(f"{found['windows']} windows a batch, on {found['device']}\n")
    print("| stage | CPU, s | device, s | ratio | difference |\n|---|---|---|---|---|")
    for name, row in found["stages"].items():
        cpu, device = row["cpu_seconds"], row["device_seconds"]
        shown = f"| {cpu:.4f} | {device:.4f} | {cpu / device:.1f} | {row['difference']:.1e} |"
        print(f"| {name.replace('_', ' ')} {shown}")
    if found["peak_memory_bytes"] is not None:
        print(f"\nPeak memory of the device: {found['peak_memory_bytes'] / 2**20:.0f} MiB")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
