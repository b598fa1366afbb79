"""Arrow layout: map a shard and slice; nothing is copied before the window is cut.

A shard is an uncompressed Arrow IPC stream of complete trajectories, one or several per record
batch, with arrays as ``binary`` or ``large_binary`` cells of little-endian float32. Opening it
finds where every array lies, without reading field values.
"""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from r2no.errors import DataError, FileDamagedError
from r2no.realpdebench.files.trajectories import Shape, Stamp, Trajectories, damage_named
from r2no.realpdebench.systems import Column, System
from r2no.storage import read_json

_END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Row(NamedTuple):
    """A stored trajectory; ``offsets`` has no entry for an array that is absent or null."""

    name: str
    stamp: Stamp
    shape: Shape
    offsets: dict[str, int]


class ArrowTrajectories(Trajectories):
    """Trajectories in ``hf_dataset/{kind}``; shards listed but absent are left out and named."""

    def __init__(self, folder: Path, system: System, kind: str) -> None:
        super().__init__(system, kind)
        listed = list_shards(folder)
        self.missing_files = tuple(str(path) for path in listed if not path.is_file())
        rows: dict[str, Row] = {}
        for path in (path for path in listed if path.is_file()):
            for row in read_rows(path, system):
                if row.name in rows:
                    raise DataError(
                        f"`{row.name}` is stored twice, in `{rows[row.name].stamp.path}` and "
                        f"`{path}`. Remove shards left over from another release."
                    )
                rows[row.name] = row
        if not rows:
            raise DataError(
                f"`{folder}` holds no trajectory: none of the {len(listed)} shards it lists is "
                f"there, or all are empty. Fetch them with `r2no bench fetch --system "
                f"{system.name} --kind {kind}`."
            )
        self._rows = dict(sorted(rows.items()))
        self.names = tuple(self._rows)

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


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _release(content: mmap.mmap, first: int, size: int) -> None:
    """Unmap the pages again (they stay in the page cache), so reading never grows the process."""
    if hasattr(mmap, "MADV_DONTNEED"):
        start = first - first % mmap.PAGESIZE
        content.madvise(mmap.MADV_DONTNEED, start, first + size - start)


def read_rows(path: Path, system: System) -> list[Row]:
    """Every trajectory of the shard ``path``.

    Raises:
        FileDamagedError: if the file is cut short or not an Arrow stream.
        DataError: if a column is missing, compressed or of another type.
    """
    stamp = Stamp.of(path)
    _check_end(path, stamp.size)
    with damage_named(path, "an Arrow stream", "this shard"), pa.memory_map(str(path)) as source:
        base = source.read_buffer().address
        source.seek(0)
        batches = pa.ipc.open_stream(source)
        return [row for batch in batches for row in _batch_rows(batch, base, stamp, system)]


def _check_end(path: Path, size: int) -> None:
    with path.open("rb") as stream:
        stream.seek(max(0, size - 8))
        tail = stream.read()
    if tail != _END_MARK:
        raise FileDamagedError(
            f"`{path}` ends without the mark that closes an Arrow stream, so it was cut short. "
            "Fetch this shard again."
        )


def _batch_rows(batch: pa.RecordBatch, base: int, stamp: Stamp, system: System) -> Iterator[Row]:
    """A row per trajectory with the places of its columns, each checked for its size."""
    batch.validate(full=True)  # lengths and offsets against the buffers that are there
    names = _values(batch, "sim_id", stamp.path)
    shapes = list(
        zip(*(_values(batch, f"shape_{axis}", stamp.path) for axis in "thw"), strict=True)
    )
    cells = {column: _cells(batch, column.name, base, stamp) for column in system.columns}
    for number, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        if min(shape) < 1:
            raise DataError(
                f"`{name}` in `{stamp.path}` has shape {shape}. Fetch this shard again."
            )
        offsets = {}
        for column, places in cells.items():
            place = places[number]
            _check_cell(f"`{name}` in `{stamp.path}`", column, place, prod(shape))
            if place is not None:
                offsets[column.name] = place[0]
        yield Row(name, stamp, shape, offsets)


def _values(batch: pa.RecordBatch, column: str, path: Path) -> list[Any]:
    if column not in batch.schema.names:
        old = "It holds pre-cut windows of the first release. " * ("time_id" in batch.schema.names)
        raise DataError(
            f"`{path}` has no column `{column}`, only {batch.schema.names}. {old}"
            "Fetch the current data of this system."
        )
    values: list[Any] = batch.column(column).to_pylist()
    if None in values:
        raise DataError(f"`{path}` has an empty cell in `{column}`. Fetch this shard again.")
    return values


def _cells(
    batch: pa.RecordBatch, column: str, base: int, stamp: Stamp
) -> list[tuple[int, int] | None]:
    """File offset and length in bytes of each cell of a binary column."""
    if column not in batch.schema.names:
        return [None] * batch.num_rows
    array = batch.column(column)
    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        raise DataError(
            f"Column `{column}` of `{stamp.path}` must be binary float32, but is {array.type}. "
            "Convert the data again, or fetch this shard."
        )
    _, places, data = array.buffers()
    if data is None or data.size == 0:
        return [None] * batch.num_rows
    start = data.address - base
    if not 0 <= start <= stamp.size:
        raise DataError(f"`{stamp.path}` is compressed; write it uncompressed to map it.")
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    bounds = np.frombuffer(places, width, len(array) + 1, array.offset * np.dtype(width).itemsize)
    valid = array.is_valid().to_pylist()
    pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), valid, strict=True)
    return [(start + low, high - low) if there else None for low, high, there in pairs]


def _check_cell(where: str, column: Column, place: tuple[int, int] | None, points: int) -> None:
    if place is None:
        if column.measured:
            raise DataError(f"{where} has no `{column.name}`. Fetch this shard again.")
        return
    values = points * len(column.channels)
    if place[1] != 4 * values:
        guess = " (float64?)" if place[1] == 8 * values else ""
        raise DataError(
            f"`{column.name}` of {where} must be float32, {4 * values} bytes for {values} values, "
            f"but has {place[1]} bytes{guess}. Convert the data again."
        )
