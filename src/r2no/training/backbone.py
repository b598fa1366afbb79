"""Pretraining and finetuning of a backbone: mean squared error in normalised units."""

from torch import Tensor

from r2no import devices, storage
from r2no._types import PathLike
from r2no.data.normalise import Normaliser
from r2no.data.window import Windows, batches
from r2no.progress import SILENT, Reporter
from r2no.scoring import Metrics, NormalisedError, mean_square, score
from r2no.training.batches import Batch, TrainingBatches
from r2no.training.config import TrainSettings
from r2no.training.distributed import LossFunction
from r2no.training.engine import Problem, TrainResult, optimise
from r2no.training.operator import PhysicalOperator

_TOGETHER = 64  # windows of which statistics are taken at once


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
    data = (train.fingerprint, validation.fingerprint, measured_only)
    rounded = [] if precision == "float32" else [precision]
    read = TrainingBatches(train, operator.history_normaliser, operator.target_normaliser)

    def validate() -> tuple[float, dict[str, float]]:
        scores = validation_scores(operator, validation, validation_batch or settings.batch_size)
        return scores["rmse"], scores

    problem = Problem(
        operator.network,
        _squared_error(operator, channels, precision),
        validate,
        size=len(train),
        key=storage.fingerprint("backbone", *data, *rounded),
        read=read,
        alike=read.statistics,
        precision=precision,
    )
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


def fit_normalisers(windows: Windows) -> tuple[Normaliser, Normaliser]:
    """Zero-mean, unit-variance normalisers of history and target, from one pass each.

    Missing values of the target do not count; those of the history count as they were filled.
    """
    histories = (window.history for _, window in batches(windows, _TOGETHER, shared=True))
    history = Normaliser.gaussian(histories, shared=True)
    pairs = ((window.target, window.mask) for _, window in batches(windows, _TOGETHER, shared=True))
    return history, Normaliser.gaussian(pairs, shared=True)
