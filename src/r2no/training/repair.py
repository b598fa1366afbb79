"""Training of a repair module Φ_θ on top of a frozen source (M3, M4)."""

from collections import deque
from collections.abc import Iterator

from torch import Tensor

from r2no import devices, storage
from r2no._types import PathLike
from r2no.data.normalise import Normaliser
from r2no.data.window import Window, Windows
from r2no.progress import SILENT, Reporter
from r2no.repair_loop import RepairObjective, RepairUNet, repair_steps
from r2no.scoring import Rmse, Watch, score
from r2no.training.batches import Batch, TrainingBatches
from r2no.training.config import TrainSettings
from r2no.training.engine import Problem, TrainResult, optimise
from r2no.training.source_cache import SourceCache


def train_repair(
    module: RepairUNet,
    train: tuple[Windows, SourceCache],
    fit: tuple[Windows, SourceCache],
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

    data = (windows.fingerprint, fit[0].fingerprint, cache.path.name, fit[1].path.name)
    rounded = [] if module.precision == "float32" else [module.precision]
    problem = Problem(
        module,
        loss,
        lambda: final_rmse(module, fit, normalisers, objective, settings.batch_size),
        size=len(windows),
        key=storage.fingerprint("repair", *data, repr(objective), *rounded),
        read=read,
        alike=read.statistics,
        precision=module.precision,
    )
    return optimise(problem, settings, folder=folder, title=title, reporter=reporter)


def final_rmse(
    module: RepairUNet,
    fit: tuple[Windows, SourceCache],
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
