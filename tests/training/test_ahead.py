"""Batches that worker processes read ahead: the same bits, whoever reads, and named ends."""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.waves import travelling_wave
from torch import nn

from r2no.data import ArrayWindows, Normaliser, Window
from r2no.data.ahead import ahead
from r2no.data.window import Seen
from r2no.devices import CPU
from r2no.errors import DataError, ProcessError
from r2no.progress import Reporter
from r2no.training import TrainSettings, optimise
from r2no.training.batches import TrainingBatches

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


class Problem:
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
        return optimise(
            self.net,
            self.loss,
            lambda: 1.0,
            TrainSettings(**SETTINGS, **settings),
            size=len(self.read.windows),
            key="k",
            folder=folder,
            read=self.read,
            save_seconds=0.0,
            **({} if reporter is None else {"reporter": reporter}),
        )


@pytest.fixture
def expected(mapped, tmp_path):
    """Losses and weights of a run that reads by itself."""
    problem = Problem(Noisy(mapped))
    return problem.run(tmp_path / "alone", workers=0), problem.net.state_dict()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_the_same_bits_also_after_a_kill(
    workers, mapped, expected, tmp_path
):
    with pytest.raises(KeyboardInterrupt):
        Problem(Noisy(mapped), stop=10).run(tmp_path / "cut", workers=workers)  # in epoch 1
    again, said = Problem(Noisy(mapped)), Said()
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
    problem = Problem(Noisy(mapped))
    problem.read = Dies(problem.read.windows, problem.read.of_history, problem.read.of_field)
    with pytest.raises(ProcessError, match="Run the same again to go on"):
        problem.run(tmp_path / "lost", workers=1)
    assert (tmp_path / "lost" / "state.safetensors").exists()
    assert Problem(Noisy(mapped)).run(tmp_path / "lost", workers=0).losses == expected[0].losses


class Dies(TrainingBatches):
    """A reader that is killed in the second epoch."""

    def __call__(self, numbers, epoch):
        if epoch == 1 and 7 in numbers:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(numbers, epoch)


def reads_for_ever() -> None:
    """Say which processes read, then wait to be killed."""
    found = ahead(Told(), ((number,) for number in itertools.count()), workers=2, device=CPU)
    print(*{next(found)[1] for _ in range(6)}, flush=True)
    signal.pause()


def test_workers_of_a_killed_process_end():
    program = f"from {__name__} import reads_for_ever; reads_for_ever()"
    command, paths = [sys.executable, "-c", program], os.pathsep.join(sys.path)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
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
    found = Problem(windows).run(tmp_path / "thread", workers=2, reporter=said)
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
