"""The table of any study: of a run, of the paper, or of both side by side.

Scores have the best in bold, ties jointly, the paper's units, and the sentences beneath.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from r2no.realpdebench.study.claims import claims
from r2no.realpdebench.study.details import detail_sheet
from r2no.realpdebench.study.sheets import Cell, Sheet, cells
from r2no.realpdebench.study.studies import (
    BACKBONES,
    METRIC_NAMES,
    PUBLISHED_MEMBERS,
    SCALES,
    SCORED,
    SYSTEM_NAMES,
    Study,
    study,
)
from r2no.realpdebench.study.values import (
    Results,
    Values,
    load_results,
    printed,
    published,
    spectral_norm,
    study_values,
)

_MISSING = "-"
NORMS = {
    "ortho": "the unitary transform of the paper's equation",
    "forward": "coefficients divided by the number of grid points, as the paper's appendix has it",
}


def study_sheet(
    name: str, run: Path | None = None, *, frmse: str = "frmse", norm: str | None = None
) -> Sheet:
    """The table of a study: of the run in folder ``run``, or of the paper's printed numbers.

    ``norm`` chooses among the results of a run with both norms of the spectral loss.
    """
    wanted = study(name)
    if run is None:
        return score_sheet(wanted, published(name))
    results = load_results(run, norm)
    if wanted.name in SCORED:
        return score_sheet(wanted, study_values(wanted, results), frmse=frmse)
    return detail_sheet(name, results, run)


def score_sheet(wanted: Study, values: Values, *, frmse: str = "frmse") -> Sheet:
    """The table of a study. ``frmse="frmse_full"`` shows the whole spectrum's fRMSE instead."""
    metrics = tuple(frmse if metric == "frmse" else metric for metric in wanted.metrics)
    shown = _shown_rows(wanted, values)
    header = [("", "Backbone"), ("", wanted.heading)]
    header += [("", "Repair budget")] * bool(values.budgets)
    for system in values.systems():
        header += [(SYSTEM_NAMES[system], _heading(metric)) for metric in metrics]
    lines = []
    for backbone in _shown_backbones(wanted, values):
        for row in shown:
            label = values.labels.get(row, row)
            line = [Cell(BACKBONES[backbone]), Cell(label)]
            if values.budgets:
                line.append(Cell(str(values.budgets[row])))
            for system in values.systems():
                pair = (backbone, system)
                line += [_cell(wanted, values, pair, row, shown, metric) for metric in metrics]
            lines.append(tuple(line))
    backbones = _shown_backbones(wanted, values)
    kept = {key: value for key, value in values.numbers.items() if key[0] in backbones}
    notes = claims(wanted, replace(values, numbers=kept), metrics)
    return Sheet(wanted.title, tuple(header), tuple(lines), notes)


def _heading(metric: str) -> str:
    return f"{METRIC_NAMES[metric]} (x{SCALES[metric]:.0e})".replace("e-0", "e-")


def _shown_rows(wanted: Study, values: Values) -> tuple[str, ...]:
    hidden = _hidden(wanted, values)
    return tuple(row for row in values.rows() if row not in hidden)


def _hidden(wanted: Study, values: Values) -> frozenset[str]:
    """Rows that a table leaves out: its reference, and what another row says already."""
    reference = () if wanted.reference is None else (wanted.reference.key,)
    return values.twins().union(reference)


def _shown_backbones(wanted: Study, values: Values) -> tuple[str, ...]:
    """Those of the paper's table; if none of them was run, all that were."""
    found = values.backbones()
    return tuple(name for name in found if name in wanted.backbones) or found


def _cell(
    wanted: Study,
    values: Values,
    pair: tuple[str, str],
    row: str,
    shown: tuple[str, ...],
    metric: str,
) -> Cell:
    """A value with its marks: best of the shown rows, dagger, star."""
    value = values.get(pair, row, metric)
    if value is None:
        return Cell(_MISSING)
    best = row in values.best(pair, shown, metric)
    limit = values.get(pair, wanted.dagger, metric) if wanted.dagger else None
    marked = limit is not None and value < limit and row != wanted.dagger
    star = "★" if (*pair, row) in values.starred else ""
    return Cell(printed(value, metric), best, "†" if marked else star)


def compare_sheet(name: str, results: Results, *others: Results) -> Sheet:
    """A row per pair, method and metric: ours, published, and the difference in percent.

    ``others`` are results of the same study with another norm of the spectral loss, set beside.
    """
    wanted, theirs = study(name), published(name)
    runs = {
        spectral_norm(next(iter(one.values()))): study_values(wanted, one)
        for one in (results, *others)
    }
    ours = next(iter(runs.values()))
    hidden = _hidden(wanted, ours)
    lines: list[tuple[Cell, ...]] = []
    differences: dict[str, list[float]] = {norm: [] for norm in runs}
    for (backbone, system, row, metric), value in theirs.numbers.items():
        found = {norm: one.get((backbone, system), row, metric) for norm, one in runs.items()}
        if row in hidden or all(one is None for one in found.values()):
            continue
        names = BACKBONES[backbone], SYSTEM_NAMES[system], ours.labels[row], METRIC_NAMES[metric]
        scores = [_MISSING if one is None else printed(one, metric) for one in found.values()]
        line = [*names, *scores, printed(value, metric)]
        for norm, one in found.items():
            percent = math.nan if one is None else 100 * (one / value - 1)
            line += [_MISSING] * 2 if one is None else [f"{one - value:+.3g}", f"{percent:+.1f} %"]
            differences[norm] += [] if one is None else [abs(percent)]
        lines.append(cells(*line))
    titles = ["Backbone", "System", "Method", "Metric", *(f"Ours ({norm})" for norm in runs)]
    titles += ["Published"]
    titles += [f"{name} ({norm})" for norm in runs for name in ("Difference", "Percent")]
    title = f"{wanted.title}: ours against published"
    contents = [content for one in (results, *others) for content in one.values()]
    notes = _notes(contents, differences)
    return Sheet(title, tuple(("", name) for name in titles), tuple(lines), notes)


def _notes(contents: list[dict[str, Any]], differences: dict[str, list[float]]) -> tuple[str, ...]:
    """What the differences are of, and how large they are for each norm."""
    notes = ["Ours and Published are in the table's units, Difference in physical ones."]
    notes += [f"Spectral loss of ours: norm={norm}, {NORMS[norm]}." for norm in differences]
    if others := sorted({content["members"] for content in contents} - {PUBLISHED_MEMBERS}):
        notes.append(
            f"This run has {', '.join(f'M={number}' for number in others)}: rows that combine all "
            f"members stand beside the paper's of M={PUBLISHED_MEMBERS}."
        )
    if {content["preset"] for content in contents} != {"paper"}:
        notes.append(
            "This run is of the mini preset, other data and small networks: the differences "
            "show that the comparison works and nothing about the method."
        )
    for norm, values in differences.items():
        if values:
            ordered = sorted(values)
            notes.append(
                f"norm={norm}, {len(ordered)} values: median difference "
                f"{ordered[len(ordered) // 2]:.1f} %, largest {ordered[-1]:.1f} %."
            )
    return tuple(notes)
