"""Values of files that are read only when a slice asks for them, and what files may declare.

:class:`LazyTrajectory` is the array made of them. Opening and inspecting cost what a file is worth,
in time and memory: each format checks what its files declare before it believes them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from r2no._repr import first_line
from r2no.errors import DataError, R2NOError, ShapeError
from r2no.reading import RATIO, SMALL, check_declared

_PIECE_BYTES = 2**25  # read together when a whole trajectory is looked at
LINE = 2 * 2**20  # bytes that a list of coordinates may declare: these are read in full
SPARSE_REMEDY = (
    "It is damaged, hostile, or sparse: never written, or full of one value. If that is meant, "
    "pass `allow_sparse=True` (`allow_sparse: true` in a config, `--allow-sparse`)."
)


@dataclass(frozen=True, eq=False)
class Part:
    """A variable that gives one channel, or several along its own channel dimension."""

    variable: xr.Variable
    channel: str | None = None
    picked: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many channels the part gives."""
        return len(self.picked) if self.channel is not None else 1

    def read(self, dims: Sequence[str], frames: slice) -> np.ndarray:
        """Frames in the order of ``dims``, then channel."""
        found = self.variable.isel({dims[0]: frames})
        if self.channel is None:
            return _read(found.transpose(*dims))[..., None]
        values = _read(found.transpose(*dims, self.channel))
        everything = self.picked == tuple(range(values.shape[-1]))
        return values if everything else values[..., list(self.picked)]


def _read(variable: xr.Variable) -> np.ndarray:
    try:
        return variable.to_numpy()
    except R2NOError:
        raise
    except Exception as error:  # readers raise anything for damaged chunks
        file = variable.encoding.get("source", "the data")
        reason = first_line(error)
        raise DataError(
            f"Could not read frames of `{file}`: {reason}. It is damaged, was changed or moved; "
            "restore it from a copy."
        ) from error


@dataclass(frozen=True, eq=False)
class LazyTrajectory:
    """An array (time, space..., channel) made of xarray variables; reads what is sliced, no more.

    Attributes:
        parts: Variables, in the order of the channels.
        dims: Names of time and the spatial dimensions, in the order of the array's axes.
        frames: Which frames of the variables belong to it.
    """

    parts: tuple[Part, ...]
    dims: tuple[str, ...]
    frames: range

    @classmethod
    def of(cls, parts: Sequence[Part], dims: Sequence[str]) -> "LazyTrajectory":
        """All frames of ``parts``."""
        return cls(tuple(parts), tuple(dims), range(parts[0].variable.sizes[dims[0]]))

    @property
    def shape(self) -> tuple[int, ...]:
        """Frames, then grid, then channels."""
        sizes = self.parts[0].variable.sizes
        grid = tuple(sizes[name] for name in self.dims[1:])
        return (len(self.frames), *grid, sum(part.count for part in self.parts))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.dims) + 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that holds every variable."""
        return np.result_type(*(part.variable.dtype for part in self.parts))

    @property
    def nbytes(self) -> int:
        """Size if it were in memory."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, key: slice) -> np.ndarray:
        """Some frames, as an array."""
        frames = self.frames[key]
        wanted = slice(frames.start, max(frames.stop, frames.start), frames.step)
        read = [part.read(self.dims, wanted).astype(self.dtype, copy=False) for part in self.parts]
        return read[0] if len(read) == 1 else np.concatenate(read, -1)

    def part(self, frames: slice) -> "LazyTrajectory":
        """The same variables with fewer frames; nothing is read."""
        return replace(self, frames=self.frames[frames])

    def select(self, channels: Sequence[int]) -> "LazyTrajectory":
        """The same frames with these channels, in this order; nothing is read."""
        single = [
            (part, number) for part in self.parts for number in part.picked or range(part.count)
        ]
        chosen: list[Part] = []
        for index in channels:
            part, number = single[index]
            last = chosen[-1] if chosen else None
            if part.channel is None:
                chosen.append(part)
            elif last is not None and last.variable is part.variable:
                chosen[-1] = replace(last, picked=(*last.picked, number))
            else:
                chosen.append(replace(part, picked=(number,)))
        return replace(self, parts=tuple(chosen))

    def load(self) -> "LazyTrajectory":
        """A copy that holds all values in memory."""
        return replace(
            self, parts=tuple(replace(p, variable=p.variable.compute()) for p in self.parts)
        )

    def pieces(self) -> Iterator[np.ndarray]:
        """All frames in order, a bounded number of bytes at a time."""
        for start, stop in self.steps():
            yield self[start:stop]

    def steps(self) -> Iterator[tuple[int, int]]:
        """First and last frame (not included) of pieces of bounded size."""
        per_frame = max(self.nbytes // max(len(self), 1), 1)
        step = max(_PIECE_BYTES // per_frame, 1)
        for start in range(0, len(self), step):
            yield start, min(start + step, len(self))


def on_demand(
    shape: Sequence[int], dtype: Any, read: Callable[[tuple[Any, ...]], Any]
) -> indexing.LazilyIndexedArray:
    """An array for an xarray variable whose values ``read`` gives when they are sliced."""
    return indexing.LazilyIndexedArray(_SlicedArray(shape, dtype, read))


class _SlicedArray(BackendArray):
    """Anything with a shape, a dtype and slicing as an xarray array that is read on demand."""

    def __init__(
        self, shape: Sequence[int], dtype: Any, read: Callable[[tuple[Any, ...]], Any]
    ) -> None:
        self.shape, self.dtype, self._read = tuple(shape), np.dtype(dtype), read

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """Slice the wrapped array."""
        basic = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, basic, self._get)

    def _get(self, key: tuple[Any, ...]) -> np.ndarray:
        found = np.asarray(self._read(key))
        sliced = zip(self.shape, key, strict=True)
        expected = [len(range(size)[k]) for size, k in sliced if isinstance(k, slice)]
        if list(found.shape) != expected:
            raise ShapeError(
                f"An array of shape {self.shape} must give shape {tuple(expected)} for {key}, but "
                f"gave {found.shape}. It must slice like a NumPy array."
            )
        return found


def as_mask(values: np.ndarray) -> np.ndarray:
    """True where a mask says valid; a missing entry of the mask is not."""
    return np.nan_to_num(values).astype(bool) if values.dtype.kind == "f" else values.astype(bool)


def without_mask(array: np.ma.MaskedArray) -> np.ndarray:
    """A masked array as floats with NaN where it is masked."""
    return np.ma.filled(array.astype(np.result_type(array.dtype, np.float32)), np.nan)


def lazily(array: Any) -> Any:
    """``array`` for an xarray variable: as it is if xarray reads it well, else read by slices."""
    if isinstance(array, np.ma.MaskedArray):
        return without_mask(array)
    ready = isinstance(array, (np.ndarray, indexing.ExplicitlyIndexed))
    if ready or hasattr(array, "__array_function__"):
        return array
    return on_demand(array.shape, array.dtype, array.__getitem__)


def check_filled(
    where: str, declared: int, held: int, *, small: int = SMALL, ratio: int = RATIO
) -> None:
    """Refuse what declares far more bytes than are there, see :func:`r2no.reading.check_declared`.

    Raises:
        FileDamagedError: saying how to allow it.
    """
    check_declared(where, declared, held, SPARSE_REMEDY, small=small, ratio=ratio)
