"""Scores of predictions against measurements, streaming and independent of batch size.

Point-wise errors, kinetic energy, and errors by wavenumber, the latter on the benchmark's octant
and on the whole spectrum, counted with the Hermitian multiplicity m(k) (M1).
"""

from r2no.metrics.accumulate import Accumulator, MetricBatches, evaluate
from r2no.metrics.bands import BandScores
from r2no.metrics.flow import probe_error, update_ratio
from r2no.metrics.target import Target

__all__ = [
    "Accumulator",
    "BandScores",
    "MetricBatches",
    "Target",
    "evaluate",
    "probe_error",
    "update_ratio",
]
