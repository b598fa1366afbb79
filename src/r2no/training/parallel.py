"""Several trainings side by side in one process, one thread of PyTorch's each or a share of them.

Small networks gain nothing from PyTorch's own threads: two of them train a small repair module no
faster than one. Two modules side by side take hardly longer than one.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

from r2no import ranks
from r2no._types import Number
from r2no.progress import Reporter, Step

Result = TypeVar("Result")


class _Stopped(Exception):
    """Another of the tasks failed, or the user interrupted them all."""


def side_by_side(
    tasks: Sequence[Callable[[Reporter], Result]], *, jobs: int, reporter: Reporter
) -> list[Result]:
    """Run the tasks, at most ``jobs`` at a time, and return their results in order.

    With several processes and at least as many tasks, each process does some of them by itself;
    then all go through all of them, to find them done. Else one task follows the other, because
    the processes meet in each.

    A task must find its results when it is done again. It may use PyTorch's global random generator
    only when ``jobs`` is 1: the others share it. If one fails, or the user interrupts, the rest
    stop at their next sign of progress.
    """
    if 1 < ranks.world_size() <= len(tasks):
        mine = ranks.share(tasks)
        with ranks.alone():
            side_by_side(mine, jobs=jobs, reporter=reporter)
        ranks.barrier()
    jobs = 1 if ranks.world_size() > 1 else min(jobs, len(tasks))
    if jobs <= 1:
        return [task(reporter) for task in tasks]
    threads = max(1, torch.get_num_threads() // jobs)
    stop = threading.Event()
    watched = _Watched(reporter, stop)

    def run(task: Callable[[Reporter], Result]) -> Result:
        torch.set_num_threads(threads)  # of this thread only
        return task(watched)

    with torch.random.fork_rng(devices=[]), ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, task) for task in tasks]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if any(not future.done() for future in futures):
                stop.set()
                pool.shutdown(cancel_futures=True)
        failed = [f.exception() for f in futures if not f.cancelled() and f.exception()]
        for error in sorted(failed, key=lambda error: isinstance(error, _Stopped)):
            raise error  # type: ignore[misc]
        return [future.result() for future in futures]


class _Watched(Reporter):
    """A reporter whose steps end with an exception once ``stop`` is set."""

    def __init__(self, reporter: Reporter, stop: threading.Event) -> None:
        self._reporter, self._stop = reporter, stop
        self.console, self.quiet = reporter.console, reporter.quiet

    def say(self, text: str) -> None:
        self._reporter.say(text)

    @contextmanager
    def step(self, title: str, total: Number) -> Iterator[Step]:
        with self._reporter.step(title, total) as step:
            yield _WatchedStep(step, self._stop)


class _WatchedStep:
    def __init__(self, step: Step, stop: threading.Event) -> None:
        self._step, self._stop = step, stop

    def advance(self, amount: Number = 1, note: str = "") -> None:
        self._step.advance(amount, note)
        if self._stop.is_set():
            raise _Stopped
