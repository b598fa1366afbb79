"""Figures from fitted models and result rows; the only home of matplotlib (M9, M10)."""

from r2no.report.plots import plot_depth_bands, plot_fields, plot_retention

__all__ = ["plot_depth_bands", "plot_fields", "plot_retention"]
