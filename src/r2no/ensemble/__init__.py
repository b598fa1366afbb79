"""The spectral ensemble: Gram sums, ridge solutions, composition and depth diagnostics (M5-M12)."""

from r2no.ensemble.columns import Columns
from r2no.ensemble.compose import Composition
from r2no.ensemble.diagnostics import DepthErrors, contraction_report, selection_price
from r2no.ensemble.gram import GramSums
from r2no.ensemble.model import FitBatch, SpectralEnsemble
from r2no.ensemble.ridge import RIDGE_GRID, quadratic_error, ridge_path

__all__ = [
    "RIDGE_GRID",
    "Columns",
    "Composition",
    "DepthErrors",
    "FitBatch",
    "GramSums",
    "SpectralEnsemble",
    "contraction_report",
    "quadratic_error",
    "ridge_path",
    "selection_price",
]
