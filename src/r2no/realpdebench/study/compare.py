"""Ours against the published values, pair by pair."""

import math

from r2no.realpdebench.study.printed import published, published_studies
from r2no.realpdebench.study.results import Results, spectral_norm, study_values
from r2no.realpdebench.study.sheets import Cell, Sheet, cells
from r2no.realpdebench.study.studies import BACKBONES, METRIC_NAMES, SYSTEM_NAMES, study
from r2no.realpdebench.study.values import printed

NORMS = {
    "ortho": "the unitary transform of the paper's equation",
    "forward": "coefficients divided by the number of grid points, as the paper's appendix has it",
}


def compare_sheet(name: str, results: Results, *others: Results) -> Sheet:
    """A row per pair, method and metric: ours, published, and the difference in percent.

    ``others`` are results of the same study with another norm of the spectral loss, set beside.
    """
    wanted, theirs = study(name), published(name)
    runs = {_norm(one): study_values(wanted, one) for one in (results, *others)}
    ours = next(iter(runs.values()))
    lines: list[tuple[Cell, ...]] = []
    differences: dict[str, list[float]] = {norm: [] for norm in runs}
    for (backbone, system, row, metric), value in theirs.numbers.items():
        found = {norm: one.get((backbone, system), row, metric) for norm, one in runs.items()}
        hidden = wanted.reference is not None and row == wanted.reference.key
        if hidden or all(one is None for one in found.values()):
            continue
        names = BACKBONES[backbone], SYSTEM_NAMES[system], ours.labels[row], METRIC_NAMES[metric]
        scores = ["-" if one is None else printed(one, metric) for one in found.values()]
        line = [*names, *scores, printed(value, metric)]
        for norm, one in found.items():
            percent = math.nan if one is None else 100 * (one / value - 1)
            line += ["-", "-"] if one is None else [f"{one - value:+.3g}", f"{percent:+.1f} %"]
            differences[norm] += [] if one is None else [abs(percent)]
        lines.append(cells(*line))
    titles = ["Backbone", "System", "Method", "Metric", *(f"Ours ({norm})" for norm in runs)]
    titles += ["Published"]
    titles += [f"{name} ({norm})" for norm in runs for name in ("Difference", "Percent")]
    title = f"{wanted.title}: ours against published"
    presets = {content["preset"] for one in (results, *others) for content in one.values()}
    return Sheet(
        title, tuple(("", name) for name in titles), tuple(lines), _notes(presets, differences)
    )


def _norm(results: Results) -> str:
    return spectral_norm(next(iter(results.values())))


def _notes(presets: set[str], differences: dict[str, list[float]]) -> tuple[str, ...]:
    """What the differences are of, and how large they are for each norm."""
    notes = ["Ours and Published are in the table's units, Difference in physical ones."]
    notes += [f"Spectral loss of ours: norm={norm}, {NORMS[norm]}." for norm in differences]
    if presets != {"paper"}:
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


def comparable() -> tuple[str, ...]:
    """Studies that can be compared."""
    return published_studies()
