"""RealPDEBench: readers of both layouts, splits, statistics, small data sets, audit, download.

Written from the published format; shares no code with the benchmark.
"""

from r2no.data.realpdebench.dataset import RealPDEBench
from r2no.data.realpdebench.info import Audit, audit
from r2no.data.realpdebench.splits import Splits, draw_splits
from r2no.data.realpdebench.statistics import (
    Normalisers,
    Statistics,
    fit_statistics,
    load_benchmark_normalisers,
)
from r2no.data.realpdebench.systems import SYSTEMS, System, lookup
from r2no.data.realpdebench.tiny import tiny_system, write_tiny

__all__ = [
    "SYSTEMS",
    "Audit",
    "Normalisers",
    "RealPDEBench",
    "Splits",
    "Statistics",
    "System",
    "audit",
    "draw_splits",
    "fit_statistics",
    "load_benchmark_normalisers",
    "lookup",
    "tiny_system",
    "write_tiny",
]
