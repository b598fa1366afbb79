"""The fit split: what it must be, and the one pass that fits the ensemble to it.

Windows count by their norm to the -p. With p = 0 a fit minimises the squared error itself, with
p = 2 the squared relative error; in between, p = 1 is the published choice. Which generalises best
for a score is not the same question: held-out blocks decide it, judged with p = 0 for the RMSE and
p = 2 for the relative L2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from r2no import checks, devices
from r2no._types import Number
from r2no.adaptation.columns import columns_of, partition
from r2no.adaptation.config import AdaptSettings, EnsembleSettings, Target
from r2no.adaptation.groups import ColumnGroup
from r2no.adaptation.loops import RepairLoops, gather_sums
from r2no.data.window import Fields, Windows
from r2no.ensemble import (
    Columns,
    DepthErrors,
    FitPlan,
    FittedEnsemble,
    Fold,
    GramAccumulator,
    GramSums,
    HeldOut,
    blocks,
    halves,
)
from r2no.ensemble.nested import ALL_OF_IT, Carried
from r2no.errors import EmptySplitError, GridMismatchError
from r2no.progress import Reporter
from r2no.spectral import FourierCells
from r2no.training import Split

#: Exponents p of the window weight to try, and the one that judges for each target.
_EXPONENTS = (0.0, 1.0, 2.0)
_JUDGE: dict[Target, float] = {"rmse": 0.0, "rel_l2": 2.0}
_LESS = (
    "`r2no doctor` says how much it takes. Give the ensemble fewer cells (`radial`, `angular`) or "
    "`lead_groups`, or make room."
)


def check_windows(name: str, windows: Windows) -> None:
    """Refuse what are no windows, or none, as argument ``name``."""
    checks.instance(name, windows, Windows)  # type: ignore[type-abstract]
    if len(windows) == 0:
        raise EmptySplitError(
            f"`{name}` holds no windows. Give at least one trajectory as long as history plus "
            "horizon."
        )


def common_fields(train: Windows, fit: Windows) -> Fields:
    """What both splits agree on; splits that differ, or have no windows, are refused."""
    check_windows("train", train)
    check_windows("fit", fit)
    if not train.fields.agrees(fit.fields):
        raise GridMismatchError(
            "`train` and `fit` must have the same grid, frames and channels, but got "
            f"{train.fields} and {fit.fields}."
        )
    return fit.fields


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


def fit_ensemble(
    loops: RepairLoops,
    groups: Sequence[ColumnGroup],
    split: Split,
    settings: AdaptSettings,
    reporter: Reporter,
    *,
    held_out: HeldOut | None = None,
    recordings: int | None = None,
    carried: Carried = ALL_OF_IT,
    like: FittedEnsemble | None = None,
) -> tuple[FittedEnsemble, DepthErrors, list[dict[str, float]]]:
    """One pass over the fit split: the fitted ensemble, the errors by depth and band.

    ``settings`` are resolved. ``held_out`` are the blocks, by default those that the settings need.
    ``recordings`` as in :class:`SpectralEnsemble`, and ``carried`` with it, in new fits. ``like``
    is an ensemble to be pooled with, whose cells, columns and weighting are then followed. The
    third result, where the settings name a target, are the held-out scores of each weighting.
    """
    fit, chosen = split[0], settings.ensemble
    held_out = held_out_blocks(fit, settings) if held_out is None else held_out
    number = int(held_out.group.max()) + 1
    if like is None:
        centred = chosen.cells != "published"
        columns = columns_of(groups, settings, members=len(loops.modules), centred=centred)
        cells, leads = partition(chosen, fit.fields, columns, blocks=number)
        plan = _plan(chosen, fit.fields, columns, leads, carried)
        exponents = (chosen.weight_exponent,) if chosen.target is None else _EXPONENTS
    else:
        columns, cells, plan = like.columns, like.cells, like.plan
        exponents = (plan.weight_exponent,)
    units = _units(fit, held_out) if plan.ridge == "nested" else plan.units
    plan = replace(plan, recordings=recordings, units=units)
    judges = () if chosen.target is None else _JUDGE.values()
    accumulator = GramAccumulator(
        columns,
        cells,
        measured=plan.measured,
        exponents=tuple(sorted({*exponents, *judges})),
        groups=number,
        lead_groups=plan.lead_groups,
        weigh_by=plan.weigh_by,
    )
    sums, errors = gather_sums(
        loops,
        groups,
        split,
        accumulator,
        group=held_out.group,
        batch_size=settings.batch_size,
        title="fitting the ensemble",
        reporter=reporter,
    )
    ensemble, table = _choose_exponent(
        cells, plan, columns, sums, held_out.folds, exponents, chosen.target
    )
    return ensemble, errors, table


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
    published = chosen.cells == "published"
    norm = published or chosen.target is not None  # scores know windows by the norm of the field
    return FitPlan(
        chosen.ridge if published else "nested",
        fields.measured,
        weight_exponent=chosen.weight_exponent,
        base_column=chosen.base_column,
        depths=None if published else columns.depths,
        ridge_grid=chosen.ridge_grid,
        lead_groups=leads,
        centred=columns.centred,
        weigh_by="norm" if norm else "deviation",
        **carried._asdict(),
    )


def _choose_exponent(
    cells: FourierCells,
    plan: FitPlan,
    columns: Columns,
    sums: Mapping[Number, GramSums],
    folds: tuple[Fold, ...],
    candidates: Sequence[float],
    target: Target | None,
) -> tuple[FittedEnsemble, list[dict[str, float]]]:
    """The fit of the candidate with the lowest held-out error for ``target``.

    Also a table: for each candidate, held-out RMSE and relative L2 over those of the source.
    Without a target there is one candidate, judged by its own weighting, and no table.
    """

    def fit(exponent: float, judge: float | None = None) -> FittedEnsemble:
        with devices.work_named("The fit of the weights", _LESS):
            return FittedEnsemble.solve(
                cells,
                replace(plan, weight_exponent=exponent),
                columns,
                sums[exponent],
                folds,
                scoring_sums=None if judge is None else sums[judge],
            )

    if target is None:
        (exponent,) = candidates
        return fit(exponent), []
    fitted: dict[tuple[float, Target], FittedEnsemble] = {}
    table = []
    for exponent in candidates:
        row = {"exponent": exponent}
        for score, judge in _JUDGE.items():
            each = fitted[exponent, score] = fit(exponent, judge)
            row[score] = _over_source(each, folds, sums[judge])
        table.append(row)
    best = min(table, key=lambda row: (row[target], abs(row["exponent"] - 1)))
    return fitted[best["exponent"], target], table


def _over_source(fitted: FittedEnsemble, folds: tuple[Fold, ...], judging: GramSums) -> float:
    """√(held-out error / that of the source); a source without error leaves nothing to gain."""
    source = sum(float(judging.total(score).energy.sum()) for _, score in folds)
    return (max(fitted.held_out_score, 0.0) / source) ** 0.5 if source > 0 else 1.0
