"""Score tables: best in bold, ties jointly, the paper's units, and the sentences beneath."""

from dataclasses import replace

from r2no.realpdebench.study.claims import claims
from r2no.realpdebench.study.sheets import Cell, Sheet
from r2no.realpdebench.study.studies import (
    BACKBONES,
    METRIC_NAMES,
    SCALES,
    SYSTEM_NAMES,
    Study,
)
from r2no.realpdebench.study.values import Values, printed

_MISSING = "-"


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
    hidden = {wanted.reference.key} if wanted.reference is not None else set()
    return tuple(row for row in values.rows() if row not in hidden)


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
