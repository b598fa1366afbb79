"""RealPDEBench: readers of both layouts, splits, statistics, small data sets, audit, download.

Written from the published format; shares no code with the benchmark.
"""

from r2no.realpdebench.files.index import DrawnSplits, draw_splits
from r2no.realpdebench.files.tiny import write_tiny
from r2no.realpdebench.files.tiny_fields import tiny_system
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.info import Audit, audit
from r2no.realpdebench.protocol.statistics import (
    Normalisers,
    Statistics,
    fit_statistics,
    load_benchmark_normalisers,
)
from r2no.realpdebench.systems import SYSTEMS, System, lookup

__all__ = [
    "SYSTEMS",
    "Audit",
    "DrawnSplits",
    "Normalisers",
    "RealPDEBench",
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
