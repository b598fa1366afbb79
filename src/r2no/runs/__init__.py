"""Your own operator and your own measurements, from one YAML file to an artifact."""

from r2no.runs.config import (
    DataConfig,
    OwnConfig,
    SourceConfig,
    config_schema,
    read_own_config,
)
from r2no.runs.doctor import examine
from r2no.runs.rehearsal import Finding
from r2no.runs.run import Task, evaluate_own, open_task, run_own_adaptation

__all__ = [
    "DataConfig",
    "Finding",
    "OwnConfig",
    "SourceConfig",
    "Task",
    "config_schema",
    "evaluate_own",
    "examine",
    "open_task",
    "read_own_config",
    "run_own_adaptation",
]
