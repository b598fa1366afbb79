"""Figures of the studies, from a run's results."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from r2no.data.realpdebench.systems import choice
from r2no.errors import ConfigError
from r2no.experiments.bench.details import FIELD_NAMES, load_fields
from r2no.experiments.bench.passes import stored_errors
from r2no.experiments.bench.results import Results, study_values
from r2no.experiments.bench.studies import BACKBONES, METRIC_NAMES, SYSTEM_NAMES, study
from r2no.report import Curve, Labels, plot_curves, plot_depth_bands, plot_frames


def draw(name: str, results: Results, run: Path, out: Path) -> list[Path]:
    """Draw the figures of a study below ``out`` and return their paths.

    Raises:
        ConfigError: if the study has none, or the run has nothing to draw.
    """
    wanted = choice("study with figures", study(name).name, tuple(_DRAWERS))
    paths = _DRAWERS[wanted](results, run, out)
    if not paths:
        raise ConfigError(f"`{run}` has no finetuned pair to draw `{wanted}` for.")
    return paths


def _finetuned(results: Results) -> list[dict[str, Any]]:
    return [content for (_, _, source), content in results.items() if source == "finetune"]


def _title(content: dict[str, Any]) -> str:
    return f"{BACKBONES[content['backbone']]} on {SYSTEM_NAMES[content['system']]}"


def _file(out: Path, name: str, content: dict[str, Any]) -> Path:
    return out / f"{name}-{content['system']}-{content['backbone']}.png"


def _diagnostic(results: Results, run: Path, out: Path) -> list[Path]:
    return [
        plot_depth_bands(
            stored_errors(content["diagnostic"]),
            _file(out, "diagnostic", content),
            title=f"{_title(content)}, test split",
        )
        for content in _finetuned(results)
    ]


def _qualitative(results: Results, run: Path, out: Path) -> list[Path]:
    paths = []
    for content in _finetuned(results):
        fields, notes = load_fields(content, run)
        shown = {FIELD_NAMES[name]: values[..., 0] for name, values in fields.items()}
        path = _file(out, "qualitative", content)
        label = f"{_title(content)}: {notes['channels'][0]}"
        paths.append(plot_frames(shown, path, frames=notes["frames"], label=label))
    return paths


def _columns(results: Results, run: Path, out: Path) -> list[Path]:
    wanted = study("columns")
    values = study_values(wanted, results)
    rows, curves = values.rows(), []
    for metric in wanted.metrics:
        pairs = [p for p in values.pairs(rows, metric) if p[0] in wanted.backbones]
        pairs = pairs or values.pairs(rows, metric)
        totals = [values.total(row, metric, pairs) for row in rows]
        if pairs:
            relative = [total / totals[-1] for total in totals]
            counts = [float(row.split("_")[1]) for row in rows]
            curves.append(Curve(METRIC_NAMES[metric], counts, relative))
    path = out / "columns.png"
    if not curves:
        return []
    labels = Labels("columns", "error relative to all columns", wanted.title)
    return [plot_curves(curves, path, labels)]


def _ridge(results: Results, run: Path, out: Path) -> list[Path]:
    wanted = study("ridge")
    values = study_values(wanted, results)
    rows = [row for row in values.rows() if row != "finetuned"]
    curves = []
    for backbone in values.backbones():
        pairs = [p for p in values.pairs(("finetuned", *rows), "rmse") if p[0] == backbone]
        if not pairs:
            continue
        mean = [values.total(row, "rmse", pairs) / len(pairs) for row in rows]
        level = values.total("finetuned", "rmse", pairs) / len(pairs)
        ridges = [float(row.split("_", 1)[1]) for row in rows]
        chosen = Counter(row for b, _, row in values.starred if b == backbone)
        stars = [
            (ridges[place], mean[place], str(chosen[row]))
            for place, row in enumerate(rows)
            if row in chosen
        ]
        curves.append(Curve(BACKBONES[backbone], ridges, mean, level=level, stars=stars))
    if not curves:
        return []
    labels = Labels("ridge parameter", "RMSE, mean over systems", wanted.title)
    return [plot_curves(curves, out / "ridge.png", labels, log_x=True)]


def _theory(results: Results, run: Path, out: Path) -> list[Path]:
    paths = []
    for content in _finetuned(results):
        found = content["theory"]["contraction"]
        if not found["errors"]:
            continue
        depths = [float(depth) for depth in range(len(found["errors"]))]
        curves = [Curve("error of the iterate", depths, found["errors"])]
        if found["bound"]:
            bound = Curve("bound with the estimated q and d", depths, found["bound"], dashed=True)
            curves.append(bound)
        path = _file(out, "theory", content)
        labels = Labels("depth of the repair loop", "distance to the target", _title(content))
        paths.append(plot_curves(curves, path, labels))
    return paths


_DRAWERS: dict[str, Callable[[Results, Path, Path], list[Path]]] = {
    "diagnostic": _diagnostic,
    "columns": _columns,
    "ridge": _ridge,
    "qualitative": _qualitative,
    "theory": _theory,
}
FIGURES = tuple(_DRAWERS)
