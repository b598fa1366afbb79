"""Window and its metadata: what every data set in r2no yields, and what its channels are."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from r2no import devices, ranks
from r2no._repr import brief_repr, named_units
from r2no._types import Grid, Number
from r2no.data import readers
from r2no.data.ahead import ahead
from r2no.devices import CPU, sent
from r2no.errors import ConfigError, EmptySplitError, ShapeError
from r2no.progress import Reporter
from r2no.storage import fingerprint


@dataclass(frozen=True)
class Fields:
    """What the axes and channels of a window mean; travels with the tensors so nothing guesses.

    ``history_channels`` may be longer than ``channels``: conditioning channels (Reynolds number,
    control frequency) are appended to the history only. What the data say about their axes (names,
    units, whether a coordinate falls) is known where they have coordinates; it takes no part in
    comparisons.
    """

    grid: Grid
    history_frames: int
    horizon_frames: int
    channels: tuple[str, ...]
    measured: tuple[int, ...]
    conditioning: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    spacing: tuple[float, ...] = field(default=())
    time_step: float = 1.0
    axes: tuple[str, ...] = field(default=(), repr=False, compare=False)
    axis_units: tuple[str, ...] = field(default=(), repr=False, compare=False)
    falling: tuple[bool, ...] = field(default=(), repr=False, compare=False)
    time_units: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        texts = (*self.axes, *self.axis_units, self.time_units)
        if not all(isinstance(text, str) for text in texts) or not all(
            isinstance(falls, bool) for falls in self.falling
        ):
            raise ShapeError("`axes` and units of `Fields` must be texts, `falling` true or false.")
        indices = all(
            isinstance(m, (int, np.integer)) and type(m) is not bool for m in self.measured
        )
        known = indices and set(self.measured) <= set(range(len(self.channels)))
        if not self.measured or not known or len(set(self.measured)) < len(self.measured):
            raise ShapeError(
                f"`measured` must name channels of {self.channels} by index, each once, but got "
                f"{self.measured}. Give at least one index below {len(self.channels)}."
            )
        object.__setattr__(self, "measured", tuple(int(m) for m in self.measured))
        names = self.history_channels
        if len(set(names)) < len(names):
            raise ShapeError(
                f"`channels` must have different names, constants included, but are {names}. "
                "Rename those that occur twice."
            )
        for name, of, axis in (("units", self.channels, "channel"), ("spacing", self.grid, "axis")):
            if len(getattr(self, name)) not in (0, len(of)):
                raise ShapeError(
                    f"`{name}` must hold one entry per {axis}, {len(of)}, or none, but got "
                    f"{getattr(self, name)}."
                )
        steps = (*self.spacing, self.time_step)
        if not all(step > 0 and math.isfinite(step) for step in steps):
            raise ConfigError(
                "`spacing` and `time_step` must be positive numbers, but got "
                f"{self.spacing} and {self.time_step}. Give distances between neighbours."
            )

    def describe(self) -> str:
        """Frames, channels with their units, and the grid, in a few words."""
        return (
            f"{self.history_frames} -> {self.horizon_frames} frames of "
            f"{named_units(self.channels, self.units)} on {' x '.join(map(str, self.grid))}"
        )

    def agrees(self, other: "Fields") -> bool:
        """Whether they are the same but for rounding of spacing and time step.

        A known direction of the axes counts too.
        """
        numbers, others = (*self.spacing, self.time_step), (*other.spacing, other.time_step)
        same = len(numbers) == len(others) and all(
            math.isclose(a, b, rel_tol=1e-6) for a, b in zip(numbers, others, strict=True)
        )
        if self.falling and other.falling and self.falling != other.falling:
            return False  # one of them is upside down
        return same and replace(self, spacing=(), time_step=1.0) == replace(
            other, spacing=(), time_step=1.0
        )

    @property
    def history_shape(self) -> tuple[int, ...]:
        """Frames, grid and channels of a history, conditioning ones included."""
        return (self.history_frames, *self.grid, len(self.history_channels))

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Frames, grid and channels of a forecast."""
        return (self.horizon_frames, *self.grid, len(self.channels))

    @property
    def history_channels(self) -> tuple[str, ...]:
        """Channels of the history: the field's own, then the conditioning ones."""
        return self.channels + self.conditioning


class Window(NamedTuple):
    """A history and what followed it, in physical units. Batched: a leading axis on each.

    ``mask`` is True where the target was measured; ``None`` means everywhere. Values under a
    False entry never influence a fit, a loss or a score.
    """

    history: Float[Tensor, "*axes history_channel"]
    target: Float[Tensor, "*axes channel"]
    mask: Bool[Tensor, "*axes channel"] | None = None

    def __repr__(self) -> str:
        return brief_repr(self)

    def first(self, number: int) -> "Window":
        """So many windows of a batch."""
        parts = (None if part is None else part[:number] for part in self)
        return Window(*parts)  # type: ignore[arg-type]

    def to(self, device: torch.device) -> "Window":
        """The same on another device."""
        if self.history.device == device:
            return self
        parts = (None if part is None else sent(part, device) for part in self)
        return Window(*parts)  # type: ignore[arg-type]


@runtime_checkable
class Windows(Protocol):
    """A map-style data set of windows (any ``torch.utils.data.Dataset`` with these attributes)."""

    @property
    def fields(self) -> Fields:
        """Meaning of axes and channels."""
        ...

    @property
    def origins(self) -> Int[Tensor, "window 2"]:
        """For each window: number of its trajectory, first frame of its history."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash that changes when any value or setting of the data set changes."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Window: ...


class Seen:
    """A split seen through something that its windows pass; it is the same split."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self.fields: Fields = windows.fields

    @property
    def origins(self) -> Int[Tensor, "window 2"]:
        """Trajectory and first frame of each window."""
        return self._windows.origins

    @property
    def fingerprint(self) -> str:
        """Of the split, however it is seen."""
        return self._windows.fingerprint

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> Window:
        return self._windows[index]


class Chosen(Seen):
    """Some windows of a split, numbered anew."""

    def __init__(self, windows: Windows, numbers: Sequence[int]) -> None:
        super().__init__(windows)
        self._numbers = list(numbers)

    @property
    def origins(self) -> Int[Tensor, "window 2"]:
        """Trajectory and first frame of each chosen window."""
        return self._windows.origins[self._numbers]

    @property
    def fingerprint(self) -> str:
        """Of the split and the choice."""
        return fingerprint(self._windows.fingerprint, self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Window:
        return self._windows[self._numbers[index]]


class Placed(Seen):
    """A split whose batches are on a device; its windows, one by one, stay where they are."""

    def __init__(self, windows: Windows, device: torch.device) -> None:
        super().__init__(windows)
        self.device = device


def with_constants(history: Tensor, constants: Sequence[Number]) -> Tensor:
    """A history with its constants as further channels, the same at every frame and point."""
    if not constants:
        return history
    values = torch.tensor(constants, dtype=history.dtype)
    return torch.cat([history, values.expand(*history.shape[:-1], -1)], -1)


def gather(windows: Windows, numbers: Sequence[int]) -> Window:
    """The windows with these numbers as one batch, on the split's device."""
    batch = collate([windows[number] for number in numbers])
    return batch.to(windows.device) if isinstance(windows, Placed) else batch


def trajectories(windows: Windows) -> int:
    """Number of recordings in a split."""
    return len(windows.origins[:, 0].unique())


def collate(windows: Sequence[Window]) -> Window:
    """Stack windows along a new batch axis; a window without a mask counts as fully measured.

    In processes that read ahead it stacks right into memory that is shared.
    """
    history = _stacked([window.history for window in windows])
    target = _stacked([window.target for window in windows])
    if all(window.mask is None for window in windows):
        return Window(history, target, None)
    masks = [
        torch.ones_like(w.target, dtype=torch.bool) if w.mask is None else w.mask for w in windows
    ]
    return Window(history, target, _stacked(masks))


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    parts = [torch.as_tensor(part) for part in parts]
    return torch.stack(parts, out=readers.memory_for(parts))


def batches(
    windows: Windows, batch_size: int, *, shared: bool = False
) -> Iterator[tuple[range, Window]]:
    """Yield (window numbers, collated windows) in order; the last batch may be short.

    With ``shared``, each of several processes gets, and reads, its share of the batches.
    """
    if len(windows) == 0:
        raise EmptySplitError(
            "`windows` holds no windows. Give a split with at least one trajectory that is as "
            "long as history plus horizon."
        )
    starts: Sequence[int] = range(0, len(windows), batch_size)
    if shared:
        ranks.check_enough(len(windows))
        starts = ranks.share(starts)
    parts = [range(start, min(start + batch_size, len(windows))) for start in starts]
    device = windows.device if isinstance(windows, Placed) else None
    read = ahead(
        lambda numbers: collate([windows[number] for number in numbers]),
        [(numbers,) for numbers in parts],
        device=device or CPU,
    )
    with contextlib.closing(read):
        for numbers, batch in zip(parts, read, strict=True):
            yield numbers, batch if device is None else batch.to(device)


def on_every_batch(
    work: Callable[[range, Window], object],
    windows: Windows,
    *,
    batch_size: int,
    title: str,
    reporter: Reporter,
) -> None:
    """Do a pass's work on every batch in order; each of several processes has its share of them.

    Raises:
        DeviceMemoryError: if a batch does not fit, with how many of its windows do.
    """

    def attempt(numbers: range, window: Window, size: int) -> object:
        return work(numbers[:size], window.first(size))

    with reporter.step(title, len(windows)) as step:
        for numbers, window in batches(windows, batch_size, shared=True):
            with devices.memory_named(len(numbers), partial(attempt, numbers, window)):
                work(numbers, window)
            step.advance(len(numbers))
