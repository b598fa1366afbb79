"""Splits by trajectory or by separated time blocks, never by shuffled windows (DESIGN 1.3).

Windows overlap: two that start a frame apart share almost all of their data. A choice scored on
windows that overlap the fitted ones is no held-out choice.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from r2no.data.arrays import ArrayWindows
from r2no.data.window import Window
from r2no.errors import ConfigError, EmptySplitError
from r2no.storage import fingerprint

By = Literal["auto", "trajectory", "time"]
Fold = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Splits:
    """Windows to train repair modules on, to fit the ensemble on, and to test on.

    ``places`` are trajectory and first frame of the windows of each, counted over the whole data.
    """

    train: ArrayWindows
    fit: ArrayWindows
    test: ArrayWindows
    places: tuple[Tensor, ...] = ()

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"Splits({self.describe()})"

    @property
    def recordings(self) -> dict[str, int]:
        """How many recordings each split has a part of."""
        return {name: len(part.origins[:, 0].unique()) for name, part in self._named()}

    def describe(self) -> str:
        """Recordings and windows of each split, in one line."""
        counts = self.recordings
        return ", ".join(
            f"{name} {counts[name]} recording{'s' * (counts[name] != 1)} ({len(part)} windows)"
            for name, part in self._named()
        )

    def _named(self) -> list[tuple[str, ArrayWindows]]:
        return [("train", self.train), ("fit", self.fit), ("test", self.test)]

    @property
    def whole(self) -> "PlacedWindows":
        """The windows of all splits, with their places in the recordings they were cut from."""
        return PlacedWindows((self.train, self.fit, self.test), self.places)


class PlacedWindows:
    """Windows of several splits together, known by recording and frame of the data as a whole."""

    def __init__(self, parts: Sequence[ArrayWindows], places: Sequence[Tensor]) -> None:
        self._parts, self.fields = tuple(parts), parts[0].fields
        self.origins: Int[Tensor, "window 2"] = torch.cat(list(places))
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return len(self.origins)

    def __getitem__(self, index: int) -> Window:
        """Window ``index``, counted over the splits in order."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self._parts[part][index - int(self._ends[part]) + len(self._parts[part])]

    def numbered(self, numbers: Sequence[int]) -> "PlacedWindows":
        """The same windows with other numbers for their recordings."""
        renamed = torch.tensor(numbers)[self.origins[:, 0]]
        return PlacedWindows(self._parts, [torch.stack([renamed, self.origins[:, 1]], 1)])

    @property
    def fingerprint(self) -> str:
        """Of the splits, in order."""
        return fingerprint([part.fingerprint for part in self._parts])


def default_counts(count: int) -> dict[str, int]:
    """Recordings of each split where no shares are given.

    The fit split decides how much of the repair is used, and with fewer than four recordings it
    has to be careful (M7): it gets four of eight or more, nearly half of fewer, a fifth of many.
    """
    if count < 3:
        raise _too_few(("train", "fit", "test"), count)
    test = max(count // 5, 1)
    fit = max(4, round(0.2 * count)) if count >= 8 else (count - 1) // 2
    return {"train": count - fit - test, "fit": fit, "test": test}


def default_time_shares(frames: int, history: int, horizon: int) -> dict[str, float]:
    """Shares in time where none are given: fit gets eight horizons, at most two fifths."""
    usable = max(frames - 2 * horizon, 1)
    fit = min(max((history + 8 * horizon) / usable, 0.2), 0.4)
    return {"train": 0.8 - fit, "fit": fit, "test": 0.2}


def runs(counts: Mapping[str, int]) -> dict[str, slice]:
    """Neighbouring runs of these lengths."""
    ends = np.cumsum(list(counts.values())).tolist()
    return {
        name: slice(end - size, end) for (name, size), end in zip(counts.items(), ends, strict=True)
    }

    def __repr__(self) -> str:
        parts = [f"{name}={getattr(self, name)!r}" for name in ("train", "fit", "test")]
        return f"Splits({', '.join(parts)})"


def allot(count: int, shares: Mapping[str, float]) -> dict[str, slice]:
    """0..count-1 as one run per name, in proportion to ``shares``, each with at least one."""
    _check_shares(shares)
    if count < len(shares):
        raise _too_few(shares, count)
    ends = np.cumsum(list(shares.values())) / sum(shares.values()) * count
    found, start = {}, 0
    for left, (name, end) in enumerate(zip(shares, ends.tolist(), strict=True), 1):
        stop = min(max(round(end), start + 1), count - (len(shares) - left))
        found[name], start = slice(start, stop), stop
    return found


def time_blocks(
    frames: int, shares: Mapping[str, float], history: int, horizon: int
) -> dict[str, slice]:
    """Contiguous blocks of a recording, one horizon apart, in proportion to ``shares``.

    Raises:
        EmptySplitError: if a block would be too short for a single window.
    """
    _check_shares(shares)
    window, total = history + horizon, sum(shares.values())
    usable = frames - horizon * (len(shares) - 1)
    spare = usable - window * len(shares)
    if spare < 0:
        raise EmptySplitError(
            f"A split in time into {', '.join(shares)} needs at least {frames - spare} frames "
            f"({len(shares)} windows of {history} + {horizon} and gaps of {horizon}), but the "
            f"recording has {frames}. Shorten `history` or `horizon`, or give more data."
        )
    above = [max(share / total * usable - window, 0) for share in shares.values()]
    extra = spare * np.cumsum(above) / (sum(above) or 1.0)  # frames beyond one window, so far
    ends = [window * number + int(more + 1e-9) for number, more in enumerate(extra.tolist(), 1)]
    starts = [0, *ends[:-1]]
    return {
        name: slice(start + number * horizon, end + number * horizon)
        for number, (name, start, end) in enumerate(zip(shares, starts, ends, strict=True))
    }


def _too_few(names: Collection[str], count: int) -> EmptySplitError:
    return EmptySplitError(
        f"A split by trajectory into {', '.join(names)} needs at least {len(names)} "
        f'trajectories, but there are {count}. Use by="time".'
    )


def _check_shares(shares: Mapping[str, float]) -> None:
    if min(shares.values()) <= 0:
        raise ConfigError(f"Every share of a split must be positive, but got {dict(shares)}.")


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
    more than ``most``). Otherwise each recording is cut in time into blocks of two horizons or
    more; a fold scores some neighbouring blocks and fits on all but them and the blocks next to
    them, so that no target frame of one lies within a horizon of the other's. A recording too
    short for five such blocks gives two halves with a gap, each half in up to four blocks. Where
    the gap would be shorter than a horizon, two or three recordings are held against each other
    as a whole; a single one keeps what gap there is, its targets never overlapping.

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
        scored = _chunks(number, 4)
        return HeldOut(group, tuple((_without(number, score), score) for score in scored))
    starts = [origins[origins[:, 0] == name, 1] for name in names.tolist()]
    if len(names) >= 2 and any(int(start.max() - start.min()) < 2 * horizon for start in starts):
        return halves(origins, horizon=horizon)
    plans = [_time_blocks(start, horizon, max(most // len(names), 4)) for start in starts]
    return _joined(origins[:, 0], names.tolist(), plans)


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
        for score in _chunks(number, 4):
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
