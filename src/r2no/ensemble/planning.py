"""What the sums tell without another look at the data: cheaper models, value of more data.

The error for the first d depths of m members follows from sub-blocks of the Gram sums, and the
error for fewer blocks of windows from fewer groups; nothing is rolled out again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from r2no import checks
from r2no.ensemble.chains import ChainSearch
from r2no.ensemble.columns import Columns
from r2no.ensemble.fitted import FittedEnsemble
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

    Without members there are only the columns that cost nothing. Partitions, penalties and shares
    are those that count most in the whole ensemble; the error is that of its verdict.
    """
    columns, held_out = ensemble.columns, _HeldOut(ensemble)
    points = []
    for members in range(0 if columns.further else 1, columns.members + 1):
        for depth in columns.depths if members else (0,):
            fewer = columns.restricted(members, depth or None)
            error = held_out.error(fewer)
            points.append(BudgetPoint(fewer.evaluations, members, depth, error))
    return points


@dataclass(frozen=True)
class Contribution:
    """What a group of columns is worth, held out.

    Attributes:
        group: Its name.
        columns: Number of its columns.
        without: Held-out RMSE relative to the source's with this group left out.
        alone: The same with no other group.
        together: The same with all groups.
    """

    group: str
    columns: int
    without: float
    alone: float
    together: float

    @property
    def worth(self) -> float:
        """By how much the RMSE rises, relative to that with all groups, when it is left out."""
        return self.without / self.together - 1 if self.together > 0 else 0.0


def contributions(ensemble: FittedEnsemble) -> list[Contribution]:
    """What each group of columns is worth, from sub-blocks of the sums; the most useful first.

    Partitions, penalties and shares are those that count most in the whole ensemble, and the error
    is that of its verdict, so the numbers say what is lost at once, not what another fit would make
    of the rest.
    """
    columns, held_out = ensemble.columns, _HeldOut(ensemble)
    groups = columns.groups()
    together = held_out.error()
    found = []
    for name, places in groups.items():
        others = [other for other in groups if other != name]
        without = 1.0
        if others:
            without = held_out.error(columns.restricted(without=[name]))
        alone = held_out.error(columns.restricted(without=others))
        found.append(Contribution(name, len(places), without, alone, together))
    return sorted(found, key=lambda each: -each.worth)


def best_within(points: list[BudgetPoint], evaluations: int) -> BudgetPoint:
    """The point of lowest held-out error within a number of evaluations."""
    evaluations = checks.whole("evaluations", evaluations, least=0)
    if not points:
        raise ConfigError(
            "`evaluations` cannot be chosen: without modules and without columns that cost nothing "
            "there is only one model. Leave out `truncate`, or adapt with either."
        )
    affordable = [point for point in points if point.evaluations <= evaluations]
    if not affordable:
        least = min(point.evaluations for point in points)
        raise ConfigError(f"`evaluations` must be at least {least}, but got {evaluations}.")
    return min(affordable, key=lambda point: (point.error, point.evaluations))


def learning_curve(
    ensemble: FittedEnsemble, *, repeats: int = 8, seed: int = 0, points: int | None = None
) -> list[LearningPoint]:
    """Held-out error when fitting on 1, 2, ... blocks, each drawn ``repeats`` times.

    With ``points`` there are so many at most, denser where there are few blocks.

    Partitions, penalties and shares are those that count most in the whole ensemble, so the curve
    shows what the weights need, and is a little optimistic where few blocks would prefer coarser
    cells.
    """
    sums, held_out = ensemble.needed_sums(), _HeldOut(ensemble)
    generator = torch.Generator().manual_seed(seed)
    curve = []
    folds = _folds(ensemble)
    for number in _numbers(min(len(fit) for fit, _ in folds), points):
        found, windows = [], []
        for _ in range(repeats):
            chosen = []
            for fit, _ in folds:
                order = torch.randperm(len(fit), generator=generator)[:number].tolist()
                chosen.append(tuple(fit[place] for place in order))
                windows.append(float(sums.windows[list(chosen[-1])].sum()))
            found.append(held_out.error(groups=chosen))
        values = torch.tensor(found, dtype=torch.float64)
        spread = float(values.std()) if repeats > 1 else 0.0
        mean_windows = sum(windows) / len(windows)
        curve.append(LearningPoint(mean_windows, number, float(values.mean()), spread))
    return curve


def _numbers(most: int, points: int | None) -> list[int]:
    """Whole numbers from one to ``most``, all or some, in steps that grow."""
    if points is None or points >= most:
        return list(range(1, most + 1))
    return sorted({round(most ** (step / max(points - 1, 1))) for step in range(points)})


def _folds(ensemble: FittedEnsemble) -> tuple[Fold, ...]:
    """Those that judge the ensemble, as its verdict does."""
    if not ensemble.folds:
        raise EmptySplitError("The fit had no blocks to hold out, so there is nothing to judge by.")
    return ensemble.judging_folds


class _HeldOut:
    """Held-out RMSE relative to the source's, refitted on some columns and groups of each fold."""

    def __init__(self, ensemble: FittedEnsemble) -> None:
        self._ensemble, self._folds = ensemble, _folds(ensemble)
        self._sums = sums = ensemble.needed_sums()
        self._before = float(sum(sums.energy[list(score)].sum() for _, score in self._folds))
        self._search = ChainSearch(
            sums, self._folds, ensemble.cells, (), leads=ensemble.plan.lead_groups,
            columns=ensemble.columns,
        ) if ensemble.nested is not None else None  # fmt: skip

    def error(
        self, columns: Columns | None = None, groups: Sequence[Sequence[int]] | None = None
    ) -> float:
        """With these columns, and the fits of the folds on these groups; by default on all."""
        fitted = [fit for fit, _ in self._folds] if groups is None else groups
        after = max(self._after(columns or self._ensemble.columns, fitted), 0.0)
        return (after / self._before) ** 0.5 if self._before > 0 else 0.0

    def _after(self, columns: Columns, fitted: Sequence[Sequence[int]]) -> float:
        ensemble, search = self._ensemble, self._search
        positions = ensemble.columns.positions(columns)
        if ensemble.nested is not None and search is not None:
            if columns != ensemble.columns:
                search = search.restricted(columns)
            return float(search.errors_of(ensemble.nested.main, fitted).sum())
        part, after = self._sums.with_columns(positions), 0.0
        for groups, (_, score) in zip(fitted, self._folds, strict=True):
            total = part.total(tuple(groups)).moments[0]
            weights = ridge_path(total, [ensemble.ridge or 0.0])[0]
            after += float(quadratic_error(part.total(score).moments[0], weights).sum())
        return after
