"""Your own operator and your own measurements, from one YAML file to an artifact."""

from r2no.runs.config import (
    DataConfig,
    OwnConfig,
    SourceConfig,
    is_own_config,
    read_own_config,
)
from r2no.runs.doctor import Finding, examine
from r2no.runs.evaluate import evaluate_own, is_own_artifact
from r2no.runs.run import run_own_adaptation
from r2no.runs.task import Task, open_task

__all__ = [
    "DataConfig",
    "Finding",
    "OwnConfig",
    "SourceConfig",
    "Task",
    "evaluate_own",
    "examine",
    "is_own_artifact",
    "is_own_config",
    "open_task",
    "read_own_config",
    "run_own_adaptation",
]
