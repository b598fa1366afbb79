"""Pretraining and finetuning of a backbone: mean squared error in normalised units."""

import torch
from torch import Tensor, nn

from r2no import storage
from r2no._types import PathLike
from r2no.data.normalise import Normaliser
from r2no.data.window import Window, Windows, batches, collate
from r2no.metrics import Accumulator
from r2no.training.config import TrainSettings
from r2no.training.engine import TrainResult, optimise
from r2no.training.operator import PhysicalOperator
from r2no.training.progress import Reporter


def train_operator(
    operator: PhysicalOperator,
    train: Windows,
    validation: Windows,
    settings: TrainSettings,
    *,
    folder: PathLike,
    measured_only: bool = False,
    title: str = "backbone",
    reporter: Reporter | None = None,
) -> TrainResult:
    """Train the operator's network in place; it ends with the weights of lowest validation RMSE.

    Args:
        operator: The network with its normalisers.
        train: Windows to learn from.
        validation: Windows whose RMSE, in physical units on measured channels, selects.
        settings: How to optimise.
        folder: Where the run keeps its state.
        measured_only: Count measured channels only; the published loss counts all.
        title: Shown with the progress.
        reporter: Where progress is shown.
    """
    channels = list(train.fields.measured if measured_only else range(len(train.fields.channels)))
    normalise = operator.history_normaliser, operator.target_normaliser

    def loss(numbers: list[int]) -> tuple[Tensor, dict[str, float]]:
        window = collate([train[number] for number in numbers])
        error = operator.network(normalise[0](window.history)) - normalise[1](window.target)
        value = _mean_square(error[..., channels], window, channels)
        return value, {"loss": float(value.detach())}

    key = storage.fingerprint(
        "backbone",
        train.fingerprint,
        validation.fingerprint,
        operator.state_dict(),
        measured_only,
    )
    network: nn.Module = operator.network
    return optimise(
        network,
        loss,
        lambda: validation_rmse(operator, validation, settings.batch_size),
        settings,
        size=len(train),
        key=key,
        folder=folder,
        title=title,
        reporter=reporter,
    )


def validation_rmse(operator: PhysicalOperator, windows: Windows, batch_size: int) -> float:
    """RMSE over the measured channels, in physical units."""
    metrics = Accumulator(measured=windows.fields.measured)
    for _, window in batches(windows, batch_size):
        metrics.update(operator(window.history), window.target, window.mask)
    return metrics.compute()["rmse"]


def fit_normalisers(windows: Windows, batch_size: int = 64) -> tuple[Normaliser, Normaliser]:
    """Zero-mean, unit-variance normalisers of history and target, from one pass each."""
    history = Normaliser.gaussian(window.history for _, window in batches(windows, batch_size))
    target = Normaliser.gaussian(window.target for _, window in batches(windows, batch_size))
    return history, target


def _mean_square(error: Tensor, window: Window, channels: list[int]) -> Tensor:
    if window.mask is None:
        return error.square().mean()
    known = window.mask[..., channels]
    return torch.where(known, error, 0).square().sum() / known.sum().clamp_min(1)
