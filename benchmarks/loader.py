"""How long a training waits for data while worker processes read ahead.

A step of a device is a sleep of 44 ms, what an update of a repair module costs on an A100 by
arithmetic. Batches of 16 windows are read, collated and normalised by r2no's own readers: of the
tiny benchmark data, and of rows of the published size. The share of time spent waiting is that of
the epochs after the first, and for two processes also of the first, in which they start: what they
are forked from starts before the data are opened, as in `r2no adapt`. Since other jobs make all of
them wait, processor time is measured too: that of a batch read by nobody else, and that of a
process for a batch with handing it over. Readers take turns.

    python -m benchmarks.loader [--folder DIR] [--brief]
"""

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import data as rows
from benchmarks import parser, print_conditions
from r2no.data import Normaliser, Window, Windows
from r2no.data.ahead import ahead, prepare
from r2no.devices import CPU
from r2no.realpdebench import RealPDEBench, write_tiny
from r2no.training.problems import Batch, TrainingBatches
from r2no.training.schedule import epoch_order

STEP = 0.044  # seconds
BATCH = 16
READERS = {  # by name: number of processes, and the device whose rule is followed
    "nobody ahead": (0, CPU),
    "a thread": (0, torch.device("mps")),  # which is only named, not used
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


class Timed(NamedTuple):
    """A batch, who read it, and the processor time that it had taken so far."""

    batch: Batch
    process: int
    seconds: float


@dataclass
class TimedBatches:
    """Reads as a training does."""

    read: TrainingBatches

    def __call__(self, numbers: list[int], epoch: int) -> Timed:
        """As :class:`TrainingBatches`."""
        batch = self.read(numbers, epoch)
        return Timed(batch, os.getpid(), time.process_time())


class Reading:
    """One kind of reader: seconds waited for batches, and in all, by epoch."""

    def __init__(self, windows: Windows, workers: int, device: torch.device) -> None:
        self._windows, self._workers, self._device = windows, workers, device
        window: Window = windows[0]
        self._statistics = [Normaliser.gaussian([part]) for part in window[:2]]
        self.waited, self.whole = [0.0, 0.0], [0.0, 0.0]  # in the first epoch, and after it
        self.busy: list[float] = []  # processor time of a batch

    def run(self, size: Size) -> float:
        """Train by sleeping; returns a sum of what was read."""
        read = TimedBatches(TrainingBatches(self._windows, *self._statistics))
        total, last = 0.0, dict[int, float]()
        given = items(self._windows, size)
        found = ahead(read, given, workers=self._workers, device=self._device)
        with contextlib.closing(found) as batches:
            for epoch in range(size.epochs + 1):
                begin, waited = time.perf_counter(), 0.0
                for _ in range(size.batches):
                    asked = time.perf_counter()
                    found: Timed = next(batches)
                    waited += time.perf_counter() - asked
                    if epoch and found.process in last:
                        self.busy.append(found.seconds - last[found.process])
                    last[found.process] = found.seconds
                    total += float(found.batch.window.history[0, 0].double().sum())
                    time.sleep(STEP)
                self.waited[epoch > 0] += waited
                self.whole[epoch > 0] += time.perf_counter() - begin
        return total


def measure(name: str, windows: Windows, size: Size) -> None:
    readings = {reader: Reading(windows, *how) for reader, how in READERS.items()}
    for _ in range(size.rounds):
        sums = {reading.run(size) for reading in readings.values()}
        assert len(sums) == 1, "who reads must not change what is read"
    two = readings["2 processes"]
    busy = [1e3 * statistics.median(one.busy) for one in (readings["nobody ahead"], two)]
    costs = " | ".join(f"{one:.1f} ms" for one in busy)
    waits = [one.waited[1] / one.whole[1] for one in readings.values()]
    shares = " | ".join(f"{100 * one:.1f} %" for one in (*waits, two.waited[0] / two.whole[0]))
    print(f"| {name} | {costs} | {shares} |", flush=True)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--folder", help="where to put 0.3 GB for a while")
    given = options.parse_args()
    size = BRIEF if given.brief else Size()
    torch.set_num_threads(1)
    print_conditions(brief=given.brief)
    print(f"Share of time that a training with steps of {1e3 * STEP:.0f} ms waits for data:\n")
    costs = f"processor time, batch of {BATCH} | of a process"
    print(f"| data | {costs} | {' | '.join(READERS)} | 2 processes, first epoch |")
    print("|---|---|---|---|---|---|---|---|")
    prepare(None, 2, CPU)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        for name, windows in cases(Path(scratch), size):
            measure(name, windows, size)


if __name__ == "__main__":
    main()
