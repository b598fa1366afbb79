"""Reading ahead: what is needed next is read by a thread or by processes, in the order of use.

Order and values are those of reading in turn, whoever reads. Worker processes
(:mod:`r2no.data.readers`) get the reader as a pickle, so that it opens its files itself. That pays
for data that lie in files; a reader that holds its data in memory has nothing to wait for, would be
copied, and gets a thread.
"""

import contextlib
import io
import itertools
import multiprocessing
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from r2no import devices
from r2no._repr import first_line
from r2no.data import readers
from r2no.data.readers import by_processes

Result = TypeVar("Result")

_AHEAD = 2  # items that a thread reads before they are asked for
_MOST = 4  # processes that "auto" starts
_LARGEST = 2**26  # bytes of a reader that is sent to processes


def ahead(
    read: Callable[..., Result],
    items: Iterable[tuple[Any, ...]],
    *,
    workers: int | Literal["auto"] = 0,
    device: torch.device,
    say: Callable[[str], None] = lambda text: None,
) -> Generator[Result, None, None]:
    """What ``read`` gives for each item, in order; close it to end those who read.

    What a process gave is overwritten after the next result was asked for.

    Args:
        read: What it gives depends on its arguments alone. Processes get a copy of it.
        items: The arguments of each call.
        workers: Processes that read. Without any, a thread does if ``device`` is an accelerator,
            else each item is read when it is asked for. "auto" starts some for an accelerator.
        device: Where results are used; for CUDA they come in pinned memory.
        say: Told why processes were asked for and a thread reads.

    Raises:
        ProcessError: if a worker process ended before its time.
    """
    number = _auto(device) if workers == "auto" else workers
    sent = _sent(read) if number else ""
    pins = devices.pins(device)
    if isinstance(sent, bytes):
        found = by_processes(sent, items, number)
        return _pinned_ahead(found) if pins else found
    if number and workers != "auto":
        say(f"A thread reads ahead instead of {number} processes: {sent}.")
    if number or device.type != "cpu":
        return _by_thread(partial(_pinned_reading, read) if pins else read, items)
    return (read(*item) for item in items)


def prepare(data: Any, workers: int | Literal["auto"], device: torch.device) -> None:
    """Begin to start what worker processes are forked from, if ``data`` will be read by such.

    That takes seconds, since it loads PyTorch; meanwhile the caller goes on.
    """
    number = _auto(device) if workers == "auto" else workers
    start = readers.context().get_start_method()
    if number and start == "forkserver" and isinstance(_sent(data), bytes):
        from multiprocessing import forkserver  # which not every system has

        forkserver.ensure_running()


def _pinned(found: Any) -> Any:
    """A copy in pinned memory of a tensor, or of a tuple of such."""
    if isinstance(found, Tensor):
        return devices.pinned(found)
    if isinstance(found, tuple) and hasattr(found, "_fields"):
        return type(found)(*map(_pinned, found))
    return found


def _pinned_reading(read: Callable[..., Result], *item: Any) -> Result:
    return cast(Result, _pinned(read(*item)))


def _pinned_ahead(found: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Results of processes, copied to pinned memory by a thread, one after another."""
    with contextlib.closing(found):
        nothing = object()
        for one in _by_thread(lambda: _pinned(next(found, nothing)), itertools.repeat(())):
            if one is nothing:
                return
            yield one


def _by_thread(
    read: Callable[..., Result], items: Iterable[tuple[Any, ...]]
) -> Generator[Result, None, None]:
    """What ``read`` gives for each item, the next ones read by a thread meanwhile."""
    left = iter(items)
    pool = ThreadPoolExecutor(1, thread_name_prefix="r2no-reader")
    try:
        waiting = deque(pool.submit(read, *item) for item in islice(left, _AHEAD))
        while waiting:
            found = waiting.popleft().result()
            waiting.extend(pool.submit(read, *item) for item in islice(left, 1))
            yield found
    finally:
        pool.shutdown(cancel_futures=True)


def _auto(device: torch.device) -> int:
    """Processes that pay: on the CPU none, since reading is short beside computing there.

    One alone does not either: what it sends costs as much as what it reads, and a thread sends
    nothing.
    """
    if device.type == "cpu":
        return 0
    known = getattr(os, "sched_getaffinity", None)
    cores = len(known(0)) if known else os.cpu_count() or 1
    left = cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1  # one computes
    return min(_MOST, left) if left > 1 else 0


def _sent(read: Callable[..., Any]) -> bytes | str:
    """A reader as it goes to processes, or why it does not."""
    if multiprocessing.current_process().daemon:
        return "this process may not start others"
    if not _main_can_be_imported():
        return 'the script has no `if __name__ == "__main__":`, which new processes need'
    content = _Bounded()
    try:
        _Pickler(content, protocol=5).dump(read)
    except _TooLargeError:
        return "the data are in memory"
    except Exception as error:  # whatever an object raises that cannot be pickled
        reason = first_line(error)
        return f"the data cannot be sent to other processes ({reason})"
    return content.getvalue()


def _main_can_be_imported() -> bool:
    """Whether new processes, which import the main module, would not begin the work anew."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:  # a session or a notebook
        return True
    try:
        return "__main__" in Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


class _TooLargeError(Exception):
    """A reader holds its data."""


class _Bounded(io.BytesIO):
    """Takes so many bytes, then refuses: before a large array is copied."""

    def write(self, content: Any, /) -> int:
        if self.tell() + memoryview(content).nbytes > _LARGEST:
            raise _TooLargeError
        return super().write(content)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Refuse what lives on an accelerator: each worker would open it too."""
        if isinstance(value, Tensor) and value.device.type != "cpu":
            raise pickle.PicklingError(f"a part is on {value.device}")
        return NotImplemented
