"""Running independent simulations side by side, with progress and a clean stop."""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Result = TypeVar("Result")
#: Called with (units of work done, units of work in all).
Progress = Callable[[int, int], None]


class _Stopped(Exception):
    """Ends a worker after another part of the run has failed or was interrupted."""


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

    workers = max(1, min(len(tasks), torch.get_num_threads(), os.cpu_count() or 1))
    with (
        _one_thread_each(),
        ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        futures = [pool.submit(task, tick) for task in tasks]
        for future in futures:
            future.add_done_callback(lambda _: ticks.put(False))
        done, running = 0, len(tasks)
        try:
            while running:
                if ticks.get():
                    done += 1
                    if progress is not None:
                        progress(done, work)
                else:
                    running -= 1
                    for future in futures:
                        if future.done():
                            future.result()  # raises what a task has raised
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in futures]


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Restore the number of threads per operation afterwards."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
