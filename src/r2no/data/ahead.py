"""Reading ahead: what is needed next is read by a thread or by processes, in the order of use.

Order and values are those of reading in turn, whoever reads. Worker processes are started afresh
(``forkserver``, else ``spawn``), never forked from a process with threads and open files, and get
the reader as a pickle, so that it opens its files itself. That pays for data that lie in files; a
reader that holds its data in memory has nothing to wait for, would be copied, and gets a thread.
"""

import io
import multiprocessing
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from r2no._repr import first_line
from r2no.errors import ProcessError, R2NOError

Result = TypeVar("Result")

_AHEAD = 2  # items that a thread, or each process, reads before they are asked for
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
    if isinstance(sent, bytes):
        return _by_processes(sent, items, number, pin=device.type == "cuda")
    if number and workers != "auto":
        say(f"A thread reads ahead instead of {number} processes: {sent}.")
    if number or device.type != "cpu":
        return _by_thread(read, items)
    return (read(*item) for item in items)


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


def _by_processes(
    sent: bytes, items: Iterable[tuple[Any, ...]], number: int, *, pin: bool
) -> Generator[Any, None, None]:
    """What the reader in ``sent`` gives for each item, read by so many processes."""
    known = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    if hasattr(context, "set_forkserver_preload"):
        context.set_forkserver_preload([__name__])  # PyTorch is imported once, not by each
    loader = _Loader(
        _Reader(sent),
        batch_size=None,
        sampler=items,
        num_workers=number,
        prefetch_factor=_AHEAD,
        collate_fn=_unchanged,
        worker_init_fn=_end_with_parent,
        pin_memory=pin,
        multiprocessing_context=context,
        generator=torch.Generator(),  # else it would draw from the one that dropout uses
    )
    left = iter(loader)
    while True:
        try:
            found = next(left)
        except StopIteration:
            return
        except (RuntimeError, OSError, EOFError) as error:
            if str(error).startswith("Caught "):  # by a worker, from the reader
                raise
            raise ProcessError(
                f"One of {number} processes that read ahead ended ({first_line(error)}). "
                "It was killed, ran out of memory or of shared memory (`/dev/shm`), or could not "
                "start. Run the same again to go on, with fewer `workers` if it repeats; with 0 "
                "there are none."
            ) from error
        if isinstance(found, R2NOError):
            raise found
        yield found


class _Loader(DataLoader[Any]):
    def check_worker_number_rationality(self) -> None:
        """More workers than cores is not worth a warning: it is slow, not wrong."""


class _Reader(Dataset[Any]):
    """A pickled reader, which a worker process opens when it is first asked."""

    def __init__(self, sent: bytes) -> None:
        self._sent = sent
        self._read: Callable[..., Any] | None = None

    def __getitem__(self, item: tuple[Any, ...]) -> Any:
        """What the reader gives, or its named error, which would else be told as a traceback."""
        try:
            if self._read is None:
                self._read = pickle.loads(self._sent)  # made by this program
            return self._read(*item)
        except R2NOError as error:
            return error


def _end_with_parent(worker: int) -> None:
    """Let a worker end when the process that it reads for was killed.

    PyTorch looks at the process that forked it, which is a server that outlives the other.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, name="r2no-watch", daemon=True).start()


def _unchanged(found: Any) -> Any:
    return found


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
