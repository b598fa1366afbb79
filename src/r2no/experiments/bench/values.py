"""Values: the scores of a study, by backbone, system, row and metric, and sums over them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from r2no.experiments.bench.studies import BACKBONES, SCALES, SYSTEM_NAMES

#: Backbone and system.
Pair = tuple[str, str]

DIGITS = 3


@dataclass(frozen=True)
class Values:
    """Scores in physical units, keyed by (backbone, system, row, metric).

    ``starred`` holds the (backbone, system, row) that a fit selected among the rows.
    """

    numbers: Mapping[tuple[str, str, str, str], float]
    labels: Mapping[str, str] = field(default_factory=dict)
    starred: frozenset[tuple[str, str, str]] = frozenset()

    def get(self, pair: Pair, row: str, metric: str) -> float | None:
        """One score, or None."""
        return self.numbers.get((*pair, row, metric))

    def rows(self) -> tuple[str, ...]:
        """The rows in order."""
        return tuple(dict.fromkeys(key[2] for key in self.numbers))

    def backbones(self) -> tuple[str, ...]:
        """The backbones, in the paper's order."""
        found = {key[0] for key in self.numbers}
        return tuple(name for name in BACKBONES if name in found)

    def systems(self) -> tuple[str, ...]:
        """The systems, in the paper's order."""
        found = {key[1] for key in self.numbers}
        return tuple(name for name in SYSTEM_NAMES if name in found)

    def pairs(self, rows: Iterable[str], metric: str) -> list[Pair]:
        """The pairs that have all of ``rows``; sums are always over such pairs."""
        wanted = tuple(rows)
        return [
            (backbone, system)
            for backbone in self.backbones()
            for system in self.systems()
            if all((backbone, system, row, metric) in self.numbers for row in wanted)
        ]

    def total(self, row: str, metric: str, pairs: Iterable[Pair]) -> float:
        """Sum of a row over pairs."""
        return math.fsum(self.numbers[(*pair, row, metric)] for pair in pairs)

    def lowered(self, row: str, reference: str, metric: str) -> float:
        """By how many percent ``row`` lowers the sum of ``reference``; NaN without pairs."""
        pairs = self.pairs((row, reference), metric)
        before = self.total(reference, metric, pairs)
        return 100 * (1 - self.total(row, metric, pairs) / before) if before else float("nan")

    def wins(self, row: str, other: str, metric: str) -> int:
        """Pairs in which ``row`` is lower than ``other``."""
        pairs = self.pairs((row, other), metric)
        return sum(
            self.numbers[(*pair, row, metric)] < self.numbers[(*pair, other, metric)]
            for pair in pairs
        )

    def best(self, pair: Pair, rows: Iterable[str], metric: str) -> set[str]:
        """The rows of lowest printed value; ties at that precision are all best."""
        shown = {
            row: printed(value, metric)
            for row in rows
            if (value := self.get(pair, row, metric)) is not None
        }
        lowest = min(map(float, shown.values()), default=0.0)
        return {row for row, text in shown.items() if float(text) == lowest}


def printed(value: float, metric: str) -> str:
    """A score in the table's units."""
    return f"{value / SCALES[metric]:.{DIGITS}f}"
