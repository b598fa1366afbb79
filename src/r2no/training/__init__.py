"""Training of backbones and repair modules: the only home of optimisers and checkpoints (M4).

Loops, samplers, caches and sums are rank-aware: under ``torchrun`` every rank takes its share of a
batch, gradients and sums are added up, and rank 0 writes.
"""

from r2no.training.engine import Problem, TrainResult, optimise
from r2no.training.operator import (
    Persistence,
    PhysicalOperator,
    asked,
    load_operator,
    operator_fingerprint,
    operator_identity,
    same_answer,
    save_operator,
)
from r2no.training.parallel import side_by_side
from r2no.training.problems import train_operator, train_repair
from r2no.training.schedule import TrainSettings
from r2no.training.source_cache import SourceCache, Split, cached_source

__all__ = [
    "Persistence",
    "PhysicalOperator",
    "Problem",
    "SourceCache",
    "Split",
    "TrainResult",
    "TrainSettings",
    "asked",
    "cached_source",
    "load_operator",
    "operator_fingerprint",
    "operator_identity",
    "optimise",
    "same_answer",
    "save_operator",
    "side_by_side",
    "train_operator",
    "train_repair",
]
