"""The sentences under a table, recomputed from its numbers."""

from collections.abc import Callable, Iterator

from r2no.experiments.bench.studies import BACKBONES, METRIC_NAMES, SYSTEM_NAMES, Study
from r2no.experiments.bench.values import Pair, Values


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
    if not values.pairs((row, other), metrics[0]):
        return ""
    parts = [f"{METRIC_NAMES[m]} in {values.wins(row, other, m)}" for m in metrics]
    over = _count(values, (row, other), metrics[0])
    pair = f"{_name(values, row)} is below {_name(values, other)}"
    return f"{pair} in {', '.join(parts)} of {over}."


def _main(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    rows = tuple(row.key for row in wanted.rows)
    for metric in metrics:
        pairs = values.pairs(rows, metric)
        best = sum("r2no" in values.best(pair, rows, metric) for pair in pairs)
        yield (
            f"{_name(values, 'r2no')} has the lowest {METRIC_NAMES[metric]}, ties included, in "
            f"{best} of {_count(values, rows, metric)}."
        )
    yield _lowers(values, "irno_selected", "irno_final", metrics)
    yield _lowers(values, "r2no_m1", "irno_selected", metrics)
    yield _lowers(values, "r2no", "r2no_m1", metrics, "further ")
    for row in ("irno_final", "r2no_m1", "r2no"):
        yield _better(values, row, "finetuned", metrics)
    yield _better(values, "r2no_m1", "irno_final", metrics)
    yield _better(values, "r2no_m1", "irno_selected", metrics)


def _relative(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    for row in ("r2no", "r2no_m1", "irno_final"):
        yield _better(values, row, "finetuned", metrics)
    yield _better(values, "r2no_m1", "irno_final", metrics)


def _combination(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
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
    yield from _sums(wanted, values, metrics)
    for metric in metrics:
        pairs = values.pairs(("r2no", "no_base"), metric)
        if not pairs:
            continue
        gains = {pair: _gain(values, pair, metric) for pair in pairs}
        most, least = max(pairs, key=gains.__getitem__), min(pairs, key=gains.__getitem__)
        yield (
            f"The base column lowers {METRIC_NAMES[metric]} most for {_pair(most)}, by "
            f"{gains[most]:.1f} %, and least for {_pair(least)}, by {gains[least]:.1f} %."
        )


def _gain(values: Values, pair: Pair, metric: str) -> float:
    with_it = values.numbers[(*pair, "r2no", metric)]
    return 100 * (1 - with_it / values.numbers[(*pair, "no_base", metric)])


def _pair(pair: Pair) -> str:
    return f"{BACKBONES[pair[0]]} on {SYSTEM_NAMES[pair[1]]}"


def _pretrained(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    yield _lowers(values, "r2no_m1", "irno_final", metrics)
    for row in ("irno_final", "r2no_m1", "r2no"):
        yield _better(values, row, "pretrained", metrics)
        yield _better(values, row, "finetuned", metrics)


def _columns(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    rows = values.rows()
    if len(rows) > 1:
        yield _lowers(values, rows[-1], rows[0], metrics)


def _ridge(wanted: Study, values: Values, metrics: tuple[str, ...]) -> Iterator[str]:
    rows = [row for row in values.rows() if row != "finetuned"]
    for metric in metrics:
        pairs = values.pairs(("finetuned", *rows), metric)
        if not rows or not pairs:
            continue
        numbers = values.numbers
        below = sum(
            all(numbers[(*p, r, metric)] < numbers[(*p, "finetuned", metric)] for r in rows)
            for p in pairs
        )
        rise = -values.lowered(rows[-1], rows[0], metric)
        ends = f"{_name(values, rows[0])} to {_name(values, rows[-1])}"
        yield (
            f"{METRIC_NAMES[metric]} changes by {rise:.1f} % from {ends} and is below the source's "
            f"at every value in {below} of {_count(values, ('finetuned', *rows), metric)}."
        )


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
