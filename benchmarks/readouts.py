"""All readouts of all studies against the roll-out that feeds them, at the published size.

    python -m benchmarks.readouts [--windows 2] [--brief]

One pass of ``r2no bench`` over the test split: three modules of width 32, twelve steps, 64 x 128,
128 x 16 cells, every readout scored with every metric. The target is 1.25 times the roll-out. The
contraction estimates, made on eight windows of a test split of thousands, are left out.
"""

from dataclasses import replace

import torch

from benchmarks import Size, parser, print_conditions
from r2no import FourierCells, RepairUNet
from r2no.adaptation import AdaptedModel, AdaptSettings, RepairLoops
from r2no.data import ArrayWindows
from r2no.data.normalise import Normaliser
from r2no.ensemble import DepthErrors, FitPlan, FittedEnsemble, GramSums
from r2no.realpdebench.protocol.evaluation import Protocol
from r2no.realpdebench.study.readouts import StudyReadouts, run_pass
from r2no.training import Persistence

CHANNELS, MEASURED, MEMBERS, READOUTS = 3, (0, 1), 3, 24


BRIEF = Size((32, 32), frames=8, width=4, steps=2, radial=8)


def windows(size: Size, number: int) -> ArrayWindows:
    frames = 2 * size.frames + number - 1
    generator = torch.Generator().manual_seed(0)
    field = torch.randn(frames, *size.grid, CHANNELS, generator=generator)
    field[..., 2] = 0
    return ArrayWindows([field], size.frames, size.frames, stride=1, measured=MEASURED)


def fitted(size: Size) -> FittedEnsemble:
    """An ensemble of this size, from sums of random columns."""
    cells, plan = FourierCells.polar(size.grid, radial=size.radial), FitPlan(1e-4, MEASURED)
    columns = plan.columns(MEMBERS, size.steps)
    sums = GramSums.zeros(columns, cells, len(MEASURED), 1)
    side = columns.number + 1
    sample = torch.randn(cells.num_cells, 2, side, side, dtype=torch.float64)
    moments = (sample @ sample.mT / side + torch.eye(side, dtype=torch.float64))[None]
    sums = replace(sums, moments=moments, windows=torch.ones_like(sums.windows))
    return FittedEnsemble.solve(cells, plan, columns, sums)


def model(size: Size) -> AdaptedModel:
    flat = Normaliser(torch.zeros(CHANNELS), torch.ones(CHANNELS))
    torch.manual_seed(0)
    planes = size.frames * CHANNELS
    modules = [RepairUNet(planes, planes, width=size.width) for _ in range(MEMBERS)]
    loops = RepairLoops(tuple(m.eval() for m in modules), flat, flat, size.steps, 0.2)
    bands = FourierCells.bands(size.grid)
    errors = DepthErrors.empty(bands, members=MEMBERS, steps=size.steps, measured=MEASURED)
    source, fields = Persistence(size.frames, CHANNELS), windows(size, 1).fields
    settings = AdaptSettings(batch_size=2)
    probe = torch.zeros(1)
    return AdaptedModel(source, loops, fitted(size), errors, fields, settings, {}, probe)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--windows", type=int, default=2)
    given = options.parse_args()
    size = BRIEF if given.brief else Size()
    data, adapted = windows(size, given.windows), model(size)
    chosen = StudyReadouts({f"readout {n}": adapted.ensemble for n in range(READOUTS)}, {})
    found = run_pass(adapted, chosen, data, Protocol(), theory=0)
    print_conditions(brief=given.brief)
    for name in ("rollout", "readouts"):
        print(f"{name:>10}: {found.seconds[name] / len(data):.3f} s per window")
    print(f"with all readouts: {1 + found.seconds['readouts'] / found.seconds['rollout']:.3f} x")


if __name__ == "__main__":
    main()
