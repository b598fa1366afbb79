"""One pair: checkpoint, repair modules, sums, all readouts; every step kept by content."""

import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from r2no import ranks, storage
from r2no.adaptation import AdaptedModel, AdaptSettings, adapt, load, readouts
from r2no.adaptation.named_readouts import further_forecasts, observe
from r2no.adaptation.stored import is_artifact
from r2no.backbones.formats import read_checkpoint
from r2no.data.window import Windows
from r2no.errors import ConfigError
from r2no.locks import sole_run
from r2no.progress import Reporter
from r2no.realpdebench.protocol.config import TrainConfig
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.evaluation import Protocol
from r2no.realpdebench.protocol.inputs import Source, check_operator, open_windows, with_names
from r2no.realpdebench.protocol.run import CHECKPOINT, run_training
from r2no.realpdebench.study.config import BEYOND_FORMAT, FORMAT, BenchConfig, Pair, beyond_file
from r2no.realpdebench.study.readouts import (
    StudyReadouts,
    TestPass,
    diagnostic,
    run_pass,
    shown_frames,
    study_readouts,
)
from r2no.realpdebench.study.studies import BACKBONES, SourceName
from r2no.realpdebench.study.theory import errors_by_trajectory, selection_summary
from r2no.realpdebench.study.values import published
from r2no.realpdebench.systems import spellings
from r2no.runs.finish import ARTIFACT, SUMMARY, computed_on
from r2no.scoring import Metrics
from r2no.training import Persistence

PARADIGM: dict[SourceName, str] = {"pretrained": "numerical", "finetune": "finetune"}
#: Released files that do not work, by the paper.
_BROKEN: tuple[tuple[str, SourceName], ...] = (("cno", "finetune"),)


def released(pair: Pair) -> Path | None:
    """The released checkpoint of a pair, if it was given.

    Raises:
        ConfigError: for a file that the paper says does not work, unless it is accepted.
    """
    folder = pair.config.checkpoints
    if folder is None:
        return None
    for name in spellings(pair.backbone):
        for ending in ("safetensors", "pth"):
            path = folder / pair.system / name / f"{PARADIGM[pair.source]}.{ending}"
            if path.is_file():
                broken = (pair.backbone, pair.source) in _BROKEN
                if broken and not (pair.config.accept or _own(path)):
                    raise _refusal(path, pair)
                return path
    return None


def _own(path: Path) -> bool:
    """Whether r2no wrote this checkpoint."""
    return path.suffix == ".safetensors" and bool(read_checkpoint(path).context)


def _refusal(path: Path, pair: Pair) -> ConfigError:
    printed = published("main").get((pair.backbone, pair.system), "finetuned", "rmse")
    return ConfigError(
        f"`{path}` is a released file of which the paper says that it does not work: its authors "
        f"finetuned {BACKBONES[pair.backbone]} themselves (RMSE {printed:.5f} on {pair.system}). "
        "Remove it to have the network finetuned here, put a checkpoint of `r2no bench train` in "
        "its place, or use it all the same with `--accept`; `r2no bench compare` then sets its "
        "RMSE beside the printed one."
    )


def check_sources(config: BenchConfig) -> None:
    """Refuse unusable checkpoints before any work is done."""
    for pair in config.pairs():
        released(pair)


def source_config(pair: Pair, start: Path | None) -> TrainConfig:
    """The training that makes a checkpoint; its folder's name is a hash of all it depends on."""
    system, paradigm = pair.system, PARADIGM[pair.source]
    train = pair.config.train(system, pair.backbone, paradigm=paradigm, source=start)
    kind = "numerical" if pair.source == "pretrained" else "real"
    key = storage.fingerprint(
        train.model_dump(mode="json", exclude={"data", "out", "source", "cache"}),
        None if start is None else storage.file_sha256(start),
        open_windows(train, system, kind, "train").fingerprint,
        open_windows(train, system, "real", "val").fingerprint,
    )
    folder = f"{system}-{pair.backbone}-{paradigm}-{key[:12]}"
    return train.model_copy(update={"out": pair.config.out / "sources" / folder})


def finished(train: TrainConfig) -> bool:
    """Whether the checkpoint of a training is there, as it was written."""
    summary, checkpoint = train.folder / SUMMARY, train.folder / CHECKPOINT
    if not (summary.is_file() and checkpoint.is_file()):
        return False
    expected = storage.read_json(summary)["files"][CHECKPOINT]
    return bool(storage.file_sha256(checkpoint) == expected)


def obtain_source(pair: Pair, reporter: Reporter) -> Path:
    """The checkpoint a pair starts from; trains what is missing, and goes on where it stopped."""
    path = released(pair)
    if path is not None:
        return path
    start = None
    if pair.source == "finetune":
        start = obtain_source(pair.starting_from("pretrained"), reporter)
    train = source_config(pair, start)
    with sole_run(train.folder / SUMMARY):
        if not ranks.agreed(finished(train)):
            train.check()
            run_training(train, reporter=reporter)
    return train.folder / CHECKPOINT


def run_pair(pair: Pair, checkpoint: Path, reporter: Reporter) -> bool:
    """Do what is missing of a pair; returns whether anything was.

    A second process waits for the first, and then finds nothing missing.
    """
    windows = pair.config.windows(pair.system)
    key = pair.key(checkpoint, windows)
    with sole_run(pair.result), sole_run(pair.folder(key) / ARTIFACT):
        if ranks.agreed(pair.is_done(key)):
            return False
        source = pair.open(checkpoint, reporter)
        check_operator(source.operator, windows["test"])
        protocol = Protocol(pair.config.batch_size, pair.config.compat, source.normalisers)
        if not pair.is_scored(key):
            model = _adapted(pair, source, windows, key, reporter)
            score_pair(pair, key, model, windows, protocol=protocol, reporter=reporter)
        if pair.config.beyond:
            run_beyond(pair, key, source, windows, protocol, reporter)
    return True


def score_pair(
    pair: Pair,
    key: str,
    model: AdaptedModel,
    windows: Mapping[str, Windows],
    *,
    protocol: Protocol,
    reporter: Reporter,
) -> None:
    """Score every readout in one pass over ``windows["test"]`` and write the pair's result."""
    chosen = study_readouts(model)
    found = run_pass(model, chosen, windows["test"], protocol, reporter=reporter)
    frames = shown_frames(model.fields.horizon_frames)
    measured = [model.fields.channels[channel] for channel in model.fields.measured]
    storage.save_tensors(pair.fields, found.fields, {"frames": frames, "channels": measured})
    price = selection_summary(
        errors_by_trajectory(model, windows["val"], reporter), checkpoints=_checkpoints(model)
    )
    result = _result(pair, model, chosen, found, windows)
    result["theory"] = {"contraction": found.contraction.summary(), "selection": price}
    storage.write_json(pair.result, {"format": FORMAT, "key": key, **result})


def _adapted(
    pair: Pair, source: Source, windows: dict[str, RealPDEBench], key: str, reporter: Reporter
) -> AdaptedModel:
    """The adapted model, made with one pass over the fit split unless it is there.

    Always read back from its file, so that a resumed run sees the same bits as an unbroken one.
    """
    path = pair.folder(key) / ARTIFACT
    if ranks.agreed(is_artifact(path)):
        return load(path, source.operator, device=pair.config.device)
    model = _fitted(pair, source, windows, key, pair.config.adapt(), reporter)
    with_names(model, source).save(path)
    return load(path, source.operator, device=pair.config.device)


def _fitted(
    pair: Pair,
    source: Source,
    windows: Mapping[str, Windows],
    key: str,
    settings: AdaptSettings,
    reporter: Reporter,
) -> AdaptedModel:
    """The pair adapted with some settings; modules are kept in its work folder."""
    return adapt(
        source.operator,
        windows["train"],
        windows["val"],
        settings=settings,
        normalisers=source.normalisers,
        folder=pair.folder(key) / "work",
        reporter=reporter,
    )


def _result(
    pair: Pair,
    model: AdaptedModel,
    chosen: StudyReadouts,
    found: TestPass,
    windows: Mapping[str, Windows],
) -> dict[str, Any]:
    """What a pair's file holds: scores, choices, cost and where they come from."""
    config, loops = pair.config, model.loops
    return {
        "system": pair.system,
        "backbone": pair.backbone,
        "source": pair.source,
        "preset": config.preset,
        "settings_key": config.settings_key(),
        "settings": model.settings.model_dump(mode="json"),
        "compat": config.compat,
        "members": len(loops.modules),
        "steps": loops.steps,
        "windows": {split: len(one) for split, one in windows.items()},
        "readouts": found.scores,
        "ridges": {name: one.ridge for name, one in chosen.ensembles.items()},
        "diagnostic": diagnostic(found.errors, model.fit_errors),
        "cost": _cost(model, found, len(windows["test"])),
        "data": {split: one.fingerprint for split, one in windows.items()},
        **computed_on(model.device),
    }


def _checkpoints(model: AdaptedModel) -> int:
    """N_ckpt, how many states of a module the fit split chose among."""
    train = model.settings.repair.train
    return train.validations or train.epochs or 1


def _cost(model: AdaptedModel, found: TestPass, windows: int) -> dict[str, Any]:
    """Parameters, cells, seconds and memory, as the table of costs needs them."""
    loops, seconds = model.loops, found.seconds
    members, steps = len(loops.modules), loops.steps
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "evaluations": members * steps,
        "seconds": seconds,
        "seconds_per_window": {name: value / windows for name, value in seconds.items()},
        "readouts_over_rollout": seconds["readouts"] / max(seconds["rollout"], 1e-12),
        "source_parameters": _parameters(model.source),
        "module_parameters": _parameters(loops.modules[0]),
        "ensemble_weights": model.ensemble.weights.numel(),
        "occupied_cells": int(model.ensemble.cells.occupied.sum()),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }


def _parameters(module: object) -> int:
    found = module.parameters() if isinstance(module, nn.Module) else ()
    return sum(parameter.numel() for parameter in found)


def run_beyond(
    pair: Pair,
    key: str,
    source: Source,
    windows: Mapping[str, Windows],
    protocol: Protocol,
    reporter: Reporter,
) -> None:
    """Beyond the paper: fit and score r2no's default on a pair, and write the rows.

    The modules are those of the paper's pass, found in its work folder; one pass over the fit split
    and one over the test split come on top. Nothing of the paper's result changes.
    """
    model = _fitted(pair, source, windows, key, pair.config.beyond_adapt(), reporter)
    fields, members = model.fields, len(model.loops.modules)
    names = {"beyond": f"r2no_m{members}", "beyond_m1": "r2no_m1", "beyond_m0": "r2no_m0"}
    found = readouts(model)
    chosen = {new: found[old] for new, old in names.items() if old in found}
    others = {"persistence": Persistence.of(fields)}
    metrics = Metrics(fields.measured, scored=protocol.scored)
    observe(
        model,
        windows["test"],
        {**chosen, **further_forecasts(model)},
        [metrics],
        operators=others,
        title="beyond the paper on test",
        reporter=reporter,
    )
    content: dict[str, Any] = {"verdict": str(model.verdict), "readouts": metrics.compute()}
    storage.write_json(beyond_file(pair.result), {"format": BEYOND_FORMAT, "key": key, **content})
