"""Blocks of windows to hold out, below everything that chooses (DESIGN 1.3).

Windows overlap: two that start a frame apart share almost all of their data. A choice scored on
windows that overlap the fitted ones is no held-out choice, so blocks are whole trajectories, or
stretches of one with a gap between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import torch
from jaxtyping import Int
from torch import Tensor

from r2no._repr import brief_repr
from r2no.errors import EmptySplitError

#: Folds of blocks, where there are as many.
_FOLDS = 6
#: Horizons that the starts of a single recording's windows span if it is cut into stretches.
_SHORT = (3.5, 10)

#: Groups to fit on, groups to score on.
Fold = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A plan for held-out choices: the block of each window, and which blocks judge which.

    Attributes:
        group: Block number of each window; windows in a gap have a block of their own, which no
            fold uses but the final fit on everything does.
        folds: Pairs (blocks to fit on, blocks to score on).
    """

    group: Int[Tensor, " window"]
    folds: tuple[Fold, ...]

    __repr__ = brief_repr


def halves(origins: Int[Tensor, "window 2"], *, horizon: int) -> HeldOut:
    """Two halves that judge each other: whole trajectories, or time blocks with a gap.

    With two or more trajectories each goes wholly to the half with fewer windows so far. A single
    one is cut in time: no target frame of one half lies within one horizon of the other's. If that
    leaves nothing, the gap shrinks, down to targets that merely do not overlap.

    Args:
        origins: Trajectory and first frame of each window.
        horizon: Forecast frames of a window.
    """
    if len(origins) == 0:
        raise EmptySplitError("`origins` is empty: there are no windows to part into halves.")
    names, counts = origins[:, 0].unique(return_counts=True)
    if len(names) >= 2:
        group = _by_trajectory(origins[:, 0], names.tolist(), counts.tolist())
        return HeldOut(group, (((0,), (1,)), ((1,), (0,))))
    return HeldOut(_by_time(origins[:, 1], horizon), (((0,), (2,)), ((2,), (0,))))


def blocks(origins: Int[Tensor, "window 2"], *, horizon: int, most: int = 12) -> HeldOut:
    """As many separated blocks as the data allow, each judged by a fit without it.

    With four or more trajectories, blocks are whole trajectories (several together when there are
    more than ``most``). A single short recording gives six stretches, each judged by all windows
    whose targets do not overlap its own. Otherwise each recording is cut in time into blocks of two
    horizons or more; a fold scores some neighbouring blocks and fits on all but them and the blocks
    next to them, so that no target frame of one lies within a horizon of the other's. Where fewer
    than five such blocks come out, or may (three recordings), it gives two halves with a gap, each
    half in up to four blocks. Where the gap would be shorter than a horizon, two or three
    recordings are held against each other as a whole; a single one keeps what gap there is, its
    targets never overlapping.

    Args:
        origins: Trajectory and first frame of each window.
        horizon: Forecast frames of a window.
        most: Largest number of blocks; sums are kept for each.
    """
    if len(origins) == 0:
        raise EmptySplitError("`origins` is empty: there are no windows to part into blocks.")
    names, counts = origins[:, 0].unique(return_counts=True)
    if len(names) >= 4:
        number = min(len(names), most)
        group = _by_trajectory(origins[:, 0], names.tolist(), counts.tolist(), number)
        scored = _chunks(number, _FOLDS)
        return HeldOut(group, tuple((_without(number, score), score) for score in scored))
    starts = [origins[origins[:, 0] == name, 1] for name in names.tolist()]
    spans = [(int(start.max() - start.min()) + 1) / horizon for start in starts]
    if len(names) == 1 and _SHORT[0] <= spans[0] < _SHORT[1]:
        return _stretches(starts[0], horizon)
    if len(names) >= 2 and any(int(start.max() - start.min()) < 2 * horizon for start in starts):
        return halves(origins, horizon=horizon)
    plans = [_time_blocks(start, horizon, max(most // len(names), 4)) for start in starts]
    return _joined(origins[:, 0], names.tolist(), plans)


def outer_folds(
    held_out: HeldOut, origins: Int[Tensor, "window 2"], *, horizon: int
) -> tuple[int, ...]:
    """Folds of a short recording that score what comes before or after all that they fit on.

    They are judged as the model is where the recording goes on; others lie between what they fit
    on. There are none with several recordings, nor in one that is not cut into stretches: its
    blocks lie farther from what their folds fit on, and a few of many say less than all do.
    """
    start, found = origins[:, 1], []
    if len(origins[:, 0].unique()) > 1 or start.max() - start.min() + 1 >= _SHORT[1] * horizon:
        return ()
    for number, parts in enumerate(held_out.folds):
        fit, score = (start[torch.isin(held_out.group, torch.tensor(part))] for part in parts)
        if len(fit) and len(score) and (fit.max() < score.min() or fit.min() > score.max()):
            found.append(number)
    return tuple(found)


def one_block(origins: Int[Tensor, "window 2"]) -> HeldOut:
    """All windows as one block, judged by a fit that knows none of them: one of another set."""
    return HeldOut(torch.zeros(len(origins), dtype=torch.long), (((), (0,)),))


def _by_trajectory(
    trajectory: Tensor, names: list[int], counts: list[int], number: int = 2
) -> Tensor:
    """Each trajectory to the group with the fewest windows so far."""
    group, filled = torch.zeros(len(trajectory), dtype=torch.long), [0] * number
    for name, count in zip(names, counts, strict=True):
        smallest = min(range(number), key=lambda candidate: filled[candidate])
        group[trajectory == name] = smallest
        filled[smallest] += count
    return group


def _by_time(start: Tensor, horizon: int) -> Tensor:
    """0 for the first block, 1 for the gap, 2 for the last block."""
    first, last = int(start.min()), int(start.max())
    distance = min(2 * horizon, last - first)  # between a start of one half and one of the other
    if distance < horizon:
        raise EmptySplitError(
            f"The windows start within {last - first} frames of each other, too close to part them "
            f"into halves whose {horizon} forecast frames do not overlap. Give this split (fit) a "
            "larger share or more trajectories, a longer recording, or a fixed `ridge`."
        )
    end = first + (last - first - distance) // 2  # last start of the first half
    group = torch.ones(len(start), dtype=torch.long)
    group[start <= end] = 0
    group[start >= end + distance] = 2
    return group


def _time_blocks(start: Tensor, horizon: int, most: int) -> HeldOut:
    """Blocks of one recording."""
    first, last = int(start.min()), int(start.max())
    number = min((last - first + 1) // (2 * horizon), most)
    if number >= 5:
        group = (start - first) * number // (last - first + 1)
        folds = []
        for score in _chunks(number, _FOLDS):
            near = tuple(range(max(score[0] - 1, 0), min(score[-1] + 2, number)))
            folds.append((_without(number, near), score))
        return HeldOut(group, tuple(folds))
    part = _by_time(start, horizon)
    pieces = max(1, min(4, int((part == 0).sum()) // max(horizon // 2, 1)))
    group = torch.full_like(part, 2 * pieces)  # the gap comes last
    for half, number in ((0, 0), (2, pieces)):
        mine = start[part == half]
        low, span = int(mine.min()), int(mine.max()) - int(mine.min()) + 1
        group[part == half] = number + (mine - low) * pieces // span
    early, late = tuple(range(pieces)), tuple(range(pieces, 2 * pieces))
    return HeldOut(group, ((early, late), (late, early)))


def _stretches(start: Tensor, horizon: int) -> HeldOut:
    """Stretches of a short recording; a fold fits on what starts a horizon or more away."""
    first, end = int(start.min()), int(start.max()) + 1
    edges = [first + round((end - first) * number / _FOLDS) for number in range(_FOLDS + 1)]
    near = {edge + side for edge in edges[1:-1] for side in (-horizon, horizon)}
    cuts = sorted({*edges, *(cut for cut in near if first < cut < end)})
    group = torch.bucketize(start.contiguous(), torch.tensor(cuts[1:-1]), right=True)
    spans = list(enumerate(pairwise(cuts)))
    folds = []
    for low, high in pairwise(edges):
        score = tuple(n for n, (begin, stop) in spans if low <= begin and stop <= high)
        away = (low - horizon, high + horizon)
        fit = tuple(n for n, (begin, stop) in spans if stop <= away[0] or begin >= away[1])
        folds.append((fit, score))
    there = set(group.tolist())  # windows with a stride may leave a span empty
    kept = ((tuple(there & set(f)), tuple(there & set(s))) for f, s in folds)
    return HeldOut(group, tuple((tuple(sorted(f)), tuple(sorted(s))) for f, s in kept if f and s))


def _joined(trajectory: Tensor, names: list[int], plans: list[HeldOut]) -> HeldOut:
    """One plan for several recordings: fold k of each, together."""
    group, offset = torch.zeros(len(trajectory), dtype=torch.long), 0
    number = min(len(plan.folds) for plan in plans)
    folds: list[tuple[list[int], list[int]]] = [([], []) for _ in range(number)]
    for name, plan in zip(names, plans, strict=True):
        group[trajectory == name] = plan.group + offset
        for (fit, score), (more_fit, more_score) in zip(folds, plan.folds, strict=False):
            fit += [block + offset for block in more_fit]
            score += [block + offset for block in more_score]
        offset += int(plan.group.max()) + 1
    return HeldOut(group, tuple((tuple(fit), tuple(score)) for fit, score in folds))


def _chunks(number: int, most: int) -> list[tuple[int, ...]]:
    """0..number-1 in at most ``most`` runs of nearly equal length."""
    parts = torch.arange(number).tensor_split(min(number, most))
    return [tuple(part.tolist()) for part in parts]


def _without(number: int, left_out: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(block for block in range(number) if block not in left_out)


def join_folds(
    first: tuple[Fold, ...], second: tuple[Fold, ...], *, offset: int
) -> tuple[Fold, ...]:
    """Fold k of both plans together, the groups of the second numbered from ``offset`` on.

    A plan with fewer folds than the other gives all its groups to the fits of the rest, so that no
    block is left unjudged. Where only one side has folds, those are kept.
    """
    moved = tuple(
        (tuple(g + offset for g in fit), tuple(g + offset for g in score)) for fit, score in second
    )
    if not first or not moved:
        return first or moved
    whole: list[Fold] = [
        (tuple(sorted({group for fold in side for part in fold for group in part})), ())
        for side in (first, moved)
    ]
    pairs = zip_longest(first, moved)
    return tuple(
        (mine[0] + other[0], mine[1] + other[1])
        for mine, other in ((one or whole[0], two or whole[1]) for one, two in pairs)
    )


def folds_of_one_block(folds: tuple[Fold, ...], windows: Sequence[float]) -> tuple[Fold, ...]:
    """Folds of :func:`one_block` that join those of a set of blocks, of so many windows each.

    The fold that scores fewest windows judges the block, all others fit on it too.
    """
    scored = [sum(windows[block] for block in score) for _, score in folds]
    judge = min(range(len(scored)), key=scored.__getitem__, default=0)
    return (((0,), ()),) * judge + (((), (0,)),)
