"""The spectral ensemble: Gram sums, ridge solutions, composition and depth diagnostics (M5-M12)."""

from r2no.ensemble.columns import Columns
from r2no.ensemble.compose import Composition
from r2no.ensemble.diagnostics import DepthErrors, contraction_report, selection_price
from r2no.ensemble.gram import ColumnSpectra, GramSums
from r2no.ensemble.model import FitBatch, SpectralEnsemble
from r2no.ensemble.partition import nested_partitions, select_partition
from r2no.ensemble.retention import Retention, on_plane, retention
from r2no.ensemble.ridge import RIDGE_GRID, quadratic_error, ridge_path

__all__ = [
    "RIDGE_GRID",
    "ColumnSpectra",
    "Columns",
    "Composition",
    "DepthErrors",
    "FitBatch",
    "GramSums",
    "Retention",
    "SpectralEnsemble",
    "contraction_report",
    "nested_partitions",
    "on_plane",
    "quadratic_error",
    "retention",
    "ridge_path",
    "select_partition",
    "selection_price",
]
