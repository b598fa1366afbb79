"""The sentences under a table, recomputed from its numbers."""

import math
from collections.abc import Callable, Iterator

from r2no.realpdebench.study.studies import BACKBONES, METRIC_NAMES, SYSTEM_NAMES, Study
from r2no.realpdebench.study.values import FINAL, SELECTED, BackboneSystem, Values

_NAMED = 5  # as many exceptions are named


def claims(wanted: Study, values: Values, metrics: tuple[str, ...]) -> tuple[str, ...]:
    """What the table adds up to; sums are over the pairs that have both rows compared."""
    maker = _MAKERS.get(wanted.name)
    return () if maker is None else tuple(filter(None, maker(wanted, values, metrics)))


def _count(values: Values, rows: tuple[str, ...], metric: str) -> str:
    number = len(values.pairs(rows, metric))
    return f"{number} pair" + "s" * (number != 1)


def _name(values: Values, row: str) -> str:
    return values.labels.get(row, row)


def _lowers(values: Values, row: str, other: str, metrics: tuple[str, ...], how: str = "") -> str:
    if not values.pairs((row, other), metrics[0]):
        return ""
    parts = [f"{METRIC_NAMES[m]} {values.lowered(row, other, m):.1f} %" for m in metrics]
    over = _count(values, (row, other), metrics[0])
    pair = f"{_name(values, row)} against {_name(values, other)}"
    return f"{pair}, summed over {over}: {how}lower by {', '.join(parts)}."


def _better(values: Values, row: str, other: str, metrics: tuple[str, ...]) -> str:
    """In how many pairs a row is below another, and in which it is not, if they are few."""
    if not values.pairs((row, other), metrics[0]):
        return ""
    parts = [f"{METRIC_NAMES[m]} in {values.wins(row, other, m)}" for m in metrics]
    over = _count(values, (row, other), metrics[0])
    pair = f"{_name(values, row)} is below {_name(values, other)}"
    return f"{pair} in {', '.join(parts)} of {over}.{_exceptions(values, row, other, metrics)}"


def _exceptions(values: Values, row: str, other: str, metrics: tuple[str, ...]) -> str:
    texts = []
    for metric in metrics:
        below = values.below(row, other, metric)
        missed = [pair for pair in values.pairs((row, other), metric) if pair not in below]
        if 0 < len(missed) <= _NAMED:
            texts.append(f"{METRIC_NAMES[metric]} for {', '.join(map(_pair, missed))}")
    return f" Not in {'; '.join(texts)}." if texts else ""


def _lowest(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    row, rows = "r2no", tuple(one.key for one in wanted.rows)
    for metric in metrics:
        pairs = values.pairs(rows, metric)
        best = sum(row in values.best(pair, rows, metric) for pair in pairs)
        yield (
            f"{_name(values, row)} has the lowest {METRIC_NAMES[metric]}, ties included, in "
            f"{best} of {_count(values, rows, metric)}."
        )


def _main(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    yield from _lowest(wanted, values, metrics)
    yield from _final_depth(values, metrics)
    yield _lowers(values, "irno_selected", "irno_final", metrics)
    yield _lowers(values, "r2no_m1", "irno_selected", metrics)
    yield _lowers(values, "r2no", "r2no_m1", metrics, "further ")
    for row in ("irno_final", "irno_selected", "r2no_m1", "r2no"):
        yield _better(values, row, "finetuned", metrics)
    yield _better(values, "r2no_m1", "irno_final", metrics)
    yield _better(values, "r2no_m1", "irno_selected", metrics)


def _final_depth(values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    """How often ℓ* = L, and where the repair halts when the final depth is no better."""
    pairs = values.pairs((SELECTED, FINAL), metrics[0])
    if not pairs:
        return
    number = len(values.at_final_depth(metrics))
    over = _count(values, (SELECTED, FINAL), metrics[0])
    yield f"The fit split selects the final depth (l* = L) in {number} of {over}."
    failed = set(pairs) - set(values.below(FINAL, "finetuned", "rmse"))
    depths = [values.depths[pair][0] for pair in pairs if pair in failed and pair in values.depths]
    if depths:
        yield (
            f"Where the final depth is not below full finetuning in RMSE, l* is {min(depths)} to "
            f"{max(depths)}."
        )


def _relative(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    yield from _lowest(wanted, values, metrics)
    for row in ("r2no", "r2no_m1", "irno_final"):
        yield _better(values, row, "finetuned", metrics)
    yield _better(values, "r2no_m1", "irno_final", metrics)


def _combination(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    yield from _lowest(wanted, values, metrics)
    for row in wanted.rows:
        yield _lowers(values, row.key, "finetuned", metrics)


def _sums(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    rows = tuple(row.key for row in wanted.rows)
    for metric in metrics:
        pairs = values.pairs(rows, metric)
        parts = [f"{_name(values, r)} {values.total(r, metric, pairs):.4g}" for r in rows]
        over = _count(values, rows, metric)
        yield f"Sum of {METRIC_NAMES[metric]} over {over}: {', '.join(parts)}."


def _base(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    """How often, and for which pair most and least, the base column helps."""
    yield from _sums(wanted, values, metrics)
    for metric in metrics:
        pairs = values.pairs(("r2no", "no_base"), metric)
        if not pairs:
            continue
        gains = {pair: _gain(values, pair, metric) for pair in pairs}
        most, least = max(pairs, key=gains.__getitem__), min(pairs, key=gains.__getitem__)
        lower, higher = (
            values.wins("r2no", "no_base", metric),
            values.below("no_base", "r2no", metric),
        )
        named = f" ({', '.join(map(_pair, higher))})" if 0 < len(higher) <= _NAMED else ""
        yield (
            f"With the base column {METRIC_NAMES[metric]} falls in {lower}, rises in "
            f"{len(higher)}{named} and is equal in {len(pairs) - lower - len(higher)} of "
            f"{_count(values, ('r2no', 'no_base'), metric)}."
        )
        yield (
            f"The base column lowers {METRIC_NAMES[metric]} most for {_pair(most)}, by "
            f"{gains[most]:.1f} %, and least for {_pair(least)}, by {gains[least]:.1f} %."
        )


def _gain(values: Values, pair: BackboneSystem, metric: str) -> float:
    with_it = values.numbers[(*pair, "r2no", metric)]
    return 100 * (1 - with_it / values.numbers[(*pair, "no_base", metric)])


def _pair(pair: BackboneSystem) -> str:
    return f"{BACKBONES[pair[0]]} on {SYSTEM_NAMES[pair[1]]}"


def _pretrained(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    yield _lowers(values, "r2no_m1", "irno_final", metrics)
    yield _better(values, "r2no_m1", "irno_final", metrics)
    for row in ("irno_final", "r2no_m1", "r2no"):
        yield _better(values, row, "pretrained", metrics)
        yield _better(values, row, "finetuned", metrics)


def _columns(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    rows = values.rows()
    if len(rows) > 1:
        yield _lowers(values, rows[-1], rows[0], metrics)


def _ridge(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    """How the error changes over the sweep, and whether the chosen value is its best."""
    rows = [row for row in values.rows() if row != "finetuned"]
    for metric in metrics:
        pairs = values.pairs(("finetuned", *rows), metric)
        if not rows or not pairs:
            continue
        over = _count(values, ("finetuned", *rows), metric)
        best = [values.best(pair, rows, metric) for pair in pairs]
        found = sum(
            (*pair, row) in values.starred
            for pair, one in zip(pairs, best, strict=True)
            for row in one
        )
        below = set(pairs).intersection(*(values.below(row, "finetuned", metric) for row in rows))
        ends = f"{_name(values, rows[0])} to {_name(values, rows[-1])}"
        yield (
            f"{METRIC_NAMES[metric]} changes by {_rises(values, rows, metric)} from {ends} and is "
            f"below the source's at every value in {len(below)} of {over}."
        )
        yield (
            f"The value selected on the fit split has the lowest {METRIC_NAMES[metric]} of the "
            f"sweep, ties included, in {found} of {over}."
        )


def _rises(values: Values, rows: list[str], metric: str) -> str:
    """The change from one end of a sweep to the other, of each backbone's sum over systems."""
    texts = []
    for backbone in values.backbones():
        kept = {key: value for key, value in values.numbers.items() if key[0] == backbone}
        change = -Values(kept).lowered(rows[-1], rows[0], metric)
        if not math.isnan(change):
            texts.append(f"{change:.1f} % ({BACKBONES[backbone]})")
    return ", ".join(texts)


_MAKERS: dict[str, Callable[[Study, Values, tuple[str, ...]], Iterator[str]]] = {
    "main": _main,
    "relative-l2": _relative,
    "combination-rule": _combination,
    "partition-axes": _sums,
    "base-column": _base,
    "pretrained-source": _pretrained,
    "columns": _columns,
    "ridge": _ridge,
}
