"""``r2no bench``: RealPDEBench and the paper's experiments, the other wing of the package."""

from r2no.cli.bench import (  # each registers itself
    adapt,
    checkpoints,
    cluster,
    data,
    evaluate,
    show,
    study,
    train,
)
from r2no.cli.bench.app import bench_app

__all__ = [
    "adapt",
    "bench_app",
    "checkpoints",
    "cluster",
    "data",
    "evaluate",
    "show",
    "study",
    "train",
]
