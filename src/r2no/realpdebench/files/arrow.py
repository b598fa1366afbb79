"""Arrow layout: map a shard and slice; nothing is copied before the window is cut."""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2no.errors import DataError, FileDamagedError
from r2no.realpdebench.files.shards import Row, read_rows
from r2no.realpdebench.files.trajectories import Shape, Stamp, Trajectories
from r2no.realpdebench.systems import Column, System
from r2no.storage import read_json


class ArrowTrajectories(Trajectories):
    """Trajectories in ``hf_dataset/{kind}``; shards listed but absent are left out and named."""

    def __init__(self, folder: Path, system: System, kind: str) -> None:
        super().__init__(system, kind)
        listed = list_shards(folder)
        self.missing_files = tuple(str(path) for path in listed if not path.is_file())
        rows: dict[str, Row] = {}
        for path in (path for path in listed if path.is_file()):
            for row in read_rows(path, system):
                _refuse_double(rows.get(row.name), row)
                rows[row.name] = row
        if not rows:
            raise DataError(
                f"`{folder}` holds no trajectory: none of the {len(listed)} shards it lists is "
                f"there, or all are empty. Fetch them with `r2no bench fetch --system "
                f"{system.name} --kind {kind}`."
            )
        self._rows = dict(sorted(rows.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trajectories in the shards that are there."""
        return tuple(self._rows)

    def shape(self, name: str) -> Shape:
        """Frames, height and width of a row."""
        return self._rows[name].shape

    def stamps(self, name: str) -> tuple[Stamp, ...]:
        """The shard that holds the row."""
        return (self._rows[name].stamp,)

    @contextmanager
    def _block(
        self, name: str, column: Column, start: int, stop: int
    ) -> Iterator[NDArray[Any] | None]:
        """Frames of a column, seen in the mapped file and let go of afterwards."""
        row = self._rows[name]
        if column.name not in row.offsets:
            yield None
            return
        content = self._handle(row.stamp, _map)
        if content.size() != row.stamp.size:  # reading behind the end would kill the process
            row.stamp.check()
        frame = (*row.shape[1:], len(column.channels))
        first = row.offsets[column.name] + 4 * start * prod(frame)
        count = (stop - start) * prod(frame)
        yield np.frombuffer(content, "<f4", count, first).reshape(stop - start, *frame)
        _release(content, first, 4 * count)


def list_shards(folder: Path) -> list[Path]:
    """Shards in the order of ``state.json``, there or not; without it, those that are there."""
    state = folder / "state.json"
    if not state.is_file():
        return sorted(folder.glob("*.arrow"))
    try:
        return [folder / entry["filename"] for entry in read_json(state)["_data_files"]]
    except (KeyError, TypeError) as error:
        raise FileDamagedError(f"`{state}` does not list the shards. Fetch it again.") from error


def _refuse_double(known: Row | None, row: Row) -> None:
    if known is not None:
        raise DataError(
            f"`{row.name}` is stored twice, in `{known.stamp.path}` and `{row.stamp.path}`. "
            "Remove shards left over from another release."
        )


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _release(content: mmap.mmap, first: int, size: int) -> None:
    """Unmap the pages again (they stay in the page cache), so reading never grows the process."""
    if hasattr(mmap, "MADV_DONTNEED"):
        start = first - first % mmap.PAGESIZE
        content.madvise(mmap.MADV_DONTNEED, start, first + size - start)
