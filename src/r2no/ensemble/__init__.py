"""The spectral ensemble: Gram sums, ridge solutions, composition and depth diagnostics (M5-M13)."""

from r2no.ensemble.accumulate import ColumnSpectra, GramAccumulator
from r2no.ensemble.columns import Columns
from r2no.ensemble.compose import Composition, Readouts
from r2no.ensemble.diagnostics import (
    DepthErrors,
    Retention,
    contraction_report,
    on_plane,
    retention,
    selection_price,
)
from r2no.ensemble.estimator import SpectralEnsemble
from r2no.ensemble.fitted import FittedEnsemble
from r2no.ensemble.gram import FitBatch, GramSums
from r2no.ensemble.holdout import Fold, HeldOut, blocks, halves
from r2no.ensemble.nested import NestedFit, solve_nested
from r2no.ensemble.plan import FitPlan
from r2no.ensemble.planning import (
    BudgetPoint,
    Contribution,
    LearningPoint,
    best_within,
    contributions,
    cost_curve,
    learning_curve,
)
from r2no.ensemble.ridge import RIDGE_GRID, quadratic_error, ridge_path
from r2no.ensemble.verdict import Verdict

__all__ = [
    "RIDGE_GRID",
    "BudgetPoint",
    "ColumnSpectra",
    "Columns",
    "Composition",
    "Contribution",
    "DepthErrors",
    "FitBatch",
    "FitPlan",
    "FittedEnsemble",
    "Fold",
    "GramAccumulator",
    "GramSums",
    "HeldOut",
    "LearningPoint",
    "NestedFit",
    "Readouts",
    "Retention",
    "SpectralEnsemble",
    "Verdict",
    "best_within",
    "blocks",
    "contraction_report",
    "contributions",
    "cost_curve",
    "halves",
    "learning_curve",
    "on_plane",
    "quadratic_error",
    "retention",
    "ridge_path",
    "selection_price",
    "solve_nested",
]
