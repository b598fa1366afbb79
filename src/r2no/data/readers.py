"""Processes that read: items go out in turn, results come back in shared memory that is reused.

A process has two pieces of shared memory. A batch is collated right into one of them
(:func:`memory_for`), what else a result holds is copied there, and only shapes are sent. So a batch
is written once, and its pages are asked of the system once for a training, not for each batch.
"""

import io
import math
import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from multiprocessing import connection, process
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from r2no._repr import first_line
from r2no.errors import ProcessError, R2NOError

_PIECES = 2  # of memory, and items under way, of each process
_ALIGNED = 64


class _Place(NamedTuple):
    """Where a tensor lies in a piece of memory, from this byte on."""

    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def within(self, memory: Tensor) -> Tensor:
        return memory[self.start :].view(self.dtype).as_strided(self.shape, self.stride)


class _Answer(NamedTuple):
    """What a process sends: a pickle without its tensors, where they are, memory if it is new."""

    content: bytes
    places: list[_Place]
    piece: int
    memory: Tensor | None


class _Shared:
    """The memory of a process that reads."""

    def __init__(self) -> None:
        self._pieces = [torch.empty(0, dtype=torch.uint8) for _ in range(_PIECES)]
        self._piece = self._asked = 0
        self._given: list[Tensor] = []

    def begin(self) -> None:
        """Take the next piece: the reader of what was in it is done with it."""
        self._piece, self._asked, self._given = (self._piece + 1) % _PIECES, 0, []

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory of the piece, or if it is used up of this process alone."""
        memory, start = self._pieces[self._piece], self._asked
        self._asked += _rounded(math.prod(shape) * dtype.itemsize)
        if self._asked <= len(memory):
            return _Place(start, tuple(shape), _dense(shape), dtype).within(memory)
        self._given.append(torch.empty(*shape, dtype=dtype))
        return self._given[-1]

    def packed(self, found: Any) -> _Answer:
        """A result, its tensors in shared memory."""
        file, tensors = io.BytesIO(), list[Tensor]()
        _Packer(file, tensors).dump(found)
        memory = self._pieces[self._piece]
        sizes = [_rounded(one.numel() * one.itemsize) for one in tensors]
        foreign = (
            size
            for size, one in zip(sizes, tensors, strict=True)
            if not any(_shares(one, given) for given in (memory, *self._given))
        )
        needed = self._asked + sum(foreign)
        new = needed > len(memory)
        if new:
            memory = _shared_memory(max(needed, sum(sizes)))
            self._pieces[self._piece], self._asked = memory, 0
        shared = [
            one if _shares(one, memory) else self.empty(one.shape, one.dtype).copy_(one)
            for one in tensors
        ]
        places = [
            _Place(int(t.storage_offset()) * t.itemsize, tuple(t.shape), t.stride(), t.dtype)
            for t in shared
        ]
        return _Answer(file.getvalue(), places, self._piece, memory if new else None)


def _shared_memory(size: int) -> Tensor:
    """So many bytes that other processes see."""
    try:
        found: Tensor = torch.empty(size, dtype=torch.uint8).share_memory_()
    except (RuntimeError, OSError) as error:
        raise ProcessError(
            f"A process that reads ahead got no shared memory (`/dev/shm`) for a batch of "
            f"{size / 2**20:.1f} MB: {first_line(error)}. Give it more, or set `workers` "
            "to 0 or `batch_size` lower."
        ) from error
    return found


def _rounded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _shares(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in the same memory."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0


class _Packer(pickle.Pickler):
    """Puts tensors aside."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file, protocol=5)
        self._tensors = tensors

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        self._tensors.append(value)
        return len(self._tensors) - 1


class _Unpacker(pickle.Unpickler):
    """Puts them back; it reads what a process of this program wrote."""

    def __init__(self, content: bytes, tensors: list[Tensor]) -> None:
        super().__init__(io.BytesIO(content))
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


_own: _Shared | None = None  # in a process that reads


def memory_for(parts: Sequence[Tensor]) -> Tensor | None:
    """Where to stack tensors that a reader gives back; nowhere special but in such a process."""
    alike = {(part.shape, part.dtype) for part in parts}
    if _own is None or len(alike) != 1:
        return None
    [(shape, dtype)] = alike
    return _own.empty((len(parts), *shape), dtype)


def context() -> BaseContext:
    """How processes start: afresh, never forked from one with threads and open files.

    What this program has loaded of r2no is loaded once, by the server that forks them.
    """
    known = multiprocessing.get_all_start_methods()
    found = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    if hasattr(found, "set_forkserver_preload"):
        loaded = [name for name in sys.modules if name.partition(".")[0] == "r2no"]
        found.set_forkserver_preload(sorted(loaded))
    return found


def by_processes(
    sent: bytes, items: Iterable[tuple[Any, ...]], number: int
) -> Generator[Any, None, None]:
    """What the pickled reader ``sent`` gives for each item, read by so many processes.

    A result is overwritten after the next one was asked for.
    """
    left, readers = iter(items), list[_Reader]()
    try:
        readers.extend(_Reader(sent, number) for _ in range(number))
        under_way = 0
        for item in islice(left, _PIECES * number):
            readers[under_way % number].ask(item)
            under_way += 1
        turn = 0
        while under_way:
            reader = readers[turn % number]
            yield reader.answer()
            under_way, turn = under_way - 1, turn + 1
            for item in islice(left, 1):
                reader.ask(item)
                under_way += 1
    finally:
        for one in readers:
            one.end()


class _Reader:
    """A process that reads, seen by the one that it reads for."""

    def __init__(self, sent: bytes, number: int) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._number = number
        self._process: process.BaseProcess = context().Process(  # type: ignore[attr-defined]
            target=_serve, args=(sent, theirs), daemon=True, name="r2no-reader"
        )
        self._process.start()
        theirs.close()
        self._pieces: dict[int, Tensor] = {}

    def ask(self, item: tuple[Any, ...]) -> None:
        try:
            self._pipe.send(item)
        except OSError as error:
            raise self._lost() from error

    def answer(self) -> Any:
        """The result of the item that was asked for first, or its error."""
        try:
            found = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if isinstance(found, BaseException):
            raise found
        if found.memory is not None:
            self._pieces[found.piece] = found.memory
        tensors = [place.within(self._pieces[found.piece]) for place in found.places]
        return _Unpacker(found.content, tensors).load()

    def _lost(self) -> ProcessError:
        self._process.join(1)
        return ProcessError(
            f"One of {self._number} processes that read ahead ended (exit code "
            f"{self._process.exitcode}). It was killed, ran out of memory or of shared memory "
            "(`/dev/shm`), or could not start. Run the same again to go on, with fewer `workers` "
            "if it repeats; with 0 there are none."
        )

    def end(self) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()


def _serve(sent: bytes, pipe: connection.Connection) -> None:
    """Read what is asked for until nobody asks: the other end closes with its process."""
    global _own
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends by the one that it reads for
    torch.set_num_threads(1)
    _own, read = _Shared(), None
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        try:
            if read is None:
                read = pickle.loads(sent)  # made by this program
            _own.begin()
            found: Any = _own.packed(read(*item))
        except Exception as error:  # whatever it is, it is told to who asked
            found = _told(error)
        try:
            pipe.send(found)
        except OSError:  # nobody waits for it
            return


def _told(error: Exception) -> Exception:
    """An error as it can be sent, with where it was raised unless it has a name of ours."""
    if not isinstance(error, R2NOError):
        error.add_note("In a process that reads ahead:\n" + traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever an object raises that cannot be pickled
        return RuntimeError(f"A process that reads ahead failed:\n{traceback.format_exc()}")
    return error
