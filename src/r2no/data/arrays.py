"""Windows over trajectories that are already arrays: NumPy, memory-mapped or torch."""

import copy
import mmap
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from r2no.data.window import Fields, Window
from r2no.errors import (
    ConfigError,
    DataError,
    EmptySplitError,
    GridMismatchError,
    NonFiniteError,
    ShapeError,
)
from r2no.storage import fingerprint

Array = np.ndarray | Tensor
_PIECE = 32  # frames looked at together when a trajectory is checked


class ArrayWindows(Dataset[Window]):
    """Windows over trajectories (time, height, width, channel); 1-D and 3-D grids work as well.

    Trajectories are read slice by slice and never copied, so memory-mapped files of any size do.
    Gaps are accepted through ``mask``. A missing value of the history becomes

    1. the last valid value before it at the same point and channel in the window's history, else
    2. the next valid one after it, else
    3. the mean of the channel over the valid points of the window's history, else
    4. zero;

    a missing value of the target becomes zero and is False in the window's mask. Whatever number
    stood under the mask has no influence.

    Args:
        trajectories: at least one; all on the same grid with the same channels.
        history: frames of a window that are given.
        horizon: frames of a window that are asked for.
        stride: frames between the starts of two windows.
        channels: names of the channels; ``("0", "1", ...)`` if not given.
        measured: indices of the channels that are scored; all if not given.
        conditioning: for each trajectory its constants (a Reynolds number, say), appended to
            the history as constant channels.
        conditioning_names: their names.
        mask: None if all values are finite; ``"nan"`` to take every NaN and infinity as missing;
            or for each trajectory an array that is True where a value is valid, with or without
            the channel axis.
        units: of the channels.
        spacing: of the grid, per axis.
        time_step: between two frames.
        dtype: of the windows.

    Raises:
        NonFiniteError: for a non-finite value that no mask covers, or a measured channel of a
            trajectory without a single valid value.
        EmptySplitError: without trajectories, or with one that is too short for a window.
        GridMismatchError: if trajectories differ in their grids.
        ShapeError: if they differ in their channels, or ``mask``, ``channels`` or
            ``conditioning`` do not fit them.

    Example:
        >>> windows = ArrayWindows([np.zeros((30, 8, 16, 2))], 4, 6, stride=2)
        >>> len(windows), tuple(windows[0].history.shape), tuple(windows[0].target.shape)
        (11, (4, 8, 16, 2), (6, 8, 16, 2))
    """

    def __init__(
        self,
        trajectories: Sequence[Array],
        history: int,
        horizon: int,
        *,
        stride: int = 1,
        channels: Sequence[str] | None = None,
        measured: Sequence[int] | None = None,
        conditioning: Sequence[Sequence[float]] | None = None,
        conditioning_names: Sequence[str] | None = None,
        mask: Literal["nan"] | Sequence[Array] | None = None,
        units: Sequence[str] = (),
        spacing: Sequence[float] = (),
        time_step: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if min(history, horizon, stride) < 1 or dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                "`history`, `horizon` and `stride` must be at least 1 and `dtype` float32 or "
                f"float64, but got {history}, {horizon}, {stride} and {dtype}."
            )
        self._trajectories = list(trajectories)
        _check_shapes(self._trajectories, history + horizon)
        shape = self._trajectories[0].shape
        names = tuple(map(str, range(shape[-1]))) if channels is None else tuple(channels)
        if len(names) != shape[-1]:
            raise ShapeError(
                f"`channels` must name the {shape[-1]} channels of the last axis, but got {names}."
            )
        self._stride, self._dtype = stride, dtype
        self._constants = _constants(conditioning, len(self._trajectories))
        self.fields = Fields(
            grid=tuple(shape[1:-1]),
            history_frames=history,
            horizon_frames=horizon,
            channels=names,
            measured=tuple(range(shape[-1])) if measured is None else tuple(measured),
            conditioning=_constant_names(self._constants, conditioning_names),
            units=tuple(units),
            spacing=tuple(spacing),
            time_step=time_step,
        )
        self._masks = None if mask is None or mask == "nan" else list(mask)
        self._gaps = mask is not None
        self._check_masks()
        for number in range(len(self._trajectories)):
            self._check_values(number)
        self.origins = self._find_origins()

    def __len__(self) -> int:
        return len(self.origins)

    def __getitem__(self, index: int) -> Window:
        """History and target of window ``index``, with a mask if there can be gaps."""
        number, start = self.origins[index].tolist()
        frames = self.fields.history_frames
        stop = start + frames + self.fields.horizon_frames
        values = _as_tensor(self._trajectories[number][start:stop], self._dtype)
        if not self._gaps:
            return Window(self._with_constants(values[:frames], number), values[frames:], None)
        valid = self._valid(number, start, stop)
        history = fill_gaps(values[:frames], valid[:frames])
        target = torch.where(valid[frames:], values[frames:], torch.zeros((), dtype=self._dtype))
        return Window(self._with_constants(history, number), target, valid[frames:])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all values and settings; computed on first use."""
        settings = {
            "fields": repr(self.fields),
            "stride": self._stride,
            "dtype": str(self._dtype),
            "gaps": self._gaps,
        }
        return fingerprint(settings, self._trajectories, self._masks, self._constants)

    def subset(self, trajectories: Sequence[int]) -> "ArrayWindows":
        """The windows of some trajectories, which are numbered anew in the given order."""
        count = len(self._trajectories)
        if not trajectories:
            raise EmptySplitError("`trajectories` is empty. Give at least one number.")
        if not set(trajectories) <= set(range(count)):
            raise ShapeError(
                f"`trajectories` must hold numbers below {count}, but got {list(trajectories)}."
            )
        part = copy.copy(self)
        part.__dict__.pop("fingerprint", None)
        part._trajectories = [self._trajectories[number] for number in trajectories]
        part._constants = [self._constants[number] for number in trajectories]
        if self._masks is not None:
            part._masks = [self._masks[number] for number in trajectories]
        part.origins = part._find_origins()
        return part

    def _find_origins(self) -> Int[Tensor, "window 2"]:
        length = self.fields.history_frames + self.fields.horizon_frames
        origins = [
            (number, start)
            for number, trajectory in enumerate(self._trajectories)
            for start in range(0, len(trajectory) - length + 1, self._stride)
        ]
        return torch.tensor(origins, dtype=torch.int64)

    def _valid(self, number: int, start: int, stop: int) -> Bool[Tensor, "time *space channel"]:
        trajectory = self._trajectories[number][start:stop]
        if self._masks is None:
            return torch.isfinite(_as_tensor(trajectory, self._dtype))
        mask = self._masks[number]
        valid = _as_tensor(mask[start:stop], torch.bool)
        if valid.ndim < trajectory.ndim:
            valid = valid[..., None]
        return valid.expand(tuple(trajectory.shape)).clone()

    def _with_constants(self, history: Tensor, number: int) -> Tensor:
        constants = self._constants[number]
        if not constants:
            return history
        extra = torch.tensor(constants, dtype=history.dtype)
        return torch.cat([history, extra.expand(*history.shape[:-1], -1)], -1)

    def _check_masks(self) -> None:
        if self._masks is None:
            return
        shapes = [tuple(trajectory.shape) for trajectory in self._trajectories]
        found = [tuple(mask.shape) for mask in self._masks]
        fits = [mask in (shape, shape[:-1]) for mask, shape in zip(found, shapes, strict=False)]
        if len(found) != len(shapes) or not all(fits):
            raise ShapeError(
                "`mask` must hold one array per trajectory with its shape, or that without the "
                f"channel axis. Trajectories have {shapes}, masks {found}."
            )

    def _check_values(self, number: int) -> None:
        """Refuse non-finite values that count, and measured channels without any value."""
        frames = len(self._trajectories[number])
        seen = torch.zeros(len(self.fields.channels), dtype=torch.bool)
        for start in range(0, frames, _PIECE):
            stop = min(start + _PIECE, frames)
            values = _as_tensor(self._trajectories[number][start:stop], self._dtype)
            valid = self._valid(number, start, stop) if self._gaps else torch.ones(()).bool()
            bad = valid & ~torch.isfinite(values)
            if bool(bad.any()):
                raise self._non_finite(number, start + int(bad.flatten(1).any(1).nonzero()[0]))
            seen |= (valid & torch.isfinite(values)).flatten(0, -2).any(0)
        for channel in self.fields.measured:
            if not seen[channel]:
                raise NonFiniteError(
                    f"Channel {channel} ({self.fields.channels[channel]!r}) of trajectory {number} "
                    "is measured but has no valid value. Leave the trajectory out, or take the "
                    "channel out of `measured`."
                )

    def _non_finite(self, number: int, frame: int) -> NonFiniteError:
        remedy = (
            'Pass mask="nan" to treat such values as gaps, or repair the data'
            if self._masks is None
            else "Set the mask to False there, or repair the data"
        )
        return NonFiniteError(
            f"Trajectory {number} holds NaN or infinity at frame {frame}. {remedy}."
        )

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_trajectories", "_masks"):
            if state[name] is not None:
                state[name] = [_MappedFile.of(array) for array in state[name]]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("_trajectories", "_masks"):
            if state[name] is not None:
                state[name] = [
                    item.open() if isinstance(item, _MappedFile) else item for item in state[name]
                ]
        self.__dict__.update(state)


def fill_gaps(
    values: Float[Tensor, "time *space channel"], valid: Bool[Tensor, "time *space channel"]
) -> Float[Tensor, "time *space channel"]:
    """Fill missing values in time, then with the channel's mean (see :class:`ArrayWindows`)."""
    if bool(valid.all()):
        return values
    frames = values.shape[0]
    known = torch.where(valid, values, torch.zeros((), dtype=values.dtype))
    frame = torch.arange(frames).reshape(-1, *[1] * (values.ndim - 1))
    before = torch.where(valid, frame, -1).cummax(0).values
    after = torch.where(valid, frame, frames).flip(0).cummin(0).values.flip(0)
    source = torch.where(before >= 0, before, after)
    filled = known.gather(0, source.clamp(max=frames - 1))
    axes = tuple(range(values.ndim - 1))
    count = valid.sum(axes).clamp(min=1)
    mean = (known.double().sum(axes) / count).to(values.dtype)
    return torch.where(source < frames, filled, mean)


class _MappedFile:
    """Where a memory-mapped array lies in its file, so workers map it again, not copy it."""

    def __init__(self, array: np.memmap) -> None:
        page = mmap.ALLOCATIONGRANULARITY
        begin = np.frombuffer(array._mmap, dtype=np.uint8).ctypes.data  # type: ignore[attr-defined]
        self.offset = array.offset // page * page + array.ctypes.data - begin
        self.file, self.dtype, self.shape = str(array.filename), array.dtype, array.shape

    @staticmethod
    def of(array: Any) -> Any:
        """The place of a memory-mapped array on disk; anything else as it is."""
        mapped = isinstance(array, np.memmap) and array.filename is not None
        shared = mapped and array._mmap is not None and array.mode != "c"
        return _MappedFile(array) if shared and array.flags.c_contiguous else array

    def open(self) -> np.memmap:
        """Map the array again, read-only."""
        try:
            return np.memmap(self.file, self.dtype, "r", self.offset, self.shape)
        except (OSError, ValueError) as error:
            raise DataError(
                f"Could not map `{self.file}` again in another process: {error}. "
                "Keep the file in place while its windows are in use."
            ) from error


def _as_tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """A fresh tensor, so nothing downstream can write into the trajectory."""
    if isinstance(array, Tensor):
        return array.detach().to(device="cpu", dtype=dtype, copy=True)
    plain = {torch.float32: np.float32, torch.float64: np.float64, torch.bool: np.bool_}[dtype]
    with np.errstate(over="ignore"):  # beyond float32 becomes infinite, and is found as such
        return torch.from_numpy(np.array(array, dtype=plain, order="C", subok=False))


def _check_shapes(trajectories: list[Array], window: int) -> None:
    if not trajectories:
        raise EmptySplitError("`trajectories` is empty. Give at least one array.")
    first = tuple(trajectories[0].shape)
    for number, trajectory in enumerate(trajectories):
        shape = tuple(trajectory.shape)
        if not 3 <= len(shape) <= 5:
            raise ShapeError(
                "A trajectory must have axes (time, space..., channel) with one to three spatial "
                f"axes, but number {number} has shape {shape}. Add the missing axes with reshape."
            )
        if len(shape) != len(first) or shape[1:-1] != first[1:-1]:
            raise GridMismatchError(
                f"Trajectories must share one grid, but number 0 has {first[1:-1]} and number "
                f"{number} has {shape[1:-1]}. Resample them, or make one data set per grid."
            )
        if shape[-1] != first[-1]:
            raise ShapeError(
                f"Trajectories must share their channels, but number 0 has {first[-1]} and number "
                f"{number} has {shape[-1]} on the last axis."
            )
        if shape[0] < window:
            raise EmptySplitError(
                f"Trajectory {number} has {shape[0]} frames, fewer than the {window} of a window. "
                "Shorten `history` or `horizon`, or leave the trajectory out."
            )


def _constants(
    conditioning: Sequence[Sequence[float]] | None, trajectories: int
) -> list[tuple[float, ...]]:
    if conditioning is None:
        return [()] * trajectories
    constants = [tuple(float(value) for value in values) for values in conditioning]
    if len(constants) != trajectories or len({len(values) for values in constants}) > 1:
        raise ShapeError(
            f"`conditioning` must hold one tuple of the same length for each of {trajectories} "
            f"trajectories, but got {constants}."
        )
    if not all(np.isfinite(values).all() for values in constants):
        raise NonFiniteError(f"`conditioning` must be finite, but got {constants}.")
    return constants


def _constant_names(
    constants: list[tuple[float, ...]], names: Sequence[str] | None
) -> tuple[str, ...]:
    count = len(constants[0])
    found = tuple(f"constant {n}" for n in range(count)) if names is None else tuple(names)
    if len(found) != count:
        raise ShapeError(f"`conditioning_names` must hold {count} names, but got {found}.")
    return found
