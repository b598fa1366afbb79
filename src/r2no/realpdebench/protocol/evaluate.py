"""Score a checkpoint or an artifact on one split, as JSON."""

from typing import Any

from r2no import devices, storage
from r2no._types import Operator
from r2no.adaptation.model import versions
from r2no.errors import ConfigError
from r2no.progress import SILENT, Reporter
from r2no.realpdebench.protocol.config import EvaluateConfig
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.evaluation import Protocol, Remembered, score_operators
from r2no.realpdebench.protocol.presets import preset
from r2no.realpdebench.protocol.sources import Source, is_artifact, open_artifact, open_source
from r2no.realpdebench.protocol.windows import check_operator, open_windows

_CLEAN_BATCH = 16  # clean scores do not depend on it


def run_evaluation(config: EvaluateConfig, *, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Score a checkpoint or an artifact; an artifact's source is scored beside it.

    Returns what is also written to ``config.output``; non-finite scores are strings there, since
    JSON has no numbers for them.
    """
    operators, source = _operators(config, reporter)
    row = preset(source.system, source.backbone)
    blocks = config.autoregressive or (row.autoregressive if config.compat else 1)
    windows = open_windows(
        config,
        source.system,
        config.kind,
        config.split,
        autoregressive=blocks,
        frames=config.frames,
        test_mode=config.test_mode,
        mask_prob=0.0,
    )
    check_operator(source.operator, windows)
    protocol = Protocol(
        config.batch_size or (row.eval_batch_size if config.compat else _CLEAN_BATCH),
        config.compat,
        (source.operator.history_normaliser, source.operator.target_normaliser),
        probes=config.probes,
    )
    device = source.operator.history_shift.device
    reporter.say(f"Computing on {devices.describe(device)}.")
    scores = score_operators(operators, windows, protocol, device=device, reporter=reporter)
    result: dict[str, Any] = storage.strict_json(
        {**scores, **_circumstances(source, windows, protocol)}
    )
    if config.output is not None:
        storage.write_json(config.output, result)
    return result


def _operators(config: EvaluateConfig, reporter: Reporter) -> tuple[dict[str, Operator], Source]:
    if is_artifact(config.model):
        model, source = open_artifact(config, reporter=reporter)
        model.source = Remembered(source.operator)  # scored beside the model, computed once
        return {"scores": model.forecast, "source_scores": model.source}, source
    if config.model.is_dir():
        raise ConfigError(
            f"`{config.model}` is a folder without `manifest.json`, so it is no artifact. Give "
            "`model.r2no` of an adaptation or a checkpoint file."
        )
    source = open_source(config, config.model, cache=None, reporter=reporter)
    return {"scores": source.operator}, source


def _circumstances(source: Source, windows: RealPDEBench, protocol: Protocol) -> dict[str, Any]:
    """What the scores depend on."""
    blocks = windows.autoregressive
    return {
        "system": source.system,
        "backbone": source.backbone,
        "kind": windows.kind,
        "split": windows.split,
        "test_mode": windows.test_mode,
        "windows": len(windows),
        "measured": [windows.fields.channels[c] for c in windows.fields.measured],
        "autoregressive": blocks,
        "compat": protocol.compat,
        "metric_batch": protocol.metric_batch(blocks) or len(windows),
        "data": windows.fingerprint,
        "device": devices.describe(source.operator.history_shift.device),
        "versions": versions(),
    }
