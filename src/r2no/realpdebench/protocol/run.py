"""Train a backbone, adapt it, score either: runs that resume and say what they used."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from r2no import devices, ranks, storage
from r2no._types import Operator
from r2no.adaptation import adapt
from r2no.adaptation.stored import is_artifact
from r2no.checks import changed
from r2no.data.ahead import prepare
from r2no.errors import ConfigError
from r2no.locks import sole_run
from r2no.progress import SILENT, Reporter
from r2no.realpdebench.protocol.config import AdaptConfig, EvaluateConfig, TrainConfig, preset
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.evaluation import Protocol, Remembered, score_operators
from r2no.realpdebench.protocol.inputs import (
    Source,
    check_operator,
    open_artifact,
    open_source,
    open_windows,
    read_through,
    source_system,
    start_operator,
    with_names,
)
from r2no.realpdebench.systems import SPLITS
from r2no.runs.finish import ARTIFACT, SUMMARY, computed_on, finish, summarise
from r2no.training import (
    PhysicalOperator,
    TrainResult,
    save_operator,
    train_operator,
)

CHECKPOINT = "checkpoint.safetensors"
_CLEAN_BATCH = 16  # clean scores do not depend on it
#: The benchmark's name of each validation score, and ours.
_SCORES = {
    "normalized_mse": "normalised_mse",
    "rmse": "rmse",
    "mae": "mae",
    "rel_l2_error": "rel_l2",
    "r2": "r2",
    "ke_error": "ke_error",
    "f_error": "frmse",
    **{f"{band}_f_error": f"frmse_{band}" for band in ("low", "mid", "high")},
    **{f"rel_{band}_f_error": f"rel_frmse_{band}" for band in ("low", "mid", "high")},
    "freq_error": "freq_error",
}


def run_training(config: TrainConfig, *, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Train, and write the checkpoint of lowest validation RMSE; returns what was written.

    Validation is always on the real validation split. A run that was stopped goes on; a second one
    into the same folder waits for the first.
    """
    devices.choose(config.device)  # one that is not there is refused before the long work
    with sole_run(config.folder / SUMMARY):
        row, work = config.resolved(), config.folder / "run"
        train, validation = _training_windows(config)
        prepare(train, config.workers, devices.choose(config.device))
        if not ranks.agreed(work.exists()):
            # simulated windows without masks, which would hide damaged channels
            read_through([validation, _training_windows(config, mask_prob=0.0)[0]], reporter)
        operator = start_operator(config, validation, reporter).operator
        check_operator(operator, validation)
        reporter.say(f"Computing on {devices.describe(operator.history_shift.device)}.")
        result = train_operator(
            operator,
            train,
            validation,
            changed(row.train_settings(), workers=config.workers),
            folder=work,
            measured_only=config.measured_only,
            validation_batch=row.eval_batch_size,
            precision=config.precision,
            title=f"{config.paradigm}: {config.backbone} on {config.system}",
            reporter=reporter,
        )
        summary = {
            "config": config.model_dump(mode="json"),
            "preset": row.model_dump(),
            "best_update": result.best_update,
            "best_validation_rmse": result.best_score,
            "data": {"train": train.fingerprint, "val": validation.fingerprint},
            "files": _write_checkpoints(config, operator, result),
            **computed_on(operator.history_shift.device),
        }
        storage.write_json(config.folder / SUMMARY, summary)
        return {**summary, "folder": config.folder, "checkpoint": config.folder / CHECKPOINT}


def _training_windows(config: TrainConfig, **changes: Any) -> tuple[RealPDEBench, RealPDEBench]:
    row, kind = config.resolved(), "numerical" if config.paradigm == "numerical" else "real"
    draws = {"mask_prob": row.mask_prob, "noise_scale": row.noise_scale, "seed": row.seed}
    train = open_windows(config, config.system, kind, "train", **draws | changes)
    return train, open_windows(config, config.system, "real", "val")


@ranks.by_main
def _write_checkpoints(
    config: TrainConfig, operator: PhysicalOperator, result: TrainResult
) -> dict[str, str]:
    """Write r2no's file and, on request, the benchmark's; returns their hashes."""
    names = [CHECKPOINT] + [f"{config.paradigm}.pth"] * config.benchmark_file
    for name in names:
        save_operator(
            operator,
            config.folder / name,
            backbone=config.backbone,
            history=_benchmark_history(result),
            system=config.system,
            paradigm=config.paradigm,
        )
    return {name: storage.file_sha256(config.folder / name) for name in names}


def _benchmark_history(result: TrainResult) -> dict[str, Any]:
    """What the benchmark stores beside the weights, up to the update they are from."""
    rows = [row for row in result.log if row["update"] <= result.best_update]
    scores: dict[str, list[float | Tensor]] = {
        theirs: [_entry(theirs, float(row[ours])) for row in rows]
        for theirs, ours in _SCORES.items()
    }
    return {
        "train_losses": result.losses[: result.best_update],
        "val_losses": scores,
        "iteration": result.best_update,
        "best_iteration": result.best_update,
        "best_val_loss": torch.tensor(result.best_score),
    }


def _entry(name: str, value: float) -> float | Tensor:
    """Scores are 0-dimensional tensors there, the normalised loss is a number."""
    return value if name == "normalized_mse" else torch.tensor(value)


def run_adaptation(config: AdaptConfig, *, reporter: Reporter = SILENT, command: str = "") -> Path:
    """Fit repair modules on the real training split and the ensemble on the validation split.

    Returns the folder of the artifact, which brings its source; beside it are ``run.json`` with the
    scores on the test split and ``report.html``, which names ``command`` as its origin. A run that
    was stopped goes on; a second one into the same folder waits for the first.
    """
    devices.choose(config.device)
    system = source_system(config, config.source)
    folder = config.out or Path("runs") / f"{system}-adapt-{config.source.stem}"
    with sole_run(folder / SUMMARY):
        train, fit, test = (open_windows(config, system, "real", split) for split in SPLITS)
        if not ranks.agreed((folder / "work").exists()):
            read_through([train, fit, test], reporter)
        source = open_source(config, config.source, cache=folder / "cache", reporter=reporter)
        check_operator(source.operator, fit)
        model = adapt(
            source.operator,
            train,
            fit,
            settings=config.settings(),
            normalisers=source.normalisers,
            folder=folder / "work",
            reporter=reporter,
        )
        model = with_names(model, source)
        splits = {"train": train, "fit": fit, "test": test}
        found = finish(model, splits, folder / ARTIFACT, command=command, reporter=reporter)
        summarise(config.model_dump(mode="json"), model, found)
        return found.artifact


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
        source.normalisers,
        probes=config.probes,
    )
    device = source.operator.history_shift.device
    reporter.say(f"Computing on {devices.describe(device)}.")
    scores = score_operators(operators, windows, protocol, device=device, reporter=reporter)
    circumstances = _circumstances(source, windows, protocol)
    result: dict[str, Any] = storage.strict_json({**scores, **circumstances})
    if config.output is not None:
        storage.write_json(config.output, result)
    return result


def _operators(config: EvaluateConfig, reporter: Reporter) -> tuple[dict[str, Operator], Source]:
    if is_artifact(config.model):
        model, source = open_artifact(config, reporter=reporter)
        model = replace(model, source=Remembered(source.operator))  # scored beside it, asked once
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
        **computed_on(source.operator.history_shift.device),
    }
