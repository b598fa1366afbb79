"""Where every array lies in an Arrow shard: names, shapes and file offsets, no field values.

A shard is an uncompressed Arrow IPC stream of complete trajectories, one or several per record
batch, with arrays as ``binary`` or ``large_binary`` cells of little-endian float32.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from r2no.errors import DataError, FileDamagedError, R2NOError
from r2no.realpdebench.files.trajectories import Shape, Stamp
from r2no.realpdebench.systems import Column, System

_END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Row(NamedTuple):
    """A stored trajectory; ``offsets`` has no entry for an array that is absent or null."""

    name: str
    stamp: Stamp
    shape: Shape
    offsets: dict[str, int]


def read_rows(path: Path, system: System) -> list[Row]:
    """Every trajectory of the shard ``path``.

    Raises:
        FileDamagedError: if the file is cut short or not an Arrow stream.
        DataError: if a column is missing, compressed or of another type.
    """
    stamp = Stamp.of(path)
    _check_end(path, stamp.size)
    try:
        with pa.memory_map(str(path)) as source:
            base = source.read_buffer().address
            source.seek(0)
            batches = pa.ipc.open_stream(source)
            return [row for batch in batches for row in _batch_rows(batch, base, stamp, system)]
    except R2NOError:
        raise
    except Exception as error:  # pyarrow raises anything for damaged metadata
        raise FileDamagedError(
            f"`{path}` is truncated or not an Arrow stream ({error}). Fetch this shard again."
        ) from error


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
