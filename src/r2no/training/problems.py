"""What is trained: a backbone, and a repair module on top of a frozen source (M3, M4).

Both read batches of windows in normalised units, and both end with the weights that score best on
other windows.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from r2no import devices, storage
from r2no._types import PathLike
from r2no.data.normalise import Normaliser
from r2no.data.window import Window, Windows, gather
from r2no.progress import SILENT, Reporter
from r2no.repair_loop import RepairObjective, RepairUNet, repair_steps
from r2no.scoring import Metrics, NormalisedError, Rmse, Watch, mean_square, score
from r2no.training.distributed import LossFunction
from r2no.training.engine import Problem, TrainResult, Validation, optimise
from r2no.training.operator import PhysicalOperator
from r2no.training.schedule import TrainSettings
from r2no.training.source_cache import SourceCache, Split


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


def _problem(
    module: nn.Module,
    loss: LossFunction,
    validate: Validation,
    read: TrainingBatches,
    precision: devices.Precision,
    data: tuple[Any, ...],
) -> Problem:
    """A problem on the windows of ``read``, known by ``data``: all that it is made of."""
    rounded = [] if precision == "float32" else [precision]  # as runs of earlier versions know it
    key, size = storage.fingerprint(*data, *rounded), len(read.windows)
    return Problem(module, loss, validate, size, key, read, read.statistics, precision)


def train_operator(
    operator: PhysicalOperator,
    train: Windows,
    validation: Windows,
    settings: TrainSettings,
    *,
    folder: PathLike,
    measured_only: bool = False,
    validation_batch: int | None = None,
    precision: devices.Precision = "float32",
    title: str = "backbone",
    reporter: Reporter = SILENT,
) -> TrainResult:
    """Train the operator's network in place; it ends with the weights of lowest validation RMSE.

    Args:
        operator: The network with its normalisers.
        train: Windows to learn from.
        validation: Windows whose RMSE, in physical units on measured channels, selects.
        settings: How to optimise.
        folder: Where the run keeps its state.
        measured_only: Count measured channels only; the published loss counts all.
        validation_batch: Windows per batch when validating; default as in training.
        precision: How the network multiplies while it learns; it is validated in float32.
        title: Shown with the progress.
        reporter: Where progress is shown.
    """
    channels = list(train.fields.measured if measured_only else range(len(train.fields.channels)))
    read = TrainingBatches(train, *operator.normalisers)

    def validate() -> tuple[float, dict[str, float]]:
        scores = validation_scores(operator, validation, validation_batch or settings.batch_size)
        return scores["rmse"], scores

    loss = _squared_error(operator, channels, precision)
    data = ("backbone", train.fingerprint, validation.fingerprint, measured_only)
    problem = _problem(operator.network, loss, validate, read, precision, data)
    return optimise(problem, settings, folder=folder, title=title, reporter=reporter)


def _squared_error(
    operator: PhysicalOperator, channels: list[int], precision: devices.Precision
) -> LossFunction:
    """The mean squared error of the network's answer on these channels, in normalised units."""
    device = operator.history_shift.device

    def loss(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        window = batch.to(device).window
        with devices.precise(precision, device):
            answer = operator.network(window.history)
        error = answer - window.target
        value = mean_square(error[..., channels], window, channels)
        return value, {"loss": value}

    return loss


def validation_scores(
    operator: PhysicalOperator, windows: Windows, batch_size: int
) -> dict[str, float]:
    """All metrics over the measured channels in physical units, and ``normalised_mse``."""
    measured = windows.fields.measured
    metrics, error = Metrics(measured), NormalisedError(measured, operator.target_normaliser)
    device = operator.history_shift.device
    score({"own": operator}, windows, [metrics, error], batch_size=batch_size, device=device)
    return {**metrics.compute()["own"], "normalised_mse": error.compute()["own"]}


def train_repair(
    module: RepairUNet,
    train: Split,
    fit: Split,
    normalisers: tuple[Normaliser, Normaliser],
    objective: RepairObjective,
    settings: TrainSettings,
    *,
    folder: PathLike,
    title: str = "repair module",
    reporter: Reporter = SILENT,
) -> TrainResult:
    """Train a module in place; it ends with the weights of lowest RMSE at depth L on ``fit``.

    Args:
        module: Φ_θ with its initial weights.
        train: Windows to learn from, and the source's predictions for them.
        fit: Windows that select the checkpoint, and the source's predictions for them.
        normalisers: Of the history and of the field; the loop runs in normalised units.
        objective: The three-term objective.
        settings: How to optimise.
        folder: Where the run keeps its state.
        title: Shown with the progress.
        reporter: Where progress is shown.
    """
    windows, cache = train
    device = devices.of(module) or devices.CPU
    normalisers = (normalisers[0].to(device), normalisers[1].to(device))
    read = TrainingBatches(windows, *normalisers, cache)
    measured = windows.fields.measured

    def loss(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        window, start = batch.to(device)
        assert start is not None
        fields = (window.history, start, window.target)
        terms = objective(module, *fields, measured=measured, mask=window.mask)
        return terms.total, terms._asdict()

    def validate() -> float:
        return final_rmse(module, fit, normalisers, objective, settings.batch_size)

    names = (cache.path.name, fit[1].path.name)
    data = ("repair", windows.fingerprint, fit[0].fingerprint, *names, repr(objective))
    problem = _problem(module, loss, validate, read, module.precision, data)
    return optimise(problem, settings, folder=folder, title=title, reporter=reporter)


def final_rmse(
    module: RepairUNet,
    fit: Split,
    normalisers: tuple[Normaliser, Normaliser],
    objective: RepairObjective,
    batch_size: int,
) -> float:
    """RMSE of h_L on the measured points, in physical units."""
    (windows, cache), (of_history, of_field) = fit, normalisers
    fast = module.folded()
    device = devices.of(module) or devices.CPU

    def final(numbers: range, window: Window, watch: Watch) -> Iterator[tuple[str, Tensor]]:
        trajectory = repair_steps(
            fast,
            of_history(window.history.to(device)),
            of_field(cache[numbers].to(device)),
            steps=objective.steps,
            step_size=objective.step_size,
        )
        last = deque(trajectory, maxlen=1)[0].to(window.target.device)
        yield "final", of_field.inverse_for_differences(last)

    rmse = Rmse(windows.fields.measured)
    score(final, windows, [rmse], batch_size=batch_size, device=device)
    return rmse.compute()["final"]
