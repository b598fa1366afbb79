"""What an adaptation costs: counts of its work, unit costs measured here, bytes it needs.

The doctor and the plan of a study both add up these; they differ in what they know of the source.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from r2no import devices
from r2no.adaptation.columns import expected
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.loops import RepairLoops
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields, Window
from r2no.ensemble import GramSums
from r2no.ensemble.nested import NESTED_GRID
from r2no.repair_loop import RepairUNet
from r2no.training import TrainSettings

Result = TypeVar("Result")

#: Copies of the sums that a search for chains holds, and starts of a level at most.
_COPIES, _STARTS = 5, 5


class Training(NamedTuple):
    """Of one repair module: optimiser steps, windows per step, validations."""

    updates: int
    batch: int
    validations: int


def training_work(settings: TrainSettings, windows: int) -> Training:
    """What training on so many windows consists of."""
    per_epoch = math.ceil(windows / settings.batch_size)
    updates = settings.total_updates(per_epoch)
    validations = math.ceil(updates / settings.validate_every(per_epoch))
    return Training(updates, min(settings.batch_size, windows), validations)


def forecast_bytes(fields: Fields, windows: int) -> int:
    """Of the source's forecasts that are kept; trajectories never are."""
    return 4 * windows * math.prod(fields.target_shape)


def columns(settings: AdaptSettings, fields: Fields, *, groups: int) -> int:
    """Side of a Gram matrix: every column and the target."""
    return expected(settings, fields, blocks=groups)[0].number + 1


def sums_bytes(settings: AdaptSettings, fields: Fields, *, groups: int) -> int:
    """Of the Gram sums of so many groups of windows, in memory; a file takes half as much."""
    chosen, cells, leads = expected(settings, fields, blocks=groups)
    return GramSums.bytes(chosen, cells, len(fields.measured), groups, leads)


def search_bytes(settings: AdaptSettings, fields: Fields, *, groups: int, folds: int) -> int:
    """Of the search for chains, beside the sums: those of occupied cells, and fits by fold.

    The sums are held by slot, as the level that is tried, and as totals of the folds. Each fold
    fits every penalty from each start.
    """
    if settings.ensemble.cells == "published":
        return 0
    chosen, cells, leads = expected(settings, fields, blocks=groups)
    occupied = float(cells.occupied.sum()) / cells.num_cells
    sums = GramSums.bytes(chosen, cells, len(fields.measured), groups, leads)
    slots = cells.num_cells * cells.weight_channels(len(fields.measured)) * leads
    fits = 8 * folds * slots * chosen.number * len(NESTED_GRID) * _STARTS
    return round(occupied * (_COPIES * sums + fits))


class Step:
    """One optimiser step of a repair module, to be timed; it changes no weight.

    Args:
        read: Gives the batch, as training would read it.
        forecast: The source's, for this batch.
        normalisers: Of history and field.
        settings: How to train.
        fields: Of the windows.
    """

    def __init__(
        self,
        read: Callable[[], Window],
        forecast: torch.Tensor,
        normalisers: tuple[Normaliser, Normaliser],
        settings: AdaptSettings,
        fields: Fields,
    ) -> None:
        self._device = devices.choose(settings.device)
        self._read, self._forecast, self._fields = read, forecast.to(self._device), fields
        self._normalisers, self._repair = normalisers, settings.repair
        self.module: RepairUNet = settings.module_for(fields).to(self._device)
        self._objective = settings.repair.objective()
        self._optimiser = torch.optim.AdamW(self.module.parameters(), lr=0.0)

    def __call__(self) -> float:
        """Take the step; returns the loss."""
        window, (of_history, of_field) = self._read().to(self._device), self._normalisers
        self.module.train()
        self._optimiser.zero_grad(set_to_none=True)
        terms = self._objective(
            self.module,
            of_history(window.history),
            of_field(self._forecast),
            of_field(window.target),
            measured=self._fields.measured,
            mask=window.mask,
        )
        terms.total.backward()
        self._optimiser.step()
        return float(terms.total.detach())

    def loops(self) -> RepairLoops:
        """The roll-out of the module."""
        repair = self._repair
        return RepairLoops(
            (self.module.eval(),), *self._normalisers, repair.steps, repair.step_size
        )


@torch.no_grad()
def rollout_seconds(loops: RepairLoops, window: Window, forecast: torch.Tensor) -> float:
    """Seconds per window of a roll-out."""
    _, seconds = timed(lambda: list(loops(window.history, forecast)))
    return seconds / len(forecast)


def timed(action: Callable[[], Result], *, warm: bool = True) -> tuple[Result, float]:
    """What an action gives and the seconds it takes, after one call to warm up."""
    if warm:
        action()
    start = time.perf_counter()
    result = action()
    return result, time.perf_counter() - start
