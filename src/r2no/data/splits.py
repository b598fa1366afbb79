"""Splits by trajectory or by separated time blocks, never by shuffled windows (DESIGN 1.3).

Windows overlap: two that start a frame apart share almost all of their data. A choice scored on
windows that overlap the fitted ones is no held-out choice.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from r2no._repr import html_table
from r2no._types import Number
from r2no.checks import choice
from r2no.data.arrays import ArrayWindows
from r2no.data.window import Window, trajectories
from r2no.errors import ConfigError, EmptySplitError
from r2no.storage import fingerprint

By = Literal["auto", "trajectory", "time"]
_SHARES = {"train": 0.6, "fit": 0.2, "test": 0.2}  # where only some are given


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

    def _repr_html_(self) -> str:
        """Recordings and windows of each split, as a table."""
        counts = self.recordings
        rows = [(n, f"{counts[n]} recordings, {len(part)} windows") for n, part in self._named()]
        return html_table("Splits", rows)

    @property
    def recordings(self) -> dict[str, int]:
        """How many recordings each split has a part of."""
        return {name: trajectories(part) for name, part in self._named()}

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
    def whole(self) -> "JoinedWindows":
        """The windows of all splits, with their places in the recordings they were cut from."""
        return JoinedWindows((self.train, self.fit, self.test), self.places)


class JoinedWindows:
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

    def numbered(self, numbers: Sequence[int]) -> "JoinedWindows":
        """The same windows with other numbers for their recordings."""
        renamed = torch.tensor(numbers)[self.origins[:, 0]]
        return JoinedWindows(self._parts, [torch.stack([renamed, self.origins[:, 1]], 1)])

    @property
    def fingerprint(self) -> str:
        """A hash of the splits' hashes, in their order."""
        return fingerprint([part.fingerprint for part in self._parts])


def plan_split(
    frames: Sequence[int],
    history: int,
    horizon: int,
    given: Mapping[str, Number | None],
    *,
    by: By,
    seed: int | None,
) -> tuple[list[list[int]], list[list[slice]]]:
    """For each split its recordings, and which frames of each; see ``Measurements.split``.

    Args:
        frames: Of each recording.
        history: Frames of a window that are known.
        horizon: Frames of a window that follow.
        given: Share of each split, if the user gave one.
        by: What is parted.
        seed: Draws the order of the recordings.
    """
    choice("by", by, get_args(By))
    shares: dict[str, float] | None = None
    if any(share is not None for share in given.values()):
        shares = {n: float(_SHARES[n] if own is None else own) for n, own in given.items()}
    if by == "trajectory" or (by == "auto" and len(frames) >= 3):
        chosen = _by_trajectory(len(frames), shares, seed)
        return chosen, [[slice(0, None)] * len(own) for own in chosen]
    return [list(range(len(frames)))] * 3, _by_time(frames, shares, history, horizon)


def _by_trajectory(
    count: int, shares: Mapping[str, Number] | None, seed: int | None
) -> list[list[int]]:
    """Trajectories of each split, in their order or a drawn one; without shares the default."""
    shares = default_counts(count) if shares is None else shares
    order = np.arange(count)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(count)
    return [order[group].tolist() for group in allot(count, shares).values()]


def _by_time(
    frames: Sequence[int], shares: Mapping[str, float] | None, history: int, horizon: int
) -> list[list[slice]]:
    """Frames of each split, by trajectory; without shares the default."""
    blocks = []
    for length in frames:
        own = default_time_shares(length, history, horizon) if shares is None else shares
        blocks.append(time_blocks(length, own, history, horizon))
    return [[block[name] for block in blocks] for name in _SHARES]


def places(
    origins: Sequence[Tensor], chosen: Sequence[Sequence[int]], spans: Sequence[Sequence[slice]]
) -> tuple[Tensor, ...]:
    """Trajectory and first frame of each split's windows, counted over the whole data."""
    found = []
    for starts, own, cut in zip(origins, chosen, spans, strict=True):
        first = torch.tensor([[number, span.start] for number, span in zip(own, cut, strict=True)])
        first = first[starts[:, 0]]
        found.append(torch.stack([first[:, 0], first[:, 1] + starts[:, 1]], 1))
    return tuple(found)


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


def allot(count: int, shares: Mapping[str, Number]) -> dict[str, slice]:
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


def _check_shares(shares: Mapping[str, Number]) -> None:
    if min(shares.values()) <= 0:
        raise ConfigError(f"Every share of a split must be positive, but got {dict(shares)}.")
