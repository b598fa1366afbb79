"""Figures of the studies, from a run's results."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from r2no.checks import choice
from r2no.errors import ConfigError
from r2no.realpdebench.study.details import FIELD_NAMES, has_theory, load_fields
from r2no.realpdebench.study.readouts import stored_errors
from r2no.realpdebench.study.studies import BACKBONES, METRIC_NAMES, SYSTEM_NAMES, study
from r2no.realpdebench.study.values import Results, study_values
from r2no.report import (
    Curve,
    Labels,
    plot_channels,
    plot_curves,
    plot_depth_bands,
    plot_frames,
    plot_regions,
)


def draw(name: str, results: Results, run: Path, out: Path) -> list[Path]:
    """Draw a figure of each pair, or of the whole run, below ``out`` and return the paths.

    Raises:
        ConfigError: for an unknown figure, or if the run has nothing to draw.
    """
    wanted = choice("figure", name.replace("_", "-"), FIGURES)
    paths = _DRAWERS[wanted](results, run, out)
    if not paths:
        raise ConfigError(f"`{run}` has no finetuned pair to draw `{wanted}` for.")
    return paths


def _finetuned(results: Results) -> list[dict[str, Any]]:
    return [content for (_, _, source), content in results.items() if source == "finetune"]


def _title(content: dict[str, Any]) -> str:
    return f"{BACKBONES[content['backbone']]} on {SYSTEM_NAMES[content['system']]}"


def _file(out: Path, name: str, content: dict[str, Any], channel: str = "") -> Path:
    parts = name, content["system"], content["backbone"], re.sub(r"\W+", "-", channel)
    return out / f"{'-'.join(filter(None, parts))}.png"


def _systems(results: Results) -> list[dict[str, Any]]:
    """The first pair of each system: its measurements and its grid are those of all."""
    first: dict[str, dict[str, Any]] = {}
    for content in _finetuned(results):
        first.setdefault(content["system"], content)
    return list(first.values())


def _observation(results: Results, run: Path, out: Path) -> list[Path]:
    """Figure 1 (a): the first shown frame of the target."""
    paths = []
    for content in _systems(results):
        fields, notes = load_fields(content, run)
        path = out / f"observation-{content['system']}.png"
        shown = dict(zip(notes["channels"], fields["target"][0].unbind(-1), strict=True))
        paths.append(plot_channels(shown, path, title=SYSTEM_NAMES[content["system"]]))
    return paths


def _regions(results: Results, run: Path, out: Path) -> list[Path]:
    """Figure 1 (b): the bands of figure 1 (c) on the Fourier plane."""
    return [
        plot_regions(
            stored_errors(content["diagnostic"]).cells,
            out / f"regions-{content['system']}.png",
            title=SYSTEM_NAMES[content["system"]],
        )
        for content in _systems(results)
    ]


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
        for number, channel in enumerate(notes["channels"]):
            shown = {FIELD_NAMES[name]: values[..., number] for name, values in fields.items()}
            path = _file(out, "qualitative", content, channel)
            label = f"{_title(content)}: {channel}"
            paths.append(plot_frames(shown, path, frames=notes["frames"], label=label))
    return paths


def _columns(results: Results, run: Path, out: Path) -> list[Path]:
    """Error against the number of columns, relative to all of them."""
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
    """Error against the penalty by backbone, with the chosen values starred."""
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
    """Errors along the loop beside the bound, a figure per pair."""
    paths = []
    for content in _finetuned(results):
        found = content["theory"]["contraction"]
        if not (has_theory(content) and found["errors"]):
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
    "observation": _observation,
    "regions": _regions,
    "diagnostic": _diagnostic,
    "columns": _columns,
    "ridge": _ridge,
    "qualitative": _qualitative,
    "theory": _theory,
}
FIGURES = tuple(_DRAWERS)
