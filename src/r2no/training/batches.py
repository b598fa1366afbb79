"""What a training reads: batches of windows, collated and normalised, by whichever process."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from r2no import devices
from r2no.data.normalise import Normaliser
from r2no.data.window import Window, Windows, gather
from r2no.training.source_cache import SourceCache


class Batch(NamedTuple):
    """Windows in normalised units, and where a repair loop starts, if it does."""

    window: Window
    start: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        start = None if self.start is None else devices.sent(self.start, device)
        return Batch(self.window.to(device), start)


@dataclass(eq=False)
class TrainingBatches:
    """Reads batches: a function of window numbers and epoch, whoever calls it and when.

    Attributes:
        windows: The train split; told the epoch, if it has ``set_epoch``, for new masks and noise.
        of_history: Normaliser of histories.
        of_field: Normaliser of targets and starts.
        cache: Where repair loops start.
    """

    windows: Windows
    of_history: Normaliser
    of_field: Normaliser
    cache: SourceCache | None = None
    _epoch: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        self.of_history = self.of_history.to(devices.CPU)
        self.of_field = self.of_field.to(devices.CPU)

    @property
    def statistics(self) -> list[Tensor]:
        """The numbers of both normalisers."""
        return [part for one in (self.of_history, self.of_field) for part in (one.shift, one.scale)]

    def __call__(self, numbers: list[int], epoch: int) -> Batch:
        """The windows with these numbers as they are in this epoch, on the CPU."""
        if epoch != self._epoch and hasattr(self.windows, "set_epoch"):
            self.windows.set_epoch(epoch)
        self._epoch = epoch
        window = gather(self.windows, numbers)
        history = self.of_history.in_place(window.history)  # a batch is a copy
        target = self.of_field.in_place(window.target)
        start = None if self.cache is None else self.of_field.in_place(self.cache[numbers])
        return Batch(Window(history, target, window.mask), start)
