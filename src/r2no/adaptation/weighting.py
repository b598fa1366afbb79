"""Which windows count how much: the exponent of the window weight ‖y‖^-p, chosen for a target.

A fit with p = 0 minimises the squared error itself, one with p = 2 the squared relative error; in
between, p = 1 is the published choice. Which generalises best for a score is not the same
question: held-out blocks decide it, judged with p = 0 for the RMSE and p = 2 for the relative L2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from r2no._types import Number
from r2no.ensemble import Columns, FitPlan, FittedEnsemble, Fold, GramSums
from r2no.spectral import FourierCells

Target = Literal["rmse", "rel_l2"]

EXPONENTS = (0.0, 1.0, 2.0)
JUDGE: dict[Target, float] = {"rmse": 0.0, "rel_l2": 2.0}


def needed_exponents(candidates: Sequence[float], target: Target | None) -> tuple[float, ...]:
    """Exponents whose sums :func:`choose_exponent` reads."""
    judges = () if target is None else JUDGE.values()
    return tuple(sorted({*candidates, *judges}))


def choose_exponent(
    cells: FourierCells,
    plan: FitPlan,
    columns: Columns,
    sums: Mapping[Number, GramSums],
    folds: tuple[Fold, ...],
    candidates: Sequence[float],
    target: Target | None,
) -> tuple[FittedEnsemble, list[dict[str, float]]]:
    """The fit of the candidate with the lowest held-out error for ``target``.

    Also a table: for each candidate, held-out RMSE and relative L2 over those of the source.
    Without a target there is one candidate, judged by its own weighting, and no table.
    """

    def fit(exponent: float, judge: float | None = None) -> FittedEnsemble:
        return FittedEnsemble.solve(
            cells,
            replace(plan, weight_exponent=exponent),
            columns,
            sums[exponent],
            folds,
            scoring_sums=None if judge is None else sums[judge],
        )

    if target is None:
        (exponent,) = candidates
        return fit(exponent), []
    fitted: dict[tuple[float, Target], FittedEnsemble] = {}
    table = []
    for exponent in candidates:
        row = {"exponent": exponent}
        for score, judge in JUDGE.items():
            each = fitted[exponent, score] = fit(exponent, judge)
            row[score] = _root_ratio(each.held_out_score, _source_error(folds, sums[judge]))
        table.append(row)
    best = min(table, key=lambda row: (row[target], abs(row["exponent"] - 1)))
    return fitted[best["exponent"], target], table


def _root_ratio(error: float, source: float) -> float:
    """√(error / source); a source without error leaves nothing to gain."""
    return (max(error, 0.0) / source) ** 0.5 if source > 0 else 1.0


def _source_error(folds: tuple[Fold, ...], sums: GramSums) -> float:
    """Held-out error of the source, counted as :attr:`FittedEnsemble.held_out_score` is."""
    return sum(float(sums.total(score).energy.sum()) for _, score in folds)
