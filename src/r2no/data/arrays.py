"""Windows over trajectories: NumPy arrays, memory-mapped, torch, or read from files on demand."""

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from r2no import checks
from r2no._types import Number
from r2no.data.array_checks import (
    Array,
    check_masks,
    check_shapes,
    constant_names,
    list_arrays,
    list_masks,
    read_constants,
)
from r2no.data.gaps import fill_gaps
from r2no.data.lazy import as_mask, without_mask
from r2no.data.mapped import MappedFile
from r2no.data.window import Fields, Window, with_constants
from r2no.errors import (
    ConfigError,
    EmptySplitError,
    NonFiniteError,
    ShapeError,
)
from r2no.storage import fingerprint

_PIECE = 2**23  # values looked at together when a trajectory is checked


class ArrayWindows(Dataset[Window]):
    """Windows over trajectories (time, height, width, channel); 1-D and 3-D grids work as well.

    Trajectories are read slice by slice and never copied, so memory-mapped files of any size do.
    Gaps are accepted through ``mask``. A missing value of the history becomes

    1. the last valid value before it at the same point and channel in the window's history, else
    2. the next valid one after it, else
    3. the mean of the channel over the valid points of the window's history, else zero;
    4. then, a few times over, the mean of its neighbours in space (:mod:`r2no.data.gaps`);

    a missing value of the target becomes zero and is False in the window's mask. Whatever number
    stood under the mask has no influence. Frames after the end of a recording (``beyond``) are
    missing in the same sense.

    Args:
        trajectories: at least one; all on the same grid with the same channels. What is masked in
            a masked array is missing. Stretches of one recording, for two splits, are slices of
            one array: copies are known for it only if one goes on where the other ends.
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
        trajectory_names: for messages; their numbers if not given.
        beyond: also the windows whose history is recorded and whose target is not, or not wholly;
            the last of them starts where the recording ends.

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
        trajectories: Sequence[Array] | Array,
        history: int,
        horizon: int,
        *,
        stride: int = 1,
        channels: Sequence[str] | None = None,
        measured: Sequence[int] | None = None,
        conditioning: Sequence[Sequence[float]] | None = None,
        conditioning_names: Sequence[str] | None = None,
        mask: str | Sequence[Array] | Array | None = None,
        units: Sequence[str] = (),
        spacing: Sequence[Number] = (),
        time_step: Number = 1.0,
        dtype: torch.dtype = torch.float32,
        trajectory_names: Sequence[str] | None = None,
        beyond: bool = False,
    ) -> None:
        history, horizon = checks.whole("history", history), checks.whole("horizon", horizon)
        stride = checks.whole("stride", stride)
        if dtype not in (torch.float32, torch.float64):
            raise ConfigError(f"`dtype` must be float32 or float64, but got {dtype}.")
        self._trajectories = list_arrays("trajectories", trajectories)
        self._names = trajectory_names or [str(n) for n in range(len(self._trajectories))]
        self._masks, self._gaps = list_masks(mask), mask is not None
        check_shapes(self._trajectories, history if beyond else history + horizon)
        shape = self._trajectories[0].shape
        self._stride, self._dtype, self._beyond = stride, dtype, beyond
        self._constants = read_constants(conditioning, len(self._trajectories))
        self.fields = Fields(
            grid=tuple(shape[1:-1]),
            history_frames=history,
            horizon_frames=horizon,
            channels=_channel_names(channels, shape[-1]),
            measured=tuple(range(shape[-1]))
            if measured is None
            else checks.listed("measured", measured),
            conditioning=constant_names(self._constants, conditioning_names),
            units=checks.names("units", units),
            spacing=tuple(
                checks.real("spacing", one, finite=False)
                for one in checks.listed("spacing", spacing)
            ),
            time_step=checks.real("time_step", time_step, finite=False),
        )
        if self._masks is not None:
            check_masks(self._trajectories, self._masks)
        self._unmask()
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
        constants = self._constants[number]
        if not self._gaps and not self._beyond:
            return Window(with_constants(values[:frames], constants), values[frames:], None)
        valid = self._valid(values, number, start)
        history = fill_gaps(values[:frames], valid[:frames])
        target = torch.where(valid[frames:], values[frames:], torch.zeros((), dtype=self._dtype))
        missing = (stop - start - len(values), *values.shape[1:])
        return Window(
            with_constants(history, constants),
            torch.cat([target, target.new_zeros(missing)]),
            torch.cat([valid[frames:], valid.new_zeros(missing)]),
        )

    def frame(self, trajectory: int, frame: int) -> Float[Tensor, "*space channel"]:
        """One frame as it was recorded, NaN where it is missing."""
        values = _as_tensor(self._trajectories[trajectory][frame : frame + 1], self._dtype)
        valid = self._valid(values, trajectory, frame)
        return torch.where(valid, values, torch.full((), torch.nan, dtype=self._dtype))[0]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all values that count and of the settings; computed on first use."""
        settings = {
            "fields": repr(self.fields),
            "stride": self._stride,
            "dtype": str(self._dtype),
            "gaps": self._gaps,
        }
        if self._beyond:
            settings["beyond"] = True
        known = [_Known(self, number) for number in range(len(self._trajectories))]
        values = known if self._gaps else self._trajectories
        return fingerprint(settings, values, None, self._constants)

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
        horizon = 0 if self._beyond else self.fields.horizon_frames
        length = self.fields.history_frames + horizon
        origins = []
        for number, trajectory in enumerate(self._trajectories):
            last = len(trajectory) - length
            starts = range(0, last + 1, self._stride)
            origins += [(number, start) for start in starts]
            if self._beyond and starts[-1] != last:
                origins.append((number, last))
        return torch.tensor(origins, dtype=torch.int64)

    def _valid(
        self, values: Float[Tensor, "time *space channel"], number: int, start: int
    ) -> Bool[Tensor, "time *space channel"]:
        """Where ``values``, the frames from ``start`` on, were measured."""
        if not self._gaps:
            return torch.ones_like(values, dtype=torch.bool)
        if self._masks is None:
            return torch.isfinite(values)
        valid = _as_tensor(self._masks[number][start : start + len(values)], torch.bool)
        if valid.ndim < values.ndim:
            valid = valid[..., None]
        return valid.expand(values.shape).clone()

    def _unmask(self) -> None:
        """Take what is masked in masked arrays as missing, beside what ``mask`` says."""
        for number, array in enumerate(self._trajectories):
            if not isinstance(array, np.ma.MaskedArray):
                continue
            if self._masks is not None:
                known = np.asarray(self._masks[number], dtype=bool)
                known = known if known.ndim == array.ndim else known[..., None]
                self._masks[number] = known & ~np.ma.getmaskarray(array)
                self._trajectories[number] = np.ma.getdata(array)
            elif np.ma.is_masked(array) or self._gaps:
                self._trajectories[number], self._gaps = without_mask(array), True
            else:
                self._trajectories[number] = np.ma.getdata(array)

    def __repr__(self) -> str:
        count = len(self._trajectories)
        return (
            f"ArrayWindows({len(self)} windows of {count} recording(s), {self.fields.describe()})"
        )

    @property
    def recordings(self) -> Sequence[Array]:
        """The trajectories that windows are cut from."""
        return tuple(self._trajectories)

    def _pieces(self, number: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """First frame, values and validity of a trajectory's frames, a bounded number at a time."""
        trajectory = self._trajectories[number]
        step = max(_PIECE // int(np.prod(trajectory.shape[1:])), 1)
        for start in range(0, len(trajectory), step):
            values = _as_tensor(trajectory[start : start + step], self._dtype)
            yield start, values, self._valid(values, number, start)

    def _check_values(self, number: int) -> None:
        """Refuse non-finite values that count, and measured channels without any value."""
        seen = torch.zeros(len(self.fields.channels), dtype=torch.bool)
        for start, values, valid in self._pieces(number):
            bad = valid & ~torch.isfinite(values)
            if bool(bad.any()):
                raise self._non_finite(number, start + int(bad.flatten(1).any(1).nonzero()[0]))
            seen |= valid.flatten(0, -2).any(0)
            if self._masks is None and self._gaps and bool(seen[list(self.fields.measured)].all()):
                return  # nothing that follows could be refused
        for channel in self.fields.measured:
            if not seen[channel]:
                raise NonFiniteError(
                    f"Channel {channel} ({self.fields.channels[channel]!r}) of trajectory "
                    f"{self._names[number]} is measured but has no valid value. Leave the "
                    "trajectory out, or take the channel out of `measured`."
                )

    def _non_finite(self, number: int, frame: int) -> NonFiniteError:
        remedy = (
            'Pass mask="nan" to treat such values as gaps, or repair the data'
            if self._masks is None
            else "Set the mask to False there, or repair the data"
        )
        return NonFiniteError(
            f"Trajectory {self._names[number]} holds NaN or infinity at frame {frame}. {remedy}."
        )

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_trajectories", "_masks"):
            if state[name] is not None:
                state[name] = [MappedFile.of(array) for array in state[name]]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("_trajectories", "_masks"):
            if state[name] is not None:
                state[name] = [
                    item.open() if isinstance(item, MappedFile) else item for item in state[name]
                ]
        self.__dict__.update(state)


class _Known:
    """What a trajectory with gaps is hashed as: its valid values and where they are."""

    def __init__(self, windows: ArrayWindows, number: int) -> None:
        self._windows, self._number = windows, number
        self.shape = tuple(windows._trajectories[number].shape)
        self.dtype = windows._dtype

    def pieces(self) -> Iterator[np.ndarray]:
        """Values, zero where they are missing, and validity, in turn."""
        for _, values, valid in self._windows._pieces(self._number):
            yield torch.where(valid, values, 0).numpy()
            yield valid.numpy()


def _channel_names(given: Sequence[str] | None, number: int) -> tuple[str, ...]:
    """Names of the last axis; numbers where none are given."""
    if given is None:
        return tuple(map(str, range(number)))
    names = checks.names("channels", given)
    if len(names) != number:
        raise ShapeError(
            f"`channels` must name the {number} channels of the last axis, but got {names}."
        )
    return names


def _as_tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """A fresh tensor, so nothing downstream can write into the trajectory."""
    if isinstance(array, Tensor):
        return array.detach().to(device="cpu", dtype=dtype, copy=True)
    plain = {torch.float32: np.float32, torch.float64: np.float64, torch.bool: np.bool_}[dtype]
    if dtype == torch.bool:
        array = as_mask(np.asarray(array))
    with np.errstate(over="ignore"):  # beyond float32 becomes infinite, and is found as such
        return torch.from_numpy(np.array(array, dtype=plain, order="C", subok=False))
