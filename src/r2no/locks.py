"""One writer per output: a lock beside it that the kernel holds and that dies with its holder.

The lock of ``folder/name`` is the file ``folder/.name.lock``. It says who works there, and it is
removed when the work is done; after a kill an empty shell of it may stay, which locks nothing and
which the next writer of the same output removes. On network file systems it holds between machines
as far as their ``flock`` does (NFS on Linux: yes).
"""

import contextlib
import json
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from r2no import ranks
from r2no._types import PathLike
from r2no.errors import BusyError, StorageError

_LOG = logging.getLogger("r2no")
_POLL = 0.2  # seconds between two looks at a lock that another process holds


class _Held(threading.local):
    """Locks of this thread; the same thread may enter again."""

    def __init__(self) -> None:
        self.locks: set[Path] = set()


_held = _Held()
_descriptors: set[int] = set()  # open ones of all threads


def _forget() -> None:
    """In a forked child: its parent's locks are not its own, nor does it keep them alive."""
    _held.locks.clear()
    while _descriptors:
        os.close(_descriptors.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def sole_writer(path: PathLike, *, wait: bool = True) -> Iterator[None]:
    """Be the only one, of all processes and threads, that writes ``path``.

    Whoever comes second waits, and says for whom, or is refused (``wait=False``). The same thread
    may enter again.

    Raises:
        BusyError: if another process or thread writes there and ``wait`` is False.
        StorageError: if the folder is not writable, or the system knows no such locks.
    """
    place = Path(os.path.abspath(path))
    place = Path(os.path.realpath(place.parent), place.name)
    lock = place.with_name(f".{place.name}.lock")
    if lock in _held.locks:
        yield
        return
    made = [folder for folder in lock.parents if not folder.exists()]
    descriptor = _acquire(place, lock, wait)
    _held.locks.add(lock)
    _descriptors.add(descriptor)
    holder = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == holder:  # not in a child that was forked meanwhile
            _held.locks.discard(lock)
            _descriptors.discard(descriptor)
            _release(lock, descriptor)
            _remove_empty(made)


@contextlib.contextmanager
def sole_run(path: PathLike) -> Iterator[None]:
    """Be the only run that writes ``path``; of a run's processes the first one holds the lock.

    The others go on when it has it, and all wait for each other at the end, so that everybody
    finds what was written.
    """
    with sole_writer(path) if ranks.is_main() else contextlib.nullcontext():
        ranks.barrier()
        yield
        ranks.barrier()


def _acquire(place: Path, lock: Path, wait: bool) -> int:
    """Take the lock, waiting for its holder unless told not to, and say so once."""
    said = False
    while True:
        descriptor = _open(place, lock)
        try:
            if _try_lock(place, descriptor):
                if _is_current(lock, descriptor):  # else its last holder removed it meanwhile
                    _sign(descriptor)
                    return descriptor
                os.close(descriptor)
                continue
            holder = _holder(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not wait:
            raise BusyError(
                f"`{place}` is being written by {holder}. Wait until that has finished, or choose "
                "another place."
            )
        if not said:
            _LOG.warning("Waiting: `%s` is being written by %s.", place, holder)
            said = True
        time.sleep(_POLL)


def _open(place: Path, lock: Path) -> int:
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(
            f"Could not write `{place}`: {error}. What was there before is untouched. Choose a "
            "writable folder with some space left, then run the same command again."
        ) from error


def _try_lock(place: Path, descriptor: int) -> bool:
    """Whether the kernel gave us the lock; not if somebody else has it."""
    try:
        import fcntl  # not on Windows, where the rest of r2no can still be imported

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError) as error:
        raise StorageError(
            f"Could not lock `{place}`: {error}. Write on Linux or macOS, to a file system that "
            "knows locks, such as a local disk."
        ) from error
    return True


def _release(lock: Path, descriptor: int) -> None:
    """Remove the file while it is still locked, so that nobody else has taken it meanwhile."""
    try:
        if _is_current(lock, descriptor):
            lock.unlink(missing_ok=True)
    except OSError:  # such as a disk that became read-only: an empty shell locks nothing
        _LOG.warning("Could not remove `%s`; it locks nothing any more.", lock)
    finally:
        os.close(descriptor)


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders that were made for a lock and into which nothing was written."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _is_current(lock: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _sign(descriptor: int) -> None:
    """Leave word of who works here; a full disk is left for the work itself to name."""
    content = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join(sys.argv)[:500],
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    with contextlib.suppress(OSError):
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(content).encode(), 0)


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return (
            f"process {found['process']} on {found['host']} since {found['since']} "
            f"(`{found['command']}`)"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
