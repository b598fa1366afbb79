"""What the two storage layouts share: cut a window out of a trajectory, nothing more.

A reader keeps no open file when it is pickled or forked: each process opens what it needs, when it
needs it. Every window is refused whose file changed since the data set was opened.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2no.errors import FileDamagedError
from r2no.realpdebench.systems import Column, System

Shape = tuple[int, int, int]


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


class Trajectories(ABC):
    """All trajectories of one system and kind, by file name."""

    def __init__(self, system: System, kind: str) -> None:
        self.system = system
        self.kind = kind
        self._handles: dict[Path, Any] = {}
        self._owner = os.getpid()

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the trajectories that are there, sorted as strings."""

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

    def _handle(self, stamp: Stamp, opener: Callable[[Path], Any]) -> Any:
        if self._owner != os.getpid():
            self._handles, self._owner = {}, os.getpid()
        if stamp.path not in self._handles:
            stamp.check()
            self._handles[stamp.path] = opener(stamp.path)
        return self._handles[stamp.path]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}, "_owner": -1}
