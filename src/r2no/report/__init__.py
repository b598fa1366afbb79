"""Figures from fitted models and result rows, and the report page; the only home of matplotlib.

``collect`` gathers what a report shows (:class:`ReportData`), ``render`` draws it as one HTML
file, ``write_report`` does both (M9, M10).
"""

from r2no.report.data import Evaluation, ReportData, store_evaluation, stored_evaluation
from r2no.report.page import collect, render, write_report
from r2no.report.plots import (
    Curve,
    Labels,
    plot_channels,
    plot_curves,
    plot_depth_bands,
    plot_fields,
    plot_frames,
    plot_regions,
    plot_retention,
)
from r2no.report.watch import ScoringWatch, evaluate

__all__ = [
    "Curve",
    "Evaluation",
    "Labels",
    "ReportData",
    "ScoringWatch",
    "collect",
    "evaluate",
    "plot_channels",
    "plot_curves",
    "plot_depth_bands",
    "plot_fields",
    "plot_frames",
    "plot_regions",
    "plot_retention",
    "render",
    "store_evaluation",
    "stored_evaluation",
    "write_report",
]
