"""What the two storage layouts share: cut windows out of trajectories, and tell files apart.

A reader keeps no open file when it is pickled or forked: each process opens what it needs, when it
needs it. Every window is refused whose file changed since the data set was opened.
"""

import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2no.errors import DataError, FileDamagedError, GridMismatchError, R2NOError
from r2no.realpdebench.files.index import WindowStart
from r2no.realpdebench.systems import Column, System

Shape = tuple[int, int, int]

# Files hold up to hundreds of gigabytes, so of a large one only these pieces count.
_PIECE = 2**14
_PIECES = 64
_NAMED = 5  # of a list of names in an error


class Stamp(NamedTuple):
    """A file as it was when first looked at."""

    path: Path
    size: int
    modified: int

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        """Take the size and the time of the last change."""
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Raise if the file is gone or changed."""
        if not self.path.is_file() or Stamp.of(self.path) != self:
            raise FileDamagedError(
                f"`{self.path}` was changed or removed after the data set was opened. "
                "Build the data set again."
            )

    def identity(self) -> tuple[str, int, str]:
        """Name, size and content of the file; its date does not count: copies are the same."""
        self.check()
        return self.path.name, self.size, _sample_hash(self.path, self.size)


def _sample_hash(path: Path, size: int) -> str:
    """SHA-256 over a file of up to 1 MiB, or over evenly spaced pieces, ends included."""
    with path.open("rb") as stream:
        if size <= _PIECE * _PIECES:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256()
        for piece in range(_PIECES):
            stream.seek((size - _PIECE) * piece // (_PIECES - 1))
            digest.update(stream.read(_PIECE))
    return digest.hexdigest()


@contextmanager
def damage_named(path: Path, form: str, again: str) -> Iterator[None]:
    """Whatever a reading library raises for damaged headers becomes one named error."""
    try:
        yield
    except R2NOError:
        raise
    except Exception as error:
        raise FileDamagedError(
            f"`{path}` is truncated or not {form} ({error}). Fetch {again} again."
        ) from error


class Trajectories(ABC):
    """All trajectories of one system and kind, by file name.

    ``names`` are the trajectories that are there, sorted as strings, ``missing_files`` the files
    that the layout lists and that are not there.
    """

    names: tuple[str, ...]
    missing_files: tuple[str, ...] = ()

    def __init__(self, system: System, kind: str) -> None:
        self.system = system
        self.kind = kind
        self._handles: dict[Path, Any] = {}
        self._owner = os.getpid()

    @abstractmethod
    def shape(self, name: str) -> Shape:
        """Frames, height and width as stored; checks that every array fits."""

    @abstractmethod
    def stamps(self, name: str) -> tuple[Stamp, ...]:
        """The files that hold a trajectory."""

    @abstractmethod
    def _block(
        self, name: str, column: Column, start: int, stop: int
    ) -> AbstractContextManager[NDArray[Any] | None]:
        """Frames of one array as (time, height, width, channel), or None where not stored."""

    def read(
        self, name: str, start: int, frames: int, *, stride: int, unmeasured: bool
    ) -> NDArray[np.float32]:
        """Cut (time, height, width, channel); channels that are not read are zero."""
        for stamp in self.stamps(name):
            stamp.check()
        _, height, width = self.shape(name)
        grid = (-(-height // stride), -(-width // stride))
        values = np.zeros((frames, *grid, len(self.system.channels)), np.float32)
        first = 0
        for column in self.system.columns:
            part = values[..., first : first + len(column.channels)]
            first += len(column.channels)
            if not column.measured and not unmeasured:
                continue
            with self._block(name, column, start, start + frames) as block:
                if block is not None:
                    part[...] = block[:, ::stride, ::stride]
        return values

    def complete(
        self, pairs: Sequence[WindowStart], length: int, *, skip: bool
    ) -> list[WindowStart]:
        """The windows whose frames are all there; others raise, or are left out with a warning."""
        there = set(self.names)
        missing = sorted({name for name, _ in pairs} - there)
        frames = {name: self.shape(name)[0] for name, _ in pairs if name in there}
        stored = [pair for pair in pairs if pair[0] in there]
        kept = [(name, start) for name, start in stored if 0 <= start <= frames[name] - length]
        if len(kept) == len(pairs):
            return kept
        short = sorted(set(stored) - set(kept))
        message = _missing_message(missing, self.missing_files)
        message += _short_message(short, frames, length)
        if not skip:
            raise DataError(message + "Or pass `incomplete='skip'` to leave these windows out.")
        warnings.warn(f"{message}{len(pairs) - len(kept)} windows were left out.", stacklevel=3)
        return kept

    def common_grid(self, names: Sequence[str]) -> tuple[int, int]:
        """Height and width that all ``names`` share."""
        grids = {name: self.shape(name)[1:] for name in names}
        first = names[0]
        for name, grid in grids.items():
            if grid != grids[first]:
                raise GridMismatchError(
                    f"All trajectories must share one grid, but `{first}` has {grids[first]} and "
                    f"`{name}` has {grid}. Leave one out with `exclude`."
                )
        return grids[first]

    def _handle(self, stamp: Stamp, opener: Callable[[Path], Any]) -> Any:
        if self._owner != os.getpid():
            self._handles, self._owner = {}, os.getpid()
        if stamp.path not in self._handles:
            stamp.check()
            self._handles[stamp.path] = opener(stamp.path)
        return self._handles[stamp.path]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}, "_owner": -1}


def _missing_message(missing: Collection[str], absent: Collection[str]) -> str:
    if not missing:
        return ""
    where = f"These files are absent: {_some(absent)}. " if absent else ""
    return (
        f"The window list names {len(missing)} trajectories that are not there: {_some(missing)}. "
        f"{where}Fetch them with `r2no bench fetch`. "
    )


def _short_message(short: Sequence[WindowStart], frames: dict[str, int], length: int) -> str:
    if not short:
        return ""
    name, start = short[0]
    return (
        f"{len(short)} windows of {length} frames do not fit their trajectory, such as "
        f"`{name}` at frame {start}, which has {frames[name]} frames. Lower `horizon_frames` "
        "or `autoregressive`. "
    )


def _some(items: Collection[str]) -> str:
    shown = ", ".join(list(items)[:_NAMED])
    return shown + (f" and {len(items) - _NAMED} more" if len(items) > _NAMED else "")
