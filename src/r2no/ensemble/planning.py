"""What the sums tell without another look at the data: cheaper models, value of more data.

The error for the first d depths of m members follows from sub-blocks of the Gram sums, and the
error for fewer blocks of windows from fewer groups; nothing is rolled out again.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from r2no import checks
from r2no.ensemble.chains import refit_chains
from r2no.ensemble.fitted import FittedEnsemble
from r2no.ensemble.gram import GramSums
from r2no.ensemble.holdout import Fold
from r2no.ensemble.ridge import quadratic_error, ridge_path
from r2no.errors import ConfigError, EmptySplitError


@dataclass(frozen=True)
class BudgetPoint:
    """Held-out error of a cheaper model.

    Attributes:
        evaluations: Evaluations of the repair module, members times depth.
        members: Members used.
        depth: Depths used.
        error: Held-out RMSE relative to the source's.
    """

    evaluations: int
    members: int
    depth: int
    error: float


@dataclass(frozen=True)
class LearningPoint:
    """Held-out error with part of the data.

    Attributes:
        windows: Mean number of windows fitted on.
        blocks: Number of blocks fitted on.
        error: Mean held-out RMSE relative to the source's.
        spread: Standard deviation of that over the subsets.
    """

    windows: float
    blocks: int
    error: float
    spread: float


def cost_curve(ensemble: FittedEnsemble) -> list[BudgetPoint]:
    """Held-out error against evaluations, for every number of members and every depth.

    Partition and penalty are those that count most in the whole ensemble.
    """
    columns = ensemble.columns
    ensemble, sums = _compact(ensemble)
    points = []
    for members in range(1, columns.members + 1):
        for depth in columns.depths:
            fewer = columns.restricted(members, depth)
            part = sums.with_columns(columns.positions(fewer))
            errors = [_fold_error(ensemble, part, fit, score) for fit, score in _folds(ensemble)]
            points.append(BudgetPoint(fewer.evaluations, members, depth, _relative(errors)))
    return points


def best_within(points: list[BudgetPoint], evaluations: int) -> BudgetPoint:
    """The point of lowest held-out error within a number of evaluations."""
    evaluations = checks.whole("evaluations", evaluations)
    affordable = [point for point in points if point.evaluations <= evaluations]
    if not affordable:
        least = min(point.evaluations for point in points)
        raise ConfigError(f"`evaluations` must be at least {least}, but got {evaluations}.")
    return min(affordable, key=lambda point: (point.error, point.evaluations))


def learning_curve(
    ensemble: FittedEnsemble, *, repeats: int = 8, seed: int = 0
) -> list[LearningPoint]:
    """Held-out error when fitting on 1, 2, ... blocks, each drawn ``repeats`` times.

    Partition and penalty are those that count most in the whole ensemble, so the curve shows what
    the weights need, and is a little optimistic where few blocks would prefer coarser cells.
    """
    ensemble, sums = _compact(ensemble)
    generator = torch.Generator().manual_seed(seed)
    points = []
    for number in range(1, min(len(fit) for fit, _ in _folds(ensemble)) + 1):
        found, windows = [], []
        for _ in range(repeats):
            errors = []
            for fit, score in _folds(ensemble):
                order = torch.randperm(len(fit), generator=generator)[:number].tolist()
                chosen = tuple(fit[place] for place in order)
                windows.append(float(sums.windows[list(chosen)].sum()))
                errors.append(_fold_error(ensemble, sums, chosen, score))
            found.append(_relative(errors))
        values = torch.tensor(found, dtype=torch.float64)
        spread = float(values.std()) if repeats > 1 else 0.0
        mean_windows = sum(windows) / len(windows)
        points.append(LearningPoint(mean_windows, number, float(values.mean()), spread))
    return points


def _compact(ensemble: FittedEnsemble) -> tuple[FittedEnsemble, GramSums]:
    """The ensemble and its sums without the cells that hold no coefficient."""
    occupied = ensemble.cells.occupied
    number = torch.cumsum(occupied, 0) - 1
    cells = replace(
        ensemble.cells, index=number[ensemble.cells.index], num_cells=int(occupied.sum())
    )
    whole = ensemble.needed_sums()
    sums = replace(whole, moments=whole.moments[:, occupied])
    return replace(ensemble, cells=cells, sums=sums), sums


def _folds(ensemble: FittedEnsemble) -> tuple[Fold, ...]:
    if not ensemble.folds:
        raise EmptySplitError("The fit had no blocks to hold out, so there is nothing to judge by.")
    return ensemble.folds


def _fold_error(
    ensemble: FittedEnsemble, sums: GramSums, fit: tuple[int, ...], score: tuple[int, ...]
) -> tuple[float, float]:
    """Held-out squared error of a refit and of the source."""
    weights = _refit(ensemble, sums.total(fit))
    moments = sums.total(score).moments[0]
    return float(quadratic_error(moments, weights).sum()), float(moments[..., -1, -1].sum())


def _refit(ensemble: FittedEnsemble, sums: GramSums) -> Tensor:
    if ensemble.nested is not None:
        chain = replace(ensemble.nested.leading, share=1.0)
        return refit_chains(sums, ensemble.cells, [chain], leads=ensemble.plan.lead_groups)
    assert ensemble.ridge is not None
    return ridge_path(sums.moments[0], [ensemble.ridge])[0]


def _relative(errors: list[tuple[float, float]]) -> float:
    after, before = (sum(values) for values in zip(*errors, strict=True))
    return (after / before) ** 0.5 if before > 0 else 0.0
