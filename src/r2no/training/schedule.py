"""Settings of both trainings, and what they say of every update: its windows and learning rate.

All are pure functions of the settings, so there is no schedule to resume.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from r2no.checks import Settings
from r2no.training.distributed import own_share

#: Processes that read ahead: so many, or as many as pay.
Workers = Annotated[int, Field(ge=0)] | Literal["auto"]


class TrainSettings(Settings, frozen=True):
    """How to optimise: the defaults are the repair module's (DESIGN 1.2).

    Give either ``epochs`` or ``updates``. The learning rate follows a cosine from ``lr`` to
    ``final_lr``, stepped per epoch or per update.
    """

    epochs: int | None = Field(default=12, ge=1, description="Passes over the train split.")
    updates: int | None = Field(default=None, ge=1, description="Steps, instead of `epochs`.")
    batch_size: int = Field(default=16, ge=1, description="Windows per step.")
    lr: float = Field(default=3e-4, gt=0, description="First learning rate.")
    final_lr: float = Field(default=1e-6, ge=0, description="Last learning rate.")
    weight_decay: float = Field(default=1e-5, ge=0, description="Pull of weights to zero.")
    clip: float = Field(default=1.0, ge=0, description="Largest gradient norm; 0 means no limit.")
    optimiser: Literal["adam", "adamw"] = Field(default="adam", description="Kind of steps.")
    schedule: Literal["cosine_epoch", "cosine_update", "constant"] = Field(
        default="cosine_epoch", description="How the learning rate falls."
    )
    validations: int | None = Field(default=None, ge=1, description="Default: one per epoch.")
    seed: int = Field(default=42, description="Seed of weights and order of windows.")
    workers: Workers = Field(
        default="auto",
        exclude=True,  # who reads, not what: runs go on with another number
        description="Processes that read ahead; auto starts up to 4 for an accelerator that has "
        "the cores, none on the CPU.",
    )

    def model_post_init(self, context: Any, /) -> None:
        """Refuse contradictory lengths."""
        if (self.epochs is None) == (self.updates is None):
            raise ValueError("give either `epochs` or `updates` (set the other to null)")

    def total_updates(self, batches_per_epoch: int) -> int:
        """Number of optimiser steps."""
        if self.updates is not None:
            return self.updates
        assert self.epochs is not None
        return self.epochs * batches_per_epoch

    def validate_every(self, batches_per_epoch: int) -> int:
        """Updates between two validations."""
        if self.validations is None:
            return batches_per_epoch
        return max(1, self.total_updates(batches_per_epoch) // self.validations)

    def lr_at(self, update: int, batches_per_epoch: int) -> float:
        """Learning rate of an update."""
        total = self.total_updates(batches_per_epoch)
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "cosine_update":
            progress = update / total
        else:
            epochs = max(1, math.ceil(total / batches_per_epoch))
            progress = (update // batches_per_epoch) / epochs
        return self.final_lr + (self.lr - self.final_lr) * (1 + math.cos(math.pi * progress)) / 2


def epoch_order(size: int, seed: int, epoch: int) -> list[int]:
    """Order of the windows in one epoch, a pure function of seed and epoch."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(size, generator=generator).tolist()


@dataclass
class Plan:
    """The windows of each update, a pure function of the settings, known as far ahead as asked."""

    size: int
    settings: TrainSettings
    _orders: dict[int, list[int]] = field(default_factory=dict)

    @property
    def per_epoch(self) -> int:
        """Updates in an epoch; the last may be on fewer windows."""
        return -(-self.size // self.settings.batch_size)

    def __call__(self, update: int) -> tuple[list[int], int]:
        """Numbers of the windows, and the epoch."""
        epoch, position = divmod(update, self.per_epoch)
        if epoch not in self._orders:
            kept = {known: order for known, order in self._orders.items() if known == epoch - 1}
            self._orders = kept | {epoch: epoch_order(self.size, self.settings.seed, epoch)}
        start = position * self.settings.batch_size
        return self._orders[epoch][start : start + self.settings.batch_size], epoch

    def own(self, update: int) -> tuple[list[int], int]:
        """As above, of which this process reads its share."""
        numbers, epoch = self(update)
        return own_share(numbers), epoch
