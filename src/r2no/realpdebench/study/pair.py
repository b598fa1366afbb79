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
from r2no.data.window import Windows
from r2no.locks import sole_run
from r2no.progress import Reporter
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.evaluation import Protocol
from r2no.realpdebench.protocol.inputs import Source, check_operator, with_names
from r2no.realpdebench.study.config import BEYOND_FORMAT, FORMAT, Pair, beyond_file
from r2no.realpdebench.study.readouts import (
    StudyReadouts,
    TestPass,
    diagnostic,
    run_pass,
    shown_frames,
    study_readouts,
)
from r2no.realpdebench.study.theory import errors_by_trajectory, selection_summary
from r2no.runs.finish import ARTIFACT, computed_on
from r2no.scoring import Metrics
from r2no.training import Persistence


def run_pair(place: Pair, checkpoint: Path, reporter: Reporter) -> bool:
    """Do what is missing of a pair; returns whether anything was.

    A second process waits for the first, and then finds nothing missing.
    """
    windows = place.config.windows(place.system)
    key = place.key(checkpoint, windows)
    with sole_run(place.result), sole_run(place.folder(key) / ARTIFACT):
        if ranks.agreed(place.is_done(key)):
            return False
        source = place.open(checkpoint, reporter)
        check_operator(source.operator, windows["test"])
        protocol = Protocol(place.config.batch_size, place.config.compat, source.normalisers)
        if not place.is_scored(key):
            model = _adapted(place, source, windows, key, reporter)
            score_pair(place, key, model, windows, protocol=protocol, reporter=reporter)
        if place.config.beyond:
            run_beyond(place, key, source, windows, protocol, reporter)
    return True


def score_pair(
    place: Pair,
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
    storage.save_tensors(place.fields, found.fields, {"frames": frames, "channels": measured})
    price = selection_summary(
        errors_by_trajectory(model, windows["val"], reporter), checkpoints=_checkpoints(model)
    )
    result = _result(place, model, chosen, found, windows)
    result["theory"] = {"contraction": found.contraction.summary(), "selection": price}
    storage.write_json(place.result, {"format": FORMAT, "key": key, **result})


def _adapted(
    place: Pair, source: Source, windows: dict[str, RealPDEBench], key: str, reporter: Reporter
) -> AdaptedModel:
    """The adapted model, made with one pass over the fit split unless it is there.

    Always read back from its file, so that a resumed run sees the same bits as an unbroken one.
    """
    path = place.folder(key) / ARTIFACT
    if ranks.agreed(is_artifact(path)):
        return load(path, source.operator, device=place.config.device)
    model = _fitted(place, source, windows, key, place.config.adapt(), reporter)
    with_names(model, source).save(path)
    return load(path, source.operator, device=place.config.device)


def _fitted(
    place: Pair,
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
        folder=place.folder(key) / "work",
        reporter=reporter,
    )


def _result(
    place: Pair,
    model: AdaptedModel,
    chosen: StudyReadouts,
    found: TestPass,
    windows: Mapping[str, Windows],
) -> dict[str, Any]:
    """What a pair's file holds: scores, choices, cost and where they come from."""
    config, loops = place.config, model.loops
    return {
        "system": place.system,
        "backbone": place.backbone,
        "source": place.source,
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
    place: Pair,
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
    model = _fitted(place, source, windows, key, place.config.beyond_adapt(), reporter)
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
    storage.write_json(beyond_file(place.result), {"format": BEYOND_FORMAT, "key": key, **content})
