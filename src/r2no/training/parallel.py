"""Several tasks side by side in one process, one thread of PyTorch's each or a share of them.

Small networks and small operations gain nothing from PyTorch's own threads: two of them train a
small repair module no faster than one. Two modules side by side take hardly longer than one.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch

from r2no import ranks
from r2no._types import Number
from r2no.progress import Reporter, Step

Result = TypeVar("Result")
#: Called with (units of work done, units of work in all).
Progress = Callable[[int, int], None]

_until_one_fails = partial(wait, return_when=FIRST_EXCEPTION)


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
    watched = [partial(task, _Watched(reporter, stop)) for task in tasks]
    with torch.random.fork_rng(devices=[]):
        return _in_threads(watched, jobs=jobs, threads=threads, stop=stop)


def run_tasks(
    tasks: Sequence[Callable[[Callable[[], None]], Result]],
    work: int,
    progress: Progress | None = None,
) -> list[Result]:
    """Run tasks side by side, each on one thread, and return their results in order.

    One thread per task, not several per operation: small operations need not wait for each other,
    which on a shared machine takes ten times longer than the operation.

    Args:
        tasks: each takes a function to call now and then, which counts as one unit of work.
        work: units of work in all.
        progress: called from the calling thread.
    """
    ticks: queue.SimpleQueue[bool] = queue.SimpleQueue()
    stop = threading.Event()

    def tick() -> None:
        if stop.is_set():
            raise _Stopped
        ticks.put(True)

    def watch(futures: Sequence[Future[Any]]) -> None:
        for future in futures:
            future.add_done_callback(lambda _: ticks.put(False))
        done, running = 0, len(futures)
        while running:
            if ticks.get():
                done += 1
                if progress is not None:
                    progress(done, work)
            elif any(future.done() and future.exception() for future in futures):
                return
            else:
                running -= 1

    jobs = max(1, min(len(tasks), torch.get_num_threads(), os.cpu_count() or 1))
    ticking = [partial(task, tick) for task in tasks]
    return _in_threads(ticking, jobs=jobs, threads=1, stop=stop, watch=watch)


def _in_threads(
    tasks: Sequence[Callable[[], Result]],
    *,
    jobs: int,
    threads: int,
    stop: threading.Event,
    watch: Callable[[Sequence[Future[Any]]], object] = _until_one_fails,
) -> list[Result]:
    """Results of tasks in order, ``jobs`` at a time with so many of PyTorch's ``threads`` each.

    ``watch`` returns when all are done or one has failed. Then, and if it raises, ``stop`` is set,
    at which those that run shall raise :class:`_Stopped`; no other is begun.
    """
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(
            jobs, initializer=torch.set_num_threads, initargs=(threads,)
        ) as pool:
            futures = [pool.submit(task) for task in tasks]
            try:
                watch(futures)
            finally:
                if any(not future.done() for future in futures):
                    stop.set()
                    pool.shutdown(cancel_futures=True)
            failed = [f.exception() for f in futures if not f.cancelled() and f.exception()]
            for error in sorted(failed, key=lambda error: isinstance(error, _Stopped)):
                raise error  # type: ignore[misc]
            return [future.result() for future in futures]
    finally:
        torch.set_num_threads(before)  # of threads that begin later


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
