"""The sentences under a table, recomputed from its numbers."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from r2no.realpdebench.study.studies import BACKBONES, METRIC_NAMES, SYSTEM_NAMES, Study
from r2no.realpdebench.study.values import FINAL, SELECTED, BackboneSystem, Values

_NAMED = 5  # as many exceptions are named


def claims(wanted: Study, values: Values, metrics: tuple[str, ...]) -> tuple[str, ...]:
    """What the table adds up to; sums are over the pairs that have both rows compared."""
    maker = _MAKERS.get(wanted.name)
    if maker is None:
        return ()
    said = maker(_Claims(wanted, values, metrics))
    return tuple(dict.fromkeys(filter(None, said)))  # with one member some rows have one name


@dataclass(frozen=True)
class _Claims:
    """The sentences of one table."""

    wanted: Study
    values: Values
    metrics: tuple[str, ...]

    def _name(self, row: str) -> str:
        return self.values.labels.get(row, row)

    def _count(self, rows: tuple[str, ...], metric: str) -> str:
        number = len(self.values.pairs(rows, metric))
        return f"{number} pair" + "s" * (number != 1)

    def _lowers(self, row: str, other: str, how: str = "") -> str:
        if row in self.values.twins() or not self.values.pairs((row, other), self.metrics[0]):
            return ""
        parts = [
            f"{METRIC_NAMES[m]} {self.values.lowered(row, other, m):.1f} %" for m in self.metrics
        ]
        over = self._count((row, other), self.metrics[0])
        pair = f"{self._name(row)} against {self._name(other)}"
        return f"{pair}, summed over {over}: {how}lower by {', '.join(parts)}."

    def _better(self, row: str, other: str) -> str:
        """In how many pairs a row is below another, and in which it is not, if they are few."""
        if not self.values.pairs((row, other), self.metrics[0]):
            return ""
        parts = [f"{METRIC_NAMES[m]} in {self.values.wins(row, other, m)}" for m in self.metrics]
        over = self._count((row, other), self.metrics[0])
        pair = f"{self._name(row)} is below {self._name(other)}"
        return f"{pair} in {', '.join(parts)} of {over}.{self._exceptions(row, other)}"

    def _exceptions(self, row: str, other: str) -> str:
        texts = []
        for metric in self.metrics:
            below = self.values.below(row, other, metric)
            missed = [pair for pair in self.values.pairs((row, other), metric) if pair not in below]
            if 0 < len(missed) <= _NAMED:
                texts.append(f"{METRIC_NAMES[metric]} for {', '.join(map(_pair, missed))}")
        return f" Not in {'; '.join(texts)}." if texts else ""

    def _lowest(self) -> Iterator[str]:
        row, rows = "r2no", tuple(one.key for one in self.wanted.rows)
        for metric in self.metrics:
            pairs = self.values.pairs(rows, metric)
            best = sum(row in self.values.best(pair, rows, metric) for pair in pairs)
            yield (
                f"{self._name(row)} has the lowest {METRIC_NAMES[metric]}, ties included, in "
                f"{best} of {self._count(rows, metric)}."
            )

    def main(self) -> Iterator[str]:
        yield from self._lowest()
        yield from self._final_depth()
        yield self._lowers("irno_selected", "irno_final")
        yield self._lowers("r2no_m1", "irno_selected")
        yield self._lowers("r2no", "r2no_m1", "further ")
        for row in ("irno_final", "irno_selected", "r2no_m1", "r2no"):
            yield self._better(row, "finetuned")
        yield self._better("r2no_m1", "irno_final")
        yield self._better("r2no_m1", "irno_selected")

    def _final_depth(self) -> Iterator[str]:
        """How often ℓ* = L, and where the repair halts when the final depth is no better."""
        pairs = self.values.pairs((SELECTED, FINAL), self.metrics[0])
        if not pairs:
            return
        number = len(self.values.at_final_depth(self.metrics))
        over = self._count((SELECTED, FINAL), self.metrics[0])
        yield f"The fit split selects the final depth (l* = L) in {number} of {over}."
        failed = set(pairs) - set(self.values.below(FINAL, "finetuned", "rmse"))
        known = self.values.depths
        depths = [known[pair][0] for pair in pairs if pair in failed and pair in known]
        if depths:
            ends = f"{min(depths)} to {max(depths)}"
            yield f"Where the final depth is not below full finetuning in RMSE, l* is {ends}."

    def relative(self) -> Iterator[str]:
        yield from self._lowest()
        for row in ("r2no", "r2no_m1", "irno_final"):
            yield self._better(row, "finetuned")
        yield self._better("r2no_m1", "irno_final")

    def combination(self) -> Iterator[str]:
        yield from self._lowest()
        for row in self.wanted.rows:
            yield self._lowers(row.key, "finetuned")

    def sums(self) -> Iterator[str]:
        rows = tuple(row.key for row in self.wanted.rows)
        for metric in self.metrics:
            pairs = self.values.pairs(rows, metric)
            parts = [f"{self._name(r)} {self.values.total(r, metric, pairs):.4g}" for r in rows]
            over = self._count(rows, metric)
            yield f"Sum of {METRIC_NAMES[metric]} over {over}: {', '.join(parts)}."

    def base(self) -> Iterator[str]:
        """How often, and for which pair most and least, the base column helps."""
        yield from self.sums()
        for metric in self.metrics:
            pairs = self.values.pairs(("r2no", "no_base"), metric)
            if not pairs:
                continue
            gains = {pair: self._gain(pair, metric) for pair in pairs}
            most, least = max(pairs, key=gains.__getitem__), min(pairs, key=gains.__getitem__)
            lower = self.values.wins("r2no", "no_base", metric)
            higher = self.values.below("no_base", "r2no", metric)
            named = f" ({', '.join(map(_pair, higher))})" if 0 < len(higher) <= _NAMED else ""
            yield (
                f"With the base column {METRIC_NAMES[metric]} falls in {lower}, rises in "
                f"{len(higher)}{named} and is equal in {len(pairs) - lower - len(higher)} of "
                f"{self._count(('r2no', 'no_base'), metric)}."
            )
            yield (
                f"The base column lowers {METRIC_NAMES[metric]} most for {_pair(most)}, by "
                f"{gains[most]:.1f} %, and least for {_pair(least)}, by {gains[least]:.1f} %."
            )

    def _gain(self, pair: BackboneSystem, metric: str) -> float:
        with_it = self.values.numbers[(*pair, "r2no", metric)]
        return 100 * (1 - with_it / self.values.numbers[(*pair, "no_base", metric)])

    def pretrained(self) -> Iterator[str]:
        yield self._lowers("r2no_m1", "irno_final")
        yield self._better("r2no_m1", "irno_final")
        for row in ("irno_final", "r2no_m1", "r2no"):
            yield self._better(row, "pretrained")
            yield self._better(row, "finetuned")

    def columns(self) -> Iterator[str]:
        rows = self.values.rows()
        if len(rows) > 1:
            yield self._lowers(rows[-1], rows[0])

    def ridge(self) -> Iterator[str]:
        """How the error changes over the sweep, and whether the chosen value is its best."""
        rows = [row for row in self.values.rows() if row != "finetuned"]
        for metric in self.metrics:
            pairs = self.values.pairs(("finetuned", *rows), metric)
            if not rows or not pairs:
                continue
            over = self._count(("finetuned", *rows), metric)
            best = [self.values.best(pair, rows, metric) for pair in pairs]
            found = sum(
                (*pair, row) in self.values.starred
                for pair, one in zip(pairs, best, strict=True)
                for row in one
            )
            below = set(pairs).intersection(
                *(self.values.below(row, "finetuned", metric) for row in rows)
            )
            ends = f"{self._name(rows[0])} to {self._name(rows[-1])}"
            yield (
                f"{METRIC_NAMES[metric]} changes by {self._rises(rows, metric)} from {ends} and is "
                f"below the source's at every value in {len(below)} of {over}."
            )
            yield (
                f"The value selected on the fit split has the lowest {METRIC_NAMES[metric]} of the "
                f"sweep, ties included, in {found} of {over}."
            )

    def _rises(self, rows: list[str], metric: str) -> str:
        """The change from one end of a sweep to the other, of each backbone's sum over systems."""
        texts = []
        for backbone in self.values.backbones():
            kept = {key: value for key, value in self.values.numbers.items() if key[0] == backbone}
            change = -Values(kept).lowered(rows[-1], rows[0], metric)
            if not math.isnan(change):
                texts.append(f"{change:.1f} % ({BACKBONES[backbone]})")
        return ", ".join(texts)


def _pair(pair: BackboneSystem) -> str:
    return f"{BACKBONES[pair[0]]} on {SYSTEM_NAMES[pair[1]]}"


_MAKERS: dict[str, Callable[[_Claims], Iterator[str]]] = {
    "main": _Claims.main,
    "relative-l2": _Claims.relative,
    "combination-rule": _Claims.combination,
    "partition-axes": _Claims.sums,
    "base-column": _Claims.base,
    "pretrained-source": _Claims.pretrained,
    "columns": _Claims.columns,
    "ridge": _Claims.ridge,
}
