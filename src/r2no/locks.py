"""One writer per output: a lock beside it that the kernel holds and that dies with its holder.

The lock of ``folder/name`` is the file ``folder/.name.lock``. It says who works there, and it is
removed when the work is done; after a kill an empty shell of it may stay, which locks nothing.
"""

import contextlib
import fcntl
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

from r2no._types import PathLike
from r2no.errors import BusyError, StorageError

_LOG = logging.getLogger("r2no")
_POLL = 0.2  # seconds between two looks at a lock that another process holds
_held = threading.local()


@contextlib.contextmanager
def sole_writer(path: PathLike, *, wait: bool = True) -> Iterator[None]:
    """Be the only one, of all processes and threads, that writes ``path``.

    Whoever comes second waits, and says for whom, or is refused (``wait=False``). The same thread
    may enter again.

    Raises:
        BusyError: if another process or thread writes there and ``wait`` is False.
        StorageError: if the folder is not writable.
    """
    place = Path(os.path.abspath(path))
    lock = place.with_name(f".{place.name}.lock")
    mine: set[Path] = _held.__dict__.setdefault("locks", set())
    if lock in mine:
        yield
        return
    descriptor = _acquire(place, lock, wait)
    mine.add(lock)
    try:
        yield
    finally:
        mine.discard(lock)
        _release(lock, descriptor)


def _acquire(place: Path, lock: Path, wait: bool) -> int:
    said = False
    while True:
        descriptor = _open(place, lock)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            if not wait:
                raise BusyError(
                    f"`{place}` is being written by {holder}. Wait until that has finished, or "
                    "choose another place."
                ) from None
            if not said:
                _LOG.warning("Waiting: `%s` is being written by %s.", place, holder)
                said = True
            time.sleep(_POLL)
            continue
        except OSError as error:
            os.close(descriptor)
            raise StorageError(
                f"Could not lock `{place}`: {error}. Choose a folder on a file system that knows "
                "locks, such as a local disk."
            ) from error
        if _is_current(lock, descriptor):
            _sign(descriptor)
            return descriptor
        os.close(descriptor)  # its last holder removed it between our opening and locking it


def _open(place: Path, lock: Path) -> int:
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(
            f"Could not write `{place}`: {error}. What was there before is untouched. Choose a "
            "writable folder with some space left, then run the same command again."
        ) from error


def _release(lock: Path, descriptor: int) -> None:
    """Remove the file while it is still locked, so that nobody else has taken it meanwhile."""
    try:
        if _is_current(lock, descriptor):
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _is_current(lock: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock))
    except FileNotFoundError:
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
