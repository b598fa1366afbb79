"""The spectral ensemble: Gram sums, ridge solutions, composition and depth diagnostics (M5-M12)."""

from r2no.ensemble.batch import FitBatch
from r2no.ensemble.columns import Columns
from r2no.ensemble.compose import Composition
from r2no.ensemble.diagnostics import DepthErrors, contraction_report, selection_price
from r2no.ensemble.gram import ColumnSpectra, GramSums
from r2no.ensemble.joint import JointComposition, JointReadouts
from r2no.ensemble.model import SpectralEnsemble
from r2no.ensemble.nested import NestedFit, solve_nested
from r2no.ensemble.planning import BudgetPoint, LearningPoint, budget, cheapest, learning_curve
from r2no.ensemble.retention import Retention, on_plane, retention
from r2no.ensemble.ridge import RIDGE_GRID, quadratic_error, ridge_path
from r2no.ensemble.verdict import Verdict

__all__ = [
    "RIDGE_GRID",
    "BudgetPoint",
    "ColumnSpectra",
    "Columns",
    "Composition",
    "DepthErrors",
    "FitBatch",
    "GramSums",
    "JointComposition",
    "JointReadouts",
    "LearningPoint",
    "NestedFit",
    "Retention",
    "SpectralEnsemble",
    "Verdict",
    "budget",
    "cheapest",
    "contraction_report",
    "learning_curve",
    "on_plane",
    "quadratic_error",
    "retention",
    "ridge_path",
    "selection_price",
    "solve_nested",
]
