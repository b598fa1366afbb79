"""The measured side of a batch, prepared once for all forecasts that are held against it."""

import torch
from torch import Tensor

from r2no import devices
from r2no.errors import ConfigError, ShapeError
from r2no.metrics.checks import Measured, channel_indices, channel_slice
from r2no.metrics.pointwise import TargetSums
from r2no.metrics.spectral import ShellEnergies


class Prepared:
    """What one pass in one precision found of the targets, and memory that passes share."""

    def __init__(self, kind: torch.dtype) -> None:
        self._kind = kind
        self._memory: Tensor | None = None
        self.steady = torch.empty(0)  # of each window: its part that is constant in time
        self.sums: TargetSums | None = None  # None until then
        self.shells: ShellEnergies | None = None

    def memory(self, shape: tuple[int, ...], place: torch.device) -> Tensor:
        """Memory to overwrite, the same for every pass."""
        if self._memory is None:
            self._memory = torch.empty(shape, dtype=self._kind, device=place)
        return self._memory


class Target:
    """Windows of a batch that one or several forecasts are scored against.

    Means, norms and transforms of the windows are made with the first forecast and kept (small
    sums, no copy of the values, which must not change meanwhile).

    Args:
        values: y, of axes (batch, time, *space, channel).
        mask: True where measured; ``None`` means everywhere.
        measured: the scored channels, as in :class:`r2no.metrics.Accumulator`.
    """

    def __init__(self, values: Tensor, mask: Tensor | None = None, *, measured: Measured) -> None:
        self.values, self.mask, self.measured = values, mask, measured
        self._parts: dict[tuple[int, int], Target] = {}
        self._prepared: dict[torch.dtype, Prepared] = {}
        self.wide = False  # whether float32 was tried and had too few digits

    def __repr__(self) -> str:
        return f"Target({tuple(self.values.shape)}, measured={self.measured})"

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, given: "Tensor | Target", mask: Tensor | None, measured: Measured) -> "Target":
        """A target as it is, or that of windows.

        Raises:
            ConfigError: if a target comes with a mask beside its own.
            ShapeError: if it was made for other channels.
        """
        if not isinstance(given, Target):
            return cls(given, mask, measured=measured)
        if mask is not None:
            raise ConfigError("`mask` must be left out beside a `Target`, which brings its own.")
        if channel_indices(given.measured) != channel_indices(measured):
            raise ShapeError(
                f"`target` must be of the scored channels, {measured}, but was made for "
                f"{given.measured}. Build both with the same `measured`."
            )
        return given

    @property
    def window(self) -> tuple[int, ...]:
        """(time, *space, channel) of a window, all channels counted."""
        return tuple(self.values.shape[1:])

    @property
    def place(self) -> torch.device:
        """Where sums are computed."""
        return devices.of_sums(self.values.device)

    def part(self, windows: slice) -> "Target":
        """Some of the windows, the same object for the same ones."""
        start, stop, _ = windows.indices(len(self))
        if (start, stop) == (0, len(self)):
            return self
        if (start, stop) not in self._parts:
            mask = None if self.mask is None else self.mask[start:stop]
            self._parts[start, stop] = Target(self.values[start:stop], mask, measured=self.measured)
        return self._parts[start, stop]

    def prepared(self, kind: torch.dtype) -> Prepared:
        """What is known of the windows in this precision."""
        return self._prepared.setdefault(kind, Prepared(kind))

    def chosen(self, values: Tensor) -> Tensor:
        """The measured channels of a batch, where sums are computed."""
        return values.to(self.place)[..., channel_slice(self.measured, values.shape[-1])]
