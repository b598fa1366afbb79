"""Ours against the published values, pair by pair."""

from r2no.experiments.bench.published import published, published_studies
from r2no.experiments.bench.results import Results, study_values
from r2no.experiments.bench.sheets import Sheet, cells
from r2no.experiments.bench.studies import BACKBONES, METRIC_NAMES, SYSTEM_NAMES, study
from r2no.experiments.bench.values import Values, printed


def compare_sheet(name: str, results: Results) -> Sheet:
    """A row per pair, method and metric: ours, published, and the difference in percent."""
    wanted, theirs = study(name), published(name)
    ours = study_values(wanted, results)
    lines, differences = [], []
    for (backbone, system, row, metric), value in theirs.numbers.items():
        found = ours.get((backbone, system), row, metric)
        if found is None or (wanted.reference and row == wanted.reference.key):
            continue
        difference = 100 * (found / value - 1)
        differences.append(abs(difference))
        names = BACKBONES[backbone], SYSTEM_NAMES[system], ours.labels[row], METRIC_NAMES[metric]
        pair = printed(found, metric), printed(value, metric), f"{found - value:+.3g}"
        lines.append(cells(*names, *pair, f"{difference:+.1f} %"))
    titles = "Backbone", "System", "Method", "Metric", "Ours", "Published", "Difference", "Percent"
    notes = _notes(results, ours, theirs, differences)
    title = f"{wanted.title}: ours against published"
    return Sheet(title, tuple(("", name) for name in titles), tuple(lines), notes)


def _notes(
    results: Results, ours: Values, theirs: Values, differences: list[float]
) -> tuple[str, ...]:
    notes = ["Ours and Published are in the table's units, Difference in physical ones."]
    if any(content["preset"] != "paper" for content in results.values()):
        notes.append(
            "This run is of the mini preset, other data and small networks: the differences "
            "show that the comparison works and nothing about the method."
        )
    if differences:
        ordered = sorted(differences)
        notes.append(
            f"{len(ordered)} values: median difference {ordered[len(ordered) // 2]:.1f} %, "
            f"largest {ordered[-1]:.1f} %."
        )
    return tuple(notes)


def comparable() -> tuple[str, ...]:
    """Studies that can be compared."""
    return published_studies()
