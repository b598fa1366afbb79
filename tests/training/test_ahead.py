"""Batches that worker processes read ahead: the same bits, whoever reads, and named ends."""

import contextlib
import itertools
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.support import pretend
from tests.support.waves import travelling_wave
from torch import nn

from r2no import devices
from r2no.data import ArrayWindows, Normaliser, Window
from r2no.data.ahead import ahead
from r2no.data.window import Seen, collate
from r2no.devices import CPU
from r2no.errors import DataError, ProcessError
from r2no.progress import Reporter
from r2no.training import Problem, TrainSettings, optimise
from r2no.training.problems import TrainingBatches

SETTINGS = {"epochs": 3, "batch_size": 3, "lr": 0.05}


class Noisy(Seen):
    """Windows that differ from epoch to epoch, and keep the epoch where processes share it."""

    def __init__(self, windows: ArrayWindows) -> None:
        super().__init__(windows)
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Window:
        window = self._windows[index]
        seed = 1000 * int(self._epoch) + index
        noise = torch.randn(window.history.shape, generator=torch.Generator().manual_seed(seed))
        return window._replace(history=window.history + noise)


@pytest.fixture
def mapped(tmp_path: Path) -> ArrayWindows:
    """Nineteen windows of a file."""
    np.save(tmp_path / "wave.npy", travelling_wave(0, frames=26))
    return ArrayWindows([np.load(tmp_path / "wave.npy", mmap_mode="r")], 4, 4)


class Regression:
    """A linear map with dropout, so that the order, the noise and the random state matter."""

    def __init__(self, windows: Seen | ArrayWindows, stop: int = -1) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3))
        identity = Normaliser(torch.tensor([0.1, 0.0]), torch.tensor([0.7, 1.5]))
        self.read, self.stop = TrainingBatches(windows, identity, identity), stop

    def loss(self, batch):
        self.stop -= 1
        if self.stop == -1:
            raise KeyboardInterrupt
        value = (self.net(batch.window.history) - batch.window.target).square().mean()
        return value, {"loss": value}

    def run(self, folder: Path, *, reporter: Reporter | None = None, **settings):
        size = len(self.read.windows)
        return optimise(
            Problem(self.net, self.loss, lambda: 1.0, size, "k", read=self.read),
            TrainSettings(**SETTINGS, **settings),
            folder=folder,
            save_seconds=0.0,
            **({} if reporter is None else {"reporter": reporter}),
        )


@pytest.fixture
def expected(mapped, tmp_path):
    """Losses and weights of a run that reads by itself."""
    problem = Regression(Noisy(mapped))
    return problem.run(tmp_path / "alone", workers=0), problem.net.state_dict()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_the_same_bits_also_after_a_kill(
    workers, mapped, expected, tmp_path
):
    with pytest.raises(KeyboardInterrupt):
        Regression(Noisy(mapped), stop=10).run(tmp_path / "cut", workers=workers)  # in epoch 1
    again, said = Regression(Noisy(mapped)), Said()
    other = 3 - workers // 2  # it goes on with another number of them
    found = again.run(tmp_path / "cut", workers=other, reporter=said)
    assert not said.words  # processes read, no thread
    assert found.losses == expected[0].losses
    for name, value in again.net.state_dict().items():
        assert torch.equal(value, expected[1][name])


class Said(Reporter):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.words: list[str] = []

    def say(self, text: str) -> None:
        self.words.append(text)


@dataclass
class Told:
    """Tells who reads, and fails or dies where it should."""

    fails: int = -1
    dies: int = -1

    def __call__(self, number: int) -> tuple[int, int]:
        if number == self.fails:
            raise DataError("`wave` is damaged.")
        if number == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return number, os.getpid()


def test_errors_of_a_worker_keep_their_name_and_a_lost_worker_gets_one():
    items = [(number,) for number in range(12)]
    found = list(ahead(Told(), items, workers=2, device=CPU))
    assert [number for number, _ in found] == list(range(12))
    assert len({process for _, process in found} - {os.getpid()}) == 2
    with pytest.raises(DataError, match=r"^`wave` is damaged\.$"):
        list(ahead(Told(fails=5), items, workers=1, device=CPU))
    with pytest.raises(ProcessError, match="fewer `workers`"):
        list(ahead(Told(dies=5), items, workers=1, device=CPU))


def test_a_lost_worker_leaves_the_last_good_state(mapped, expected, tmp_path):
    problem = Regression(Noisy(mapped))
    problem.read = Dies(problem.read.windows, problem.read.of_history, problem.read.of_field)
    with pytest.raises(ProcessError, match="Run the same again to go on"):
        problem.run(tmp_path / "lost", workers=1)
    assert (tmp_path / "lost" / "state.safetensors").exists()
    assert Regression(Noisy(mapped)).run(tmp_path / "lost", workers=0).losses == expected[0].losses


class Dies(TrainingBatches):
    """A reader that is killed in the second epoch."""

    def __call__(self, numbers, epoch):
        if epoch == 1 and 7 in numbers:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(numbers, epoch)


class Shapes(NamedTuple):
    whole: torch.Tensor
    part: torch.Tensor
    turned: torch.Tensor
    nothing: None = None


def shapes(number: int) -> Shapes:
    """Tensors of a size that comes and goes, one of them not as it lies in memory, one empty."""
    rows = (1, 5, 3, 700, 0, 2)[number % 6]
    stacked = collate(
        [Window(torch.full((2, 3), float(n + number)), torch.ones(1)) for n in (1, 2)]
    )
    values = torch.arange(6 * rows, dtype=torch.float64).reshape(rows, 6) + number
    return Shapes(stacked.history, stacked.history[1:], values.t())


@pytest.mark.parametrize("workers", [1, 3])
def test_results_of_any_shape_come_through_memory_that_is_used_again(workers):
    seen = set()
    with contextlib.closing(
        ahead(shapes, ((n,) for n in range(40)), workers=workers, device=CPU)
    ) as found:
        for number, one in enumerate(found):
            expected = shapes(number)
            assert torch.equal(one.whole, expected.whole)
            assert torch.equal(one.part, expected.part)
            assert torch.equal(one.turned, expected.turned)
            assert one.turned.dtype == torch.float64
            assert one.nothing is None
            if number >= 12 * workers:  # every size was there in every piece
                seen.add(one.whole.untyped_storage().data_ptr())
    assert len(seen) <= 2 * workers


class Odd(Exception):
    """Cannot be made again from what it says."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"odd {first} {second}")


def fails(number: int) -> None:
    raise (ValueError("plain") if number == 0 else Odd(1, 2))


def test_any_error_of_a_reader_is_told_with_its_place():
    with pytest.raises(ValueError, match="plain") as found:
        list(ahead(fails, [(0,)], workers=1, device=CPU))
    assert "in fails" in found.value.__notes__[0]
    with pytest.raises(RuntimeError, match=r"(?s)in fails.*odd 1 2"):
        list(ahead(fails, [(1,)], workers=1, device=CPU))


def cramped(number: int) -> torch.Tensor:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # shared memory is a file
    return torch.ones(number)


def test_too_little_shared_memory_is_named():
    with pytest.raises(ProcessError, match=r"no shared memory .*0\.1 MB.*set `workers` to 0"):
        list(ahead(cramped, [(20_000,)], workers=1, device=CPU))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_pinned_ahead_and_copied_without_waiting(workers, mapped, monkeypatch):
    """As for CUDA; what is pinned, and by whom, is noted, since nothing here can pin."""
    pinned, seen_in = {}, []

    def pin(values):
        if id(values) not in pinned:
            seen_in.append(threading.current_thread().name.split("_")[0])
            values = values.clone()
            pinned[id(values)] = values  # kept, so that the number stays its own
        return values

    monkeypatch.setattr(devices, "pins", lambda device: device.type == "pretend")
    monkeypatch.setattr(devices, "pinned", pin)
    problem = Regression(Noisy(mapped))
    items = [([n, n + 1], 0) for n in range(0, 18, 2)]
    expected = [problem.read(*item) for item in items]
    with pretend.accelerator() as seen:
        found = ahead(problem.read, items, workers=workers, device=pretend.DEVICE)
        there = [batch.to(pretend.DEVICE) for batch in found]
        assert (seen.there, seen.unwaited) == (18, 18)  # two tensors of each of nine batches
        for ours, theirs in zip(there, expected, strict=True):
            assert torch.equal(ours.window.history.cpu(), theirs.window.history)
            assert torch.equal(ours.window.target.cpu(), theirs.window.target)
    assert seen_in == ["r2no-reader"] * 18  # not by the thread that computes


def trains_until_it_is_killed(wave: str, folder: str, killed: str) -> None:
    """A training with two readers that kills itself, readers and all, before that update."""
    problem = Regression(Noisy(ArrayWindows([np.load(wave, mmap_mode="r")], 4, 4)))
    loss, left = problem.loss, itertools.count(1 - int(killed))

    def fatal(batch):
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss(batch)

    problem.loss = fatal  # type: ignore[method-assign]
    problem.run(Path(folder), workers=2)


def test_a_training_with_workers_that_is_killed_goes_on_in_the_same_bits(
    mapped, expected, tmp_path
):
    code = f"import sys; from {__name__} import *; trains_until_it_is_killed(*sys.argv[1:])"
    process = program(code, tmp_path / "wave.npy", tmp_path / "cut", 10)  # in the second epoch
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    again = Regression(Noisy(mapped))
    assert again.run(tmp_path / "cut", workers=1).losses == expected[0].losses
    for name, value in again.net.state_dict().items():
        assert torch.equal(value, expected[1][name])


def program(code: str, *arguments: object) -> subprocess.Popen:
    """A Python process that finds these tests."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def reads_for_ever() -> None:
    """Say which processes read, then wait to be killed."""
    found = ahead(Told(), ((number,) for number in itertools.count()), workers=2, device=CPU)
    print(*{next(found)[1] for _ in range(6)}, flush=True)
    signal.pause()


def test_workers_of_a_killed_process_end():
    with program(f"from {__name__} import reads_for_ever; reads_for_ever()") as process:
        readers = [int(word) for word in process.stdout.readline().split()]
        process.kill()
    assert len(readers) == 2
    while any(map(is_running, readers)):  # for ever, if they do not end: the time-out is a net
        time.sleep(0.02)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("why", "word"),
    [("memory", "are in memory"), ("closure", "cannot be sent"), ("script", "has no `if __name__")],
)
def test_what_cannot_go_to_processes_is_read_by_a_thread_with_a_word(
    why, word, mapped, expected, tmp_path, monkeypatch
):
    windows = Noisy(mapped)
    if why == "memory":
        monkeypatch.setattr("r2no.data.ahead._LARGEST", 1000)
    if why == "closure":
        windows.opener = lambda: None  # type: ignore[attr-defined]
    if why == "script":
        script = tmp_path / "script.py"
        script.write_text("adapt()\n")
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    said = Said()
    found = Regression(windows).run(tmp_path / "thread", workers=2, reporter=said)
    assert found.losses == expected[0].losses
    assert len(said.words) == 1
    assert word in said.words[0]
    assert not any("r2no-reader" in thread.name for thread in threading.enumerate())


def test_a_mapped_file_is_sent_by_its_name(mapped):
    assert len(pickle.dumps(mapped)) < 10_000
    assert torch.equal(pickle.loads(pickle.dumps(mapped))[5].target, mapped[5].target)


def test_workers_are_no_part_of_what_a_run_is():
    assert "workers" not in TrainSettings(workers=2).model_dump()
    with pytest.raises(ValueError, match="workers"):
        TrainSettings(workers=-1)
