"""Blocks of a stream of windows of unknown length, for held-out choices without a plan.

Windows overlap, so halves must be contiguous blocks with a gap (never shuffled). When windows come
as a bare stream, neither their number nor their trajectories are known beforehand. Here they are
cut into at most eight contiguous blocks whose length doubles whenever they run out, a
function of the number of windows alone, hence independent of batching.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from r2no.ensemble.gram import GramSums
from r2no.errors import EmptySplitError

#: Groups to fit on, groups to score on.
Fold = tuple[tuple[int, ...], tuple[int, ...]]

_MOST_BLOCKS = 8


class StreamBlocks:
    """At most eight running sums over contiguous blocks of equal length."""

    def __init__(self) -> None:
        self._length = 1
        self._sums: list[GramSums] = []
        self._seen = 0

    def assign(self, windows: int) -> Iterator[tuple[int, Tensor]]:
        """Part the next ``windows`` windows: for each block, 0 for its windows, -1 for others."""
        position = 0
        while position < windows:
            if self._seen == self._length * _MOST_BLOCKS:
                self._halve()
            block = self._seen // self._length
            take = min(windows - position, (block + 1) * self._length - self._seen)
            group = torch.full((windows,), -1)
            group[position : position + take] = 0
            yield block, group
            self._seen += take
            position += take

    def add(self, part: GramSums, block: int) -> None:
        """Add the sums of some windows to their block."""
        if block == len(self._sums):
            self._sums.append(part)
        else:
            self._sums[block] = self._sums[block] + part

    def _halve(self) -> None:
        self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
        self._length *= 2

    def finish(self) -> tuple[GramSums, tuple[Fold, ...]]:
        """Collapse to three groups (first part, gap, last part) and the folds between the parts.

        The gap is one block, at least an eighth of the windows. Fewer than three blocks leave
        nothing to hold out: everything is in the first group and there are no folds.
        """
        if not self._sums:
            raise EmptySplitError(
                "`batches` held no windows, so there is nothing to fit. Give at least one."
            )
        number = len(self._sums)
        gap = number // 2
        folds: tuple[Fold, ...] = (((0,), (2,)), ((2,), (0,)))
        parts = [range(0, gap), range(gap, gap + 1), range(gap + 1, number)]
        if number < 3:
            parts, folds = [range(number), range(0), range(0)], ()
        stacked = GramSums(
            torch.cat([part.moments for part in self._sums]),
            torch.cat([part.windows for part in self._sums]),
        )
        groups = [stacked.total(tuple(part)) for part in parts]
        moments = torch.cat([group.moments for group in groups])
        return GramSums(moments, torch.cat([group.windows for group in groups])), folds


def join_folds(
    first: tuple[Fold, ...], second: tuple[Fold, ...], *, offset: int
) -> tuple[Fold, ...]:
    """Fold k of both plans together, the groups of the second numbered from ``offset`` on.

    Where only one side has folds, those are kept.
    """
    moved = tuple(
        (tuple(g + offset for g in fit), tuple(g + offset for g in score)) for fit, score in second
    )
    if not first or not moved:
        return first or moved
    pairs = zip(first, moved, strict=False)
    return tuple((fit + more_fit, score + more) for (fit, score), (more_fit, more) in pairs)
