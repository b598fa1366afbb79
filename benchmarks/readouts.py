"""All readouts of all studies against the roll-out that feeds them, at the published size.

    python -m benchmarks.readouts [--windows 2]

One pass of ``r2no bench`` over the test split: three modules of width 32, twelve steps, 64 x 128,
128 x 16 cells, every readout scored with every metric. The target is 1.25 times the roll-out. The
contraction estimates, made on eight windows of a test split of thousands, are left out.
"""

import argparse
import datetime
import platform
from dataclasses import replace

import torch

from r2no import FourierCells, RepairUNet, SpectralEnsemble
from r2no.adaptation import AdaptedModel, AdaptSettings, Trajectories
from r2no.data import ArrayWindows
from r2no.data.normalise import Normaliser
from r2no.ensemble import DepthErrors, GramSums
from r2no.experiments.bench.passes import Scorer
from r2no.experiments.bench.readouts import StudyReadouts
from r2no.experiments.realpdebench.evaluation import Protocol
from r2no.training import Persistence, Reporter

GRID, FRAMES, CHANNELS, MEMBERS, STEPS, READOUTS = (64, 128), 20, 3, 3, 12, 24
MEASURED = (0, 1)


def windows(number: int) -> ArrayWindows:
    frames = 2 * FRAMES + number - 1
    generator = torch.Generator().manual_seed(0)
    field = torch.randn(frames, *GRID, CHANNELS, generator=generator)
    field[..., 2] = 0
    return ArrayWindows([field], FRAMES, FRAMES, stride=1, measured=MEASURED)


def fitted() -> SpectralEnsemble:
    """An ensemble of the published size, from sums of random columns."""
    ensemble = SpectralEnsemble(FourierCells.polar(GRID), 1e-4, MEASURED)
    columns = ensemble.set_columns(MEMBERS, STEPS)
    sums = GramSums.zeros(columns, ensemble.cells, len(MEASURED), 1)
    size = columns.number + 1
    sample = torch.randn(ensemble.cells.num_cells, 2, size, size, dtype=torch.float64)
    moments = (sample @ sample.mT / size + torch.eye(size, dtype=torch.float64))[None]
    return ensemble.solve(replace(sums, moments=moments, windows=torch.ones_like(sums.windows)))


def model() -> AdaptedModel:
    flat = Normaliser(torch.zeros(CHANNELS), torch.ones(CHANNELS))
    torch.manual_seed(0)
    modules = [RepairUNet(FRAMES * CHANNELS, FRAMES * CHANNELS) for _ in range(MEMBERS)]
    loops = Trajectories(tuple(m.eval() for m in modules), flat, flat, STEPS, 0.2)
    bands = FourierCells.bands(GRID)
    errors = DepthErrors.empty(bands, members=MEMBERS, steps=STEPS, measured=MEASURED)
    source, fields = Persistence(FRAMES, CHANNELS), windows(1).fields
    settings = AdaptSettings(batch_size=2)
    probe = torch.zeros(1)
    return AdaptedModel(source, loops, fitted(), errors, fields, settings, {}, probe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=2)
    data, adapted = windows(parser.parse_args().windows), model()
    chosen = StudyReadouts({f"readout {n}": adapted.ensemble for n in range(READOUTS)}, {})
    found = Scorer(adapted, chosen, data, Protocol(), theory=0).run(Reporter(quiet=True))
    print(f"{datetime.date.today()}, {platform.machine()}, {torch.get_num_threads()} thread(s)")
    for name in ("rollout", "readouts"):
        print(f"{name:>10}: {found.seconds[name] / len(data):.3f} s per window")
    print(f"with all readouts: {1 + found.seconds['readouts'] / found.seconds['rollout']:.3f} x")


if __name__ == "__main__":
    main()
