"""Splits by trajectory or by separated time blocks, never by shuffled windows (DESIGN 1.3).

Windows overlap: two that start a frame apart share almost all of their data. A choice scored on
windows that overlap the fitted ones is no held-out choice.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from r2no.errors import EmptySplitError

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


def _by_trajectory(trajectory: Tensor, names: list[int], counts: list[int]) -> Tensor:
    group, filled = torch.zeros(len(trajectory), dtype=torch.long), [0, 0]
    for name, count in zip(names, counts, strict=True):
        half = 0 if filled[0] <= filled[1] else 1
        group[trajectory == name] = half
        filled[half] += count
    return group


def _by_time(start: Tensor, horizon: int) -> Tensor:
    """0 for the first block, 1 for the gap, 2 for the last block."""
    first, last = int(start.min()), int(start.max())
    distance = min(2 * horizon, last - first)  # between a start of one half and one of the other
    if distance < horizon:
        raise EmptySplitError(
            f"The windows start within {last - first} frames of each other, too close to part them "
            f"into halves whose {horizon} forecast frames do not overlap. Give a longer recording, "
            "several trajectories, or a fixed `ridge`."
        )
    end = first + (last - first - distance) // 2  # last start of the first half
    group = torch.ones(len(start), dtype=torch.long)
    group[start <= end] = 0
    group[start >= end + distance] = 2
    return group
