"""The fit split: what it must be, and the one pass that fits the ensemble to it."""

from collections.abc import Sequence
from typing import Literal

import torch

from r2no.adaptation.config import AdaptSettings, EnsembleSettings
from r2no.adaptation.trajectories import Trajectories, gather_sums
from r2no.adaptation.weighting import EXPONENTS, choose_exponent, needed_exponents
from r2no.data.window import Windows
from r2no.ensemble import (
    DepthErrors,
    FitPlan,
    FittedEnsemble,
    GramAccumulator,
    HeldOut,
    blocks,
    halves,
)
from r2no.errors import GridMismatchError
from r2no.progress import Reporter
from r2no.spectral import FourierCells
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
    _held_out(fit, settings)


def _held_out(fit: Windows, settings: AdaptSettings) -> HeldOut:
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
    loops: Trajectories,
    fit: Windows,
    cache: SourceCache,
    settings: AdaptSettings,
    reporter: Reporter,
    *,
    recordings: int | None = None,
    like: FitPlan | None = None,
    exponents: Sequence[float] | None = None,
) -> tuple[FittedEnsemble, DepthErrors, list[dict[str, float]]]:
    """One pass over the fit split: the fitted ensemble, the errors by depth and band.

    ``recordings`` as in :class:`SpectralEnsemble`. ``like`` is the plan of an ensemble to be pooled
    with, whose columns and weighting are then followed. ``exponents`` are the candidates for the
    weighting of windows; default that of the settings, or all if they name a target. The third
    result, with a target, are the held-out scores of each.
    """
    fields, chosen = fit.fields, settings.ensemble
    cells = chosen.partition(fields.grid)
    how = FitPlan(
        chosen.ridge if chosen.cells == "published" else "nested",
        fields.measured,
        weight_exponent=chosen.weight_exponent,
        base_column=chosen.base_column,
        ridge_grid=chosen.ridge_grid,
        lead_groups=chosen.lead_groups,
        centred=chosen.cells != "published" if like is None else like.centred,
        weigh_by=_weigh_by(chosen) if like is None else like.weigh_by,
        recordings=recordings,
    )
    columns = how.columns(len(loops.modules), loops.steps)
    errors = DepthErrors.empty(
        FourierCells.bands(fields.grid),
        members=len(loops.modules),
        steps=loops.steps,
        measured=fields.measured,
    )
    if exponents is None:
        exponents = (chosen.weight_exponent,) if chosen.target is None else EXPONENTS
    plan = _held_out(fit, settings)
    accumulator = GramAccumulator(
        columns,
        cells,
        measured=how.measured,
        exponents=needed_exponents(exponents, chosen.target),
        groups=int(plan.group.max()) + 1,
        lead_groups=how.lead_groups,
        weigh_by=how.weigh_by,
    )
    sums = gather_sums(
        loops,
        fit,
        cache,
        accumulator,
        errors,
        group=plan.group,
        batch_size=settings.batch_size,
        title="fitting the ensemble",
        reporter=reporter,
    )
    ensemble, table = choose_exponent(
        cells, how, columns, sums, plan.folds, exponents, chosen.target
    )
    return ensemble, errors, table
