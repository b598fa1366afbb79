"""The report as one HTML file that needs nothing else: collect(), render(), write_report().

What it shows comes from a model, or from an artifact's files alone.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from r2no import storage
from r2no._types import Operator, PathLike
from r2no.adaptation import AdaptedModel, StoredModel, read_stored
from r2no.adaptation.model import versions
from r2no.data.window import Windows
from r2no.ensemble import FittedEnsemble, contributions, cost_curve, learning_curve
from r2no.errors import ConfigError
from r2no.progress import SILENT, Reporter
from r2no.report import figures, sureness
from r2no.report.cells import cells_json
from r2no.report.data import Evaluation, ReportData, clean, minus, rounded, stored_evaluation
from r2no.report.watch import evaluate
from r2no.report.wording import (
    METRICS,
    ROLES,
    contribution_rows,
    headline,
    in_order,
    metrics_of,
    mixed_units,
    named,
    readout_name,
)

_SCRIPTS = ("common.js", "map.js", "fields.js", "report.js")
#: Draws of blocks for each point of the learning curve, and points.
_REPEATS, _POINTS = 2, 6
#: Cells that are named, those with the largest share of the error.
_LARGEST = 8


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


def render(data: ReportData) -> str:
    """The page; the same data give the same text."""
    style, script = _asset("report.css"), "".join(_asset(name) for name in _SCRIPTS)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template("report.html")
    return page.render(
        data=data,
        headline=headline(data),
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        payload=_payload(data),
        roles={} if data.evaluation is None else {r: ROLES[r] for r in data.evaluation.roles},
        ramps={name: figures.ramp(name) for name in figures.TABLES},
        retention_pictures=figures.retention_pictures(data),
        groups=figures.group_legend(data),
        named=named,
        helped=contribution_rows(data.contributions),
        gain_reach=figures.gain_reach(data.retention),
        largest=_largest_cells(data.retention),
        charts=figures.charts(data),
        sure=sureness.charts({} if data.evaluation is None else data.evaluation.bands),
        scores=_score_rows(data.evaluation, data.fields),
        mixed=mixed_units(data.fields),
        metrics=metrics_of(data.fields),
        example=_example(data.evaluation),
        settings=json.dumps(clean(data.provenance["settings"]), indent=2),
    )


def write_report(
    model: AdaptedModel | StoredModel | PathLike,
    out: PathLike = "report.html",
    windows: Windows | None = None,
    evaluation: Evaluation | None = None,
    *,
    operators: dict[str, Operator] | None = None,
    title: str = "",
    command: str = "",
    reporter: Reporter = SILENT,
) -> Path:
    """Write the report of a model or an artifact as one HTML file; arguments as in collect().

    Example:
        ``write_report("wake.r2no", "report.html")``, or with data to score on
        ``write_report(model, "report.html", windows)``.
    """
    data = collect(
        model,
        windows,
        evaluation,
        operators=operators,
        title=title,
        command=command,
        reporter=reporter,
    )
    storage.write_text(out, render(data))
    return Path(out)


def _planning(ensemble: FittedEnsemble, reporter: Reporter) -> dict[str, list[dict[str, Any]]]:
    """What helped, budget and learning curve, where blocks were held out and sums are kept."""
    if ensemble.sums is None or not ensemble.folds:
        return {"contributions": [], "budget": [], "learning": []}
    with reporter.step("what helped, budget and learning curves", 3) as step:
        helped = contributions(ensemble)
        step.advance()
        points = cost_curve(ensemble)
        step.advance()
        learnt = learning_curve(ensemble, repeats=_REPEATS, points=_POINTS)
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


@cache
def _environment() -> Environment:
    """The templates, escaped and strict about names."""
    environment = Environment(
        loader=PackageLoader("r2no.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=_number, short=_short, percent=_percent, change=_change)
    return environment


def _asset(name: str) -> str:
    return (files("r2no.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The page's policy allows this very text and nothing that might be injected."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _number(value: float | int | None, digits: int = 4) -> str:
    """So many significant digits, trailing zeros kept, for tables."""
    return "n/a" if value is None else minus(f"{value:#.{digits}g}".rstrip("."))


def _short(value: float | int | None, digits: int = 4) -> str:
    return "n/a" if value is None else minus(f"{value:.{digits}g}")


def _percent(value: float | None, digits: int = 1) -> str:
    return "n/a" if value is None else minus(f"{100 * value:.{digits}f}\u00a0%")


def _change(value: float | None) -> str:
    if value is None:
        return "n/a"
    return minus(f"{100 * value:+.1f}\u00a0%") if abs(value) >= 5e-4 else "0.0\u00a0%"


def _payload(data: ReportData) -> Markup:
    """What the script reads, as JSON that cannot close its own element."""
    evaluation = data.evaluation
    content: dict[str, Any] = {
        "retention": {
            **data.retention,
            "reach": figures.gain_reach(data.retention),
            "colours": [group["colour"] for group in figures.group_legend(data)],
        },
        "example": None if evaluation is None else evaluation.example,
        "scales": None if evaluation is None else figures.example_pictures(evaluation)[1],
        "tables": {name: figures.table_text(name) for name in figures.TABLES},
    }
    text = json.dumps(clean(content), separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _score_rows(evaluation: Evaluation | None, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per readout: words, values, change against the source, and whether it is the best."""
    if evaluation is None:
        return []
    source = evaluation.scores[evaluation.roles["source"]]["rmse"]
    known = [row["rmse"] for row in evaluation.scores.values() if row["rmse"] is not None]
    unknown = {"ke_error"} if len(fields["measured"]) < 2 else set()  # one channel is no velocity
    rows = []
    for name in in_order(evaluation.scores):
        values = evaluation.scores[name]
        rmse = values["rmse"]
        title, note = readout_name(name)
        rows.append(
            {
                "name": name,
                "title": title,
                "note": note,
                "role": next((r for r, n in evaluation.roles.items() if n == name), ""),
                "values": [None if key in unknown else values.get(key) for key, _, _ in METRICS],
                "change": rmse / source - 1 if source and rmse is not None else None,
                "best": rmse is not None and rmse == min(known),
            }
        )
    return rows


def _example(evaluation: Evaluation | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    pictures, scales = figures.example_pictures(evaluation)
    frames, height, width = evaluation.example["channels"][0]["fields"]["target"]["shape"]
    return {"pictures": pictures, "scale": scales[0], "frames": frames, "grid": (height, width)}


def _largest_cells(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Cells with the largest share of the source's error, over all channels."""
    rows = [
        {"channel": channel, **found["cells"][cell], "share": share, "gain": gains[cell]}
        for channel, shares, gains in zip(
            found["channels"], found["share"][0], found["gain"][0], strict=True
        )
        for cell, share in enumerate(shares)
        if share is not None
    ]
    return sorted(rows, key=lambda row: -row["share"])[:_LARGEST]
