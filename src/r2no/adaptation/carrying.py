"""Whose recordings the splits are, and how much of the weights carries over to other ones.

Weights that are fitted on k recordings keep k/(k + v) of their size on others, v being how much
recordings differ. With few recordings to fit on, their blocks cannot tell; but the train split has
others, and its columns that cost nothing are as good there as anywhere.
"""

import functools
from collections.abc import Sequence

import torch

from r2no.adaptation.columns import columns_of
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.groups import ColumnGroup
from r2no.adaptation.loops import RepairLoops, gather_sums
from r2no.data.audit import apart, going_on
from r2no.data.window import Windows, trajectories
from r2no.ensemble import GramAccumulator, GramSums
from r2no.ensemble.nested import Carried
from r2no.ensemble.ridge import scaled_ridge
from r2no.ensemble.verdict import MANY, student
from r2no.progress import Reporter
from r2no.spectral import FourierCells
from r2no.training import Split

#: Bands, sectors and groups of lead time that are enough to see it, and a penalty.
_RADIAL, _ANGULAR, _LEADS, _RIDGE = 8, 4, 5, 1e-3
#: Recordings that are looked at, at most, and the least share that is ever kept.
_MOST, _LEAST = 12, 0.2


def other_recordings(train: Windows, fit: Windows) -> int | None:
    """Recordings of the fit split, if they are others than those of the train split; else ``None``.

    Where the splits are stretches of the same recordings, so will be the use.
    """
    count = trajectories(fit)
    return count if count < trajectories(train) or apart(train, fit) else None


def say_whose(train: Windows, fit: Windows, reporter: Reporter) -> None:
    """Say what values alone told of the recordings, or that they did not."""
    if going_on(train, fit):
        reporter.say(
            "Recordings of `fit` go on where those of `train` end, so they count as stretches of "
            "the same ones: the verdict is about these recordings."
        )
    elif apart(train, fit) and trajectories(train) + trajectories(fit) == 2:
        reporter.say(
            "`train` and `fit` hold an array each, so they count as two recordings, which tell "
            "little of how much recordings differ: the verdict will be cautious. If they are "
            "stretches of one recording, give slices of one array, not copies."
        )


def carried(
    groups: Sequence[ColumnGroup],
    loops: RepairLoops,
    splits: Sequence[Split],
    settings: AdaptSettings,
    reporter: Reporter,
    *,
    recordings: int,
) -> Carried:
    """From fits on every run of ``recordings`` recordings of the splits, scored on all others.

    ``loops`` are without modules: these columns cost nothing.

    The share of the weights that is best there is s = Σ r·w / Σ w·Gw, and v = k(1 - s)/s. The
    spread is that of the share of a recording's error which weights of that size remove: around the
    mean of others, or around that of the own recording, if it alone has to tell. It is what that
    would be if many recordings had been seen, larger by Student's t for those there are.
    """
    found = [_sums(groups, loops, split, settings, reporter) for split in splits]
    return _carried(functools.reduce(GramSums.concat, found), recordings)


def _sums(
    groups: Sequence[ColumnGroup],
    loops: RepairLoops,
    split: Split,
    settings: AdaptSettings,
    reporter: Reporter,
) -> GramSums:
    """Gram sums of the columns that cost nothing, by recording."""
    windows, fields = split[0], split[0].fields
    unit = windows.origins[:, 0].unique(return_inverse=True)[1] % _MOST
    number = int(unit.max()) + 1
    columns = columns_of(groups, settings, members=0, centred=True)
    cells = FourierCells.polar(fields.grid, radial=_RADIAL, angular=_ANGULAR)
    accumulator = GramAccumulator(
        columns,
        cells,
        measured=fields.measured,
        exponents=(settings.ensemble.weight_exponent,),
        groups=number,
        lead_groups=min(_LEADS, fields.horizon_frames),
        weigh_by="deviation",
    )
    by_exponent, _ = gather_sums(
        loops,
        groups,
        split,
        accumulator,
        group=unit,
        batch_size=settings.batch_size,
        title="how much recordings differ",
        reporter=reporter,
    )
    (sums,) = by_exponent.values()
    return sums


def _carried(sums: GramSums, recordings: int) -> Carried:
    """As :func:`carried`, from the sums of each recording; rows are fits, columns recordings."""
    gram, rhs, energy = sums.gram, sums.rhs, sums.energy.flatten(1).sum(1)
    number, crosses, squares, errors = len(gram), [], [], []  # of the own recordings, then others'
    for first in range(number):
        fit = [(first + place) % number for place in range(recordings)]
        others = [unit for unit in range(number) if unit not in fit]
        weights = scaled_ridge(gram[fit].sum(0), rhs[fit].sum(0)[..., None], [_RIDGE])[..., 0, 0]
        all_of_them = [*fit, *others]
        crosses.append((weights * rhs[all_of_them]).flatten(1).sum(1))
        squares.append(torch.einsum("...i,u...ij,...j->u", weights, gram[all_of_them], weights))
        errors.append(energy[all_of_them])
    cross, square, before = (torch.stack(parts) for parts in (crosses, squares, errors))
    right, left = float(cross[:, recordings:].sum()), float(square[:, recordings:].sum())
    share = min(max(right / left if left > 0 else 1.0, _LEAST), 1.0)
    reduced = (2 * share * cross - share**2 * square) / before.clamp_min(1e-300)
    expected = reduced[:, :1] if recordings == 1 else reduced[:, recordings:].mean()
    spread = float((reduced[:, recordings:] - expected).square().mean().sqrt())
    return Carried(recordings * (1 - share) / share, spread * student(number - 1) / MANY)
