"""How long a training waits for data while worker processes read ahead.

A step of a device is a sleep of 44 ms, what an update of a repair module costs on an A100 by
arithmetic. Batches of 16 windows are read, collated and normalised by r2no's own readers: of the
tiny benchmark data, and of rows of the published size. The first epoch, which starts the
processes, is told apart; the share of time spent waiting is that of the epochs after it. Readers
take turns.

    python -m benchmarks.loader [--folder DIR] [--brief]
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import data as rows
from benchmarks import parser, print_conditions
from r2no.data import Normaliser, Window, Windows
from r2no.data.ahead import ahead
from r2no.devices import CPU
from r2no.realpdebench import RealPDEBench, write_tiny
from r2no.training.batches import Batch, TrainingBatches
from r2no.training.engine import epoch_order

STEP = 0.044  # seconds
BATCH = 16
READERS = {  # by name: number of processes, and the device whose rule is followed
    "nobody ahead": (0, CPU),
    "a thread": (0, torch.device("cuda")),  # which is only named, not used
    "1 process": (1, CPU),
    "2 processes": (2, CPU),
}


@dataclass(frozen=True)
class Size:
    """Rounds, epochs that are measured in each, their batches, frames of a published-size row."""

    rounds: int = 2
    epochs: int = 1
    batches: int = 24
    frames: int = 500


BRIEF = Size(rounds=1, epochs=1, batches=3, frames=100)


def cases(folder: Path, size: Size) -> Iterator[tuple[str, Windows]]:
    tiny = write_tiny(folder / "tiny", ["cylinder"], layouts=["arrow"])
    yield "tiny, real", RealPDEBench(tiny, "cylinder", "real")
    yield (
        "tiny, simulated with noise",
        RealPDEBench(tiny, "cylinder", "numerical", noise_scale=0.01),
    )
    for kind, noise in (("real", 0.0), ("numerical", 0.01)):
        number = min(BATCH * size.batches, size.frames - 41)
        rows.write_row(folder, kind, rows.Size(frames=size.frames, windows=number))
        name = "published size, real" if kind == "real" else "published size, simulated with noise"
        yield name, RealPDEBench(folder, "cylinder", kind, noise_scale=noise)


def items(windows: Windows, size: Size) -> Iterator[tuple[list[int], int]]:
    """Batches as a training takes them; small data are repeated to fill an epoch."""
    for epoch in range(size.epochs + 1):
        order = epoch_order(len(windows), 0, epoch)
        order = (order * (BATCH * size.batches // len(order) + 1))[: BATCH * size.batches]
        for start in range(0, len(order), BATCH):
            yield order[start : start + BATCH], epoch


class Reading:
    """One kind of reader: seconds waited for batches, and in all, by epoch."""

    def __init__(self, windows: Windows, workers: int, device: torch.device) -> None:
        self._windows, self._workers, self._device = windows, workers, device
        window: Window = windows[0]
        self._statistics = [Normaliser.gaussian([part]) for part in window[:2]]
        self.started: list[float] = []  # waited in the first epoch, which starts the processes
        self.waited = self.whole = 0.0  # in those after it

    def run(self, size: Size) -> float:
        """Train by sleeping; returns a sum of what was read."""
        read, total = TrainingBatches(self._windows, *self._statistics), 0.0
        given = items(self._windows, size)
        found = ahead(read, given, workers=self._workers, device=self._device)
        with contextlib.closing(found) as batches:
            for epoch in range(size.epochs + 1):
                begin, waited = time.perf_counter(), 0.0
                for _ in range(size.batches):
                    asked = time.perf_counter()
                    batch: Batch = next(batches)
                    waited += time.perf_counter() - asked
                    total += float(batch.window.history[0, 0].double().sum())
                    time.sleep(STEP)
                if epoch == 0:
                    self.started.append(waited)
                else:
                    self.waited += waited
                    self.whole += time.perf_counter() - begin
        return total


def measure(name: str, windows: Windows, size: Size) -> None:
    readings = {reader: Reading(windows, *how) for reader, how in READERS.items()}
    for _ in range(size.rounds):
        sums = {reading.run(size) for reading in readings.values()}
        assert len(sums) == 1, "who reads must not change what is read"
    cost = 1e3 * readings["nobody ahead"].waited / (size.rounds * size.epochs * size.batches)
    waits = [f"{100 * reading.waited / reading.whole:.1f} %" for reading in readings.values()]
    first = max(readings["2 processes"].started)
    print(f"| {name} | {cost:.1f} ms | {' | '.join(waits)} | {first:.1f} s |", flush=True)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--folder", help="where to put 0.3 GB for a while")
    given = options.parse_args()
    size = BRIEF if given.brief else Size()
    torch.set_num_threads(1)
    print_conditions(brief=given.brief)
    print(f"Share of time that a training with steps of {1e3 * STEP:.0f} ms waits for data:\n")
    print(
        f"| data | reading a batch of {BATCH} | {' | '.join(READERS)} | first epoch, 2 processes |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        for name, windows in cases(Path(scratch), size):
            measure(name, windows, size)


if __name__ == "__main__":
    main()
