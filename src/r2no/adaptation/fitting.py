"""The fit split: what it must be, and the one pass that fits the ensemble to it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from r2no.adaptation.columns import columns_of, partition
from r2no.adaptation.config import AdaptSettings, EnsembleSettings
from r2no.adaptation.groups import ColumnGroup
from r2no.adaptation.loops import RepairLoops, gather_sums
from r2no.adaptation.weighting import EXPONENTS, choose_exponent, needed_exponents
from r2no.data.window import Fields, Windows
from r2no.ensemble import (
    Columns,
    DepthErrors,
    FitPlan,
    FittedEnsemble,
    GramAccumulator,
    HeldOut,
    blocks,
    halves,
)
from r2no.ensemble.nested import ALL_OF_IT, Carried
from r2no.errors import EmptySplitError, GridMismatchError
from r2no.progress import Reporter
from r2no.training import SourceCache


def check_adaptable(fit: Windows, settings: AdaptSettings) -> None:
    """Refuse, before any work, data that the repair module or the held-out choices cannot use.

    Raises:
        EmptySplitError: if ``fit`` is too short to part, and something is to be chosen on parts.
        GridMismatchError: unless the grid is two-dimensional.
    """
    if len(fit.fields.grid) != 2:
        raise GridMismatchError(
            f"`fit` must live on a grid of two spatial axes, but its grid is {fit.fields.grid}: "
            "the repair module is a two-dimensional U-Net. Cut planes out of the data, or fit a "
            "`SpectralEnsemble` to iterates of your own."
        )
    held_out_blocks(fit, settings)


def can_part(windows: Windows, settings: AdaptSettings) -> bool:
    """Whether a split is long enough to choose on its held-out parts."""
    try:
        held_out_blocks(windows, settings)
    except EmptySplitError:
        return False
    return True


def held_out_blocks(fit: Windows, settings: AdaptSettings) -> HeldOut:
    """The blocks on which choices are made; one for all windows if there is none to make."""
    chosen, horizon = settings.ensemble, fit.fields.horizon_frames
    if chosen.cells != "published":
        return blocks(fit.origins, horizon=horizon)
    if chosen.ridge == "auto" or chosen.target is not None:
        return halves(fit.origins, horizon=horizon)
    return HeldOut(torch.zeros(len(fit), dtype=torch.long), ())


def _weigh_by(chosen: EnsembleSettings) -> Literal["norm", "deviation"]:
    """A target is a score, which knows windows by the norm of the whole field."""
    return "norm" if chosen.cells == "published" or chosen.target is not None else "deviation"


def fit_ensemble(
    loops: RepairLoops,
    groups: Sequence[ColumnGroup],
    fit: Windows,
    cache: SourceCache,
    settings: AdaptSettings,
    reporter: Reporter,
    *,
    held_out: HeldOut | None = None,
    recordings: int | None = None,
    carried: Carried = ALL_OF_IT,
    like: FittedEnsemble | None = None,
    exponents: Sequence[float] | None = None,
) -> tuple[FittedEnsemble, DepthErrors, list[dict[str, float]]]:
    """One pass over the fit split: the fitted ensemble, the errors by depth and band.

    ``settings`` are resolved. ``held_out`` are the blocks, by default those that the settings need.
    ``recordings`` as in :class:`SpectralEnsemble`, and ``carried`` with
    it, in new fits. ``like`` is an ensemble to be pooled with, whose cells, columns and weighting
    are then followed. ``exponents`` are the candidates for the weighting of windows; default that
    of the settings, or all if they name a target. The third result, with a target, are the held-out
    scores of each.
    """
    fields, chosen = fit.fields, settings.ensemble
    held_out = held_out_blocks(fit, settings) if held_out is None else held_out
    number = int(held_out.group.max()) + 1
    if like is None:
        centred = chosen.cells != "published"
        columns = columns_of(groups, settings, members=len(loops.modules), centred=centred)
        cells, leads = partition(chosen, fields, columns, blocks=number)
        plan = _plan(chosen, fields, columns, leads, carried)
    else:
        columns, cells, plan = like.columns, like.cells, like.plan
    units = _units(fit, held_out) if plan.ridge == "nested" else plan.units
    plan = replace(plan, recordings=recordings, units=units)
    exponents = _candidates(chosen) if exponents is None else exponents
    accumulator = GramAccumulator(
        columns,
        cells,
        measured=plan.measured,
        exponents=needed_exponents(exponents, chosen.target),
        groups=number,
        lead_groups=plan.lead_groups,
        weigh_by=plan.weigh_by,
    )
    sums, errors = gather_sums(
        loops,
        groups,
        fit,
        cache,
        accumulator,
        group=held_out.group,
        batch_size=settings.batch_size,
        title="fitting the ensemble",
        reporter=reporter,
    )
    ensemble, table = choose_exponent(
        cells, plan, columns, sums, held_out.folds, exponents, chosen.target
    )
    return ensemble, errors, table


def _candidates(chosen: EnsembleSettings) -> Sequence[float]:
    """The weightings of windows to try: that of the settings, or all where a target decides."""
    return (chosen.weight_exponent,) if chosen.target is None else EXPONENTS


def _units(fit: Windows, held_out: HeldOut) -> tuple[int, ...]:
    """The recording of each block; one for all where a block holds several."""
    names = fit.origins[:, 0].unique(return_inverse=True)[1]
    pairs = set(zip(held_out.group.tolist(), names.tolist(), strict=True))
    number = int(held_out.group.max()) + 1
    if len(pairs) > number:  # many recordings: blocks are what is apart
        return tuple(range(number))
    known = dict(pairs)
    return tuple(known.get(block, 0) for block in range(number))


def _plan(
    chosen: EnsembleSettings, fields: Fields, columns: Columns, leads: int, carried: Carried
) -> FitPlan:
    """What the ensemble is asked for."""
    return FitPlan(
        chosen.ridge if chosen.cells == "published" else "nested",
        fields.measured,
        weight_exponent=chosen.weight_exponent,
        base_column=chosen.base_column,
        depths=None if chosen.cells == "published" else columns.depths,
        ridge_grid=chosen.ridge_grid,
        lead_groups=leads,
        centred=columns.centred,
        weigh_by=_weigh_by(chosen),
        **carried._asdict(),
    )
