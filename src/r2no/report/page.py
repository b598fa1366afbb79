"""render(): the report as one HTML file that needs nothing else; write_report() to a file."""

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from r2no import storage
from r2no._types import Operator, PathLike
from r2no.adaptation import AdaptedModel, StoredModel
from r2no.data.window import Windows
from r2no.progress import SILENT, Reporter
from r2no.report import figures, sureness
from r2no.report.content import collect
from r2no.report.data import Evaluation, ReportData
from r2no.report.packing import clean, minus
from r2no.report.wording import (
    METRICS,
    ROLES,
    common_unit,
    contribution_rows,
    headline,
    in_order,
    metrics_of,
    named,
    readout_name,
)

_SCRIPTS = ("common.js", "map.js", "fields.js", "report.js")


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
        charts=_charts(data),
        sure=sureness.charts({} if data.evaluation is None else data.evaluation.bands),
        scores=_score_rows(data.evaluation),
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
    storage.write_bytes(out, render(data).encode())
    return Path(out)


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
    environment.filters["number"] = _number
    environment.filters["short"] = _short
    environment.filters["percent"] = _percent
    environment.filters["change"] = _change
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


def _charts(data: ReportData) -> dict[str, Markup]:
    """Every chart by its name; empty where there is no evaluation."""
    evaluation = data.evaluation
    found = {
        "interval": figures.interval(data.verdict),
        "depth": figures.depth_bands(
            data.depth_change if evaluation is None else evaluation.depth_change
        ),
        "helped": figures.contributions(data.contributions),
        "budget": figures.budget(data.budget),
        "learning": figures.learning(data.learning),
        "spectra": Markup(),
        "relative": Markup(),
        "lead": Markup(),
    }
    if evaluation is not None:
        found["spectra"] = figures.spectra(evaluation)
        found["relative"] = figures.relative_spectra(evaluation)
        found["lead"] = figures.lead_time(
            evaluation,
            data.fields["time_step"],
            data.fields.get("time_units", ""),
            common_unit(data.fields),
        )
    return found


def _score_rows(evaluation: Evaluation | None) -> list[dict[str, Any]]:
    """A row per readout: words, values, change against the source, and whether it is the best."""
    if evaluation is None:
        return []
    source = evaluation.scores[evaluation.roles["source"]]["rmse"]
    known = [row["rmse"] for row in evaluation.scores.values() if row["rmse"] is not None]
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
                "values": [values.get(key) for key, _, _ in METRICS],
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


def _largest_cells(found: dict[str, Any], most: int = 8) -> list[dict[str, Any]]:
    """Cells with the largest share of the source's error, over all channels."""
    rows = [
        {"channel": channel, **found["cells"][cell], **{"share": share, "gain": gains[cell]}}
        for channel, shares, gains in zip(
            found["channels"], found["share"][0], found["gain"][0], strict=True
        )
        for cell, share in enumerate(shares)
        if share is not None
    ]
    return sorted(rows, key=lambda row: -row["share"])[:most]
