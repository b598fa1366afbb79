"""Figures from fitted models and result rows; the only home of matplotlib (M9, M10)."""

from r2no.report.curves import Curve, Labels, plot_curves, plot_frames
from r2no.report.plots import plot_depth_bands, plot_fields, plot_retention

__all__ = [
    "Curve",
    "Labels",
    "plot_curves",
    "plot_depth_bands",
    "plot_fields",
    "plot_frames",
    "plot_retention",
]
