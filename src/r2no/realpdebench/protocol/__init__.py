"""RealPDEBench from a preset to a score: the published protocol, evaluation, resumable runs."""

from r2no.realpdebench.protocol.config import (
    AdaptConfig,
    EvaluateConfig,
    TrainConfig,
    read_config,
)
from r2no.realpdebench.protocol.evaluation import Protocol, roll_out, score_operators
from r2no.realpdebench.protocol.presets import Preset, preset
from r2no.realpdebench.protocol.run import run_adaptation, run_evaluation, run_training

__all__ = [
    "AdaptConfig",
    "EvaluateConfig",
    "Preset",
    "Protocol",
    "TrainConfig",
    "preset",
    "read_config",
    "roll_out",
    "run_adaptation",
    "run_evaluation",
    "run_training",
    "score_operators",
]
