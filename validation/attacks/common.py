"""What the attacks share: how outcomes are counted and shown, and a small artifact to attack."""

import argparse
import contextlib
import io
import os
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

import r2no
from r2no.adaptation import AdaptedModel, AdaptSettings, EnsembleSettings, RepairSettings
from r2no.data import ArrayWindows, Normaliser
from r2no.errors import R2NOError
from r2no.training import PhysicalOperator, TrainSettings

#: What may happen, in the order of the table; the last four must not.
KINDS = ("refused", "right", "wrong", "raw", "lost", "code")
BAD = KINDS[2:]
FRAMES, GRID = 4, (8, 12)


@dataclass
class Tally:
    """Outcomes of one attack."""

    attack: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, kind: str, detail: str = "") -> None:
        """Count one trial; what must not happen is also remembered."""
        self.counts[kind] += 1
        if kind in BAD:
            self.faults.append(f"{self.attack}: {kind}: {detail}")

    @contextlib.contextmanager
    def trial(self, detail: str) -> Iterator[None]:
        """Count a block that ends in a named error as refused, in another error as raw.

        A block that ends without an error has counted its outcome itself.
        """
        try:
            yield
        except R2NOError:
            self.add("refused")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            self.add("raw", f"{detail}: {type(error).__name__}: {error} ({place})")

    def no_raw(self, detail: str, action: Callable[[], object]) -> None:
        """Do something that may succeed or be refused, but not fail otherwise; not a trial."""
        scratch = Tally(self.attack)
        with scratch.trial(detail):
            action()
        if scratch.faults:
            self.add("raw", scratch.faults[0])

    def row(self) -> str:
        """As a line of the table."""
        numbers = [str(self.counts[kind]) for kind in KINDS]
        return f"| {self.attack} | {sum(self.counts.values())} | {' | '.join(numbers)} |"


HEAD = f"| attack | tried | {' | '.join(KINDS)} |\n|---|{'---|' * (len(KINDS) + 1)}"


def run_script(attack: Callable[[argparse.Namespace], list[Tally]], **options: int) -> None:
    """Parse ``options``, numbers with their defaults, run an attack, print its table, and exit."""
    parser = argparse.ArgumentParser(description=sys.modules[attack.__module__].__doc__)
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    tallies = attack(parser.parse_args())
    print(HEAD, *(tally.row() for tally in tallies), sep="\n")
    faults = [fault for tally in tallies for fault in tally.faults]
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(bool(faults))


def wave(seed: int, frames: int = 40) -> torch.Tensor:
    """A smooth field of two channels that moves, (time, height, width, channel)."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(frames)[:, None, None]
    y = torch.arange(GRID[0])[None, :, None] / GRID[0]
    x = torch.arange(GRID[1])[None, None, :] / GRID[1]
    phase = 6.283 * torch.rand((), generator=generator)
    first = torch.sin(6.283 * (x - 0.05 * time) + phase) + 0 * y
    second = torch.cos(12.566 * (y + 0.03 * time) + phase) + 0 * x
    values = torch.stack([first, second], -1)
    return values + 0.05 * torch.randn(values.shape, generator=generator)


def windows(seeds: range) -> ArrayWindows:
    """Windows of 4 + 4 frames over some waves."""
    return ArrayWindows([wave(seed) for seed in seeds], FRAMES, FRAMES, stride=3)


SETTINGS = AdaptSettings(
    members=2,
    batch_size=5,
    repair=RepairSettings(
        width=4, depth=2, steps=3, train=TrainSettings(epochs=1, batch_size=6, lr=5e-3)
    ),
    ensemble=EnsembleSettings(radial=4, angular=4),
)


def toy_source(seed: int = 0) -> PhysicalOperator:
    """A small network that comes with the artifact."""
    torch.manual_seed(seed)
    shape = (FRAMES, *GRID, 2)
    config = r2no.backbones.small_config("fno", shape_in=shape, shape_out=shape)
    statistics = Normaliser(torch.tensor([0.1, 0.0]), torch.tensor([0.7, 1.0]))
    network = r2no.backbones.build("fno", config=config)
    return PhysicalOperator(network, statistics, statistics)


def toy_model(seed: int = 0) -> AdaptedModel:
    """A small adapted model."""
    return r2no.adapt(
        toy_source(seed), windows(range(2)), windows(range(10, 14)), settings=SETTINGS
    )


def history() -> torch.Tensor:
    """Two windows that no fit has seen."""
    test = windows(range(20, 21))
    return torch.stack([test[number].history for number in (0, 4)])


def write_npz(path: Path, seed: int = 30, frames: int = 200) -> Path:
    """A data file that a toy model forecasts from."""
    values = wave(seed, frames).numpy()
    np.savez(path, **{str(channel): values[..., channel] for channel in range(2)})
    return path


def command(*arguments: object) -> list[str]:
    """A command of r2no as a process."""
    return [sys.executable, "-m", "r2no.cli.main", *map(str, arguments)]


def python(code: str, *arguments: object) -> list[str]:
    """Code as a process."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """This process's, with one thread unless said otherwise."""
    calm = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # other work goes on beside it
    return {**os.environ, **calm, **changes}


def ended(tally: Tally, run: "subprocess.CompletedProcess[str]", detail: str) -> bool:
    """Whether a process succeeded; if not, counts it as refused by name or as raw."""
    if run.returncode == 0:
        return True
    said = run.stderr.strip()
    if run.returncode < 0 or "Traceback" in said or "Error: " not in said:
        tally.add("raw", f"{detail}: code {run.returncode}: {said[-400:]}")
    else:
        tally.add("refused")
    return False


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing on standard output."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
