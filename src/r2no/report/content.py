"""collect(): everything a report shows, from a model or from an artifact's files alone."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from r2no._types import Operator, PathLike
from r2no.adaptation import AdaptedModel, StoredModel, read_stored
from r2no.adaptation.model import versions
from r2no.data.window import Windows
from r2no.ensemble import FittedEnsemble, contributions, cost_curve, learning_curve
from r2no.errors import ConfigError
from r2no.progress import SILENT, Reporter
from r2no.report.cells import cells_json
from r2no.report.data import Evaluation, ReportData, stored_evaluation
from r2no.report.packing import rounded
from r2no.report.watch import evaluate

#: Draws of blocks for each point of the learning curve.
_REPEATS = 2


def collect(
    model: AdaptedModel | StoredModel | PathLike,
    windows: Windows | None = None,
    evaluation: Evaluation | None = None,
    *,
    operators: dict[str, Operator] | None = None,
    title: str = "",
    command: str = "",
    reporter: Reporter = SILENT,
) -> ReportData:
    """Gather what :func:`render` draws.

    Args:
        model: An adapted model; or an artifact (its folder), which needs no source and then uses
            the evaluation stored in it.
        windows: Data to score on now, in one pass; needs a model with its source.
        evaluation: Instead of ``windows``, an evaluation that has been made.
        operators: Baselines to score as well, by name.
        title: Of the page.
        command: The command that made the page.
        reporter: Where progress is shown.
    """
    files: dict[str, str] = {}
    if isinstance(model, (str, Path)):
        title = title or Path(model).name
        evaluation = evaluation or stored_evaluation(model)
        model = read_stored(model)
    if isinstance(model, StoredModel):
        files = model.files
    if windows is not None:
        if isinstance(model, StoredModel):
            raise ConfigError(
                "`windows` can only be scored with the source, but `model` is an artifact read "
                "without it. Load it with `r2no.load(path, source)` and give the model."
            )
        evaluation = evaluate(model, windows, operators=operators, reporter=reporter)
    fields = model.fields
    names = [fields.channels[channel] for channel in fields.measured]
    verdict = model.verdict
    return ReportData(
        title=title or "Adapted model",
        verdict=None if verdict is None else asdict(verdict),
        fit=_fit(model),
        fields=asdict(fields),
        retention=cells_json(model.ensemble, names, frames=fields.horizon_frames),
        depth_change=rounded(model.fit_errors.change()[:1].flatten(0, 1)),
        **_planning(model.ensemble, reporter),
        audit=_audit(model, evaluation),
        provenance=_provenance(model, files, evaluation, command),
        evaluation=evaluation,
    )


def _planning(ensemble: FittedEnsemble, reporter: Reporter) -> dict[str, list[dict[str, Any]]]:
    """What helped, budget and learning curve, where blocks were held out and sums are kept."""
    if ensemble.sums is None or not ensemble.folds:
        return {"contributions": [], "budget": [], "learning": []}
    with reporter.step("what helped, budget and learning curves", 3) as step:
        helped = contributions(ensemble)
        step.advance()
        points = cost_curve(ensemble)
        step.advance()
        learnt = learning_curve(ensemble, repeats=_REPEATS)
        step.advance()
    return {
        "contributions": [{**asdict(part), "worth": part.worth} for part in helped],
        "budget": [asdict(point) for point in points],
        "learning": [asdict(point) for point in learnt],
    }


def _fit(model: AdaptedModel | StoredModel) -> dict[str, Any]:
    """Numbers of the fit: windows, members, depth, cells, what was chosen."""
    ensemble = model.ensemble
    sums, columns, nested = ensemble.sums, ensemble.columns, ensemble.nested
    scored = {group for _, score in ensemble.folds for group in score}
    return {
        "windows": model.fit_errors.windows,
        "held_out_windows": 0 if sums is None else int(sums.windows[sorted(scored)].sum()),
        "columns": columns.number,
        "members": columns.members,
        "steps": columns.depths[-1] if columns.members else 0,
        "best_depth": model.fit_errors.best_depth() if columns.members else 0,
        "step_size": model.settings.repair.step_size,
        "occupied_cells": int(ensemble.cells.occupied.sum()),
        "ridge": ensemble.ridge,
        "rivals": [] if nested is None else _rivals(nested.rivals),
        "chains": [] if nested is None else nested.decisions()["chains"],
    }


def _rivals(names: Iterable[str]) -> list[str]:
    """Forecasts that need no adaptation; of the recalled frames only the last, persistence."""
    return [name for name in names if name == "recall:1" or not name.startswith("recall:")]


def _audit(
    model: AdaptedModel | StoredModel, evaluation: Evaluation | None
) -> list[dict[str, Any]]:
    """The rows made from the data, else what the artifact and the evaluation know."""
    if evaluation is not None and evaluation.audit:
        return evaluation.audit
    unknown = {"trajectories": None, "frames": None, "gaps": None, "shared": None}
    rows: list[dict[str, Any]] = [
        {"split": "train", **unknown, "windows": None},
        {"split": "fit", **unknown, "windows": model.fit_errors.windows},
    ]
    for row in rows:
        row["fingerprint"] = model.provenance.get(row["split"], "")
    if evaluation is not None:
        known = {name: getattr(evaluation, name) for name in ("windows", "trajectories", "gaps")}
        last = {"split": evaluation.split, **unknown, **known}
        rows.append({**last, "fingerprint": evaluation.fingerprint})
    return rows


def _provenance(
    model: AdaptedModel | StoredModel,
    files: dict[str, str],
    evaluation: Evaluation | None,
    command: str,
) -> dict[str, Any]:
    """Where everything came from: hashes, files, seeds, versions, settings."""
    hashes = {name: model.provenance.get(name) for name in ("source", "train", "fit")}
    if evaluation is not None:
        hashes[evaluation.split] = evaluation.fingerprint
    return {
        "hashes": {name: value for name, value in hashes.items() if value},
        "files": files,
        "seeds": model.provenance.get("seeds", []),
        "versions": model.provenance.get("versions", {}),
        "report_versions": versions(),
        "settings": model.settings.model_dump(mode="json"),
        "command": command,
    }
