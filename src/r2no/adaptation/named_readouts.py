"""Readouts: every way to turn the trajectories into a forecast, scored in one pass (M8, M9).

Each is a weight array over the same columns: zeros give the source, a one-hot one depth, equal
weights a mean, one cell a global combination, many cells R2NO.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from r2no._types import Operator
from r2no.adaptation.groups import group_forecasts
from r2no.adaptation.model import AdaptedModel
from r2no.data.window import Window, Windows, batches
from r2no.ensemble import Columns, DepthErrors, FittedEnsemble, Readouts
from r2no.metrics import Accumulator
from r2no.progress import Reporter
from r2no.spectral import FourierCells

#: Sees (window numbers, batch, forecasts by name) of each scored batch.
Observer = Callable[[range, Window, Mapping[str, Tensor]], None]


def readouts(model: AdaptedModel) -> dict[str, FittedEnsemble]:
    """The readouts of the paper for a fitted model, keyed by name.

    ``irno_final`` and ``irno_selected`` read the first member at depth L and at ℓ* (lowest RMSE
    on the fit split); ``mean_final``, ``mean_all``, ``global`` use all members; ``r2no_m0`` none,
    only what costs nothing, ``r2no_m1`` the first member, ``r2no_mM`` all of them.
    """
    loops, cell = model.loops, FourierCells.single(model.fields.grid)
    members, ensemble = len(loops.modules), model.ensemble
    free = [group.name for group in model.groups]
    found: dict[str, FittedEnsemble] = {}
    if members:
        columns = Columns(members, tuple(range(1, loops.steps + 1)))

        def fixed(weights: torch.Tensor) -> FittedEnsemble:
            measured = model.fields.measured
            return FittedEnsemble.from_weights(weights, columns, cell, measured=measured)

        found = {
            "irno_final": fixed(columns.one_hot(0, loops.steps)),
            "irno_selected": fixed(columns.one_hot(0, model.fit_errors.best_depth())),
            "mean_final": fixed(columns.mean_final()),
            "mean_all": fixed(columns.mean_all()),
            "global": ensemble.derive(cells=cell, ridge="auto", without=free, lead_groups=1),
        }
    for fewer in ({0} if free else set()) | ({1} if members else set()):
        if fewer < members:
            found[f"r2no_m{fewer}"] = ensemble.derive(members=fewer)
    return found | {f"r2no_m{members}": ensemble}


@torch.no_grad()
def score_readouts(
    model: AdaptedModel,
    windows: Windows,
    chosen: Mapping[str, FittedEnsemble],
    *,
    operators: Mapping[str, Operator] | None = None,
    observe: Observer | None = None,
    reporter: Reporter | None = None,
) -> tuple[dict[str, dict[str, float]], DepthErrors]:
    """Score readouts, the source and other operators on a split, from one roll-out.

    ``observe`` is shown every batch with its forecasts, so that reports need no second roll-out.

    Returns the metrics by name (``operators`` first, then ``finetuned`` for the source, then the
    readouts) and the errors by depth and band of the roll-out.
    """
    reporter, operators = reporter or Reporter(quiet=True), operators or {}
    names = [*operators, "finetuned", *chosen]
    scores = {name: Accumulator(measured=model.fields.measured) for name in names}
    errors = DepthErrors.empty(
        model.fit_errors.cells,
        members=len(model.loops.modules),
        steps=model.loops.steps,
        measured=model.fields.measured,
    )
    joint = Readouts({name: ensemble.spread for name, ensemble in chosen.items()})
    with reporter.step("scoring on test", len(windows)) as step:
        for numbers, window in batches(windows, model.settings.batch_size):
            source = model.source_forecast(window.history)
            composition = joint.compose(source)
            errors.begin(window.target)
            for member in range(len(model.loops.modules)):
                errors.add(member, 0, source, window.target, window.mask)
            for label, forecast in group_forecasts(model.groups, window.history, source):
                composition.put(label, forecast)
            for member, depth, iterate in model.loops(window.history, source):
                errors.add(member, depth, iterate, window.target, window.mask)
                composition.add(member, depth, iterate)
            forecasts = {name: operator(window.history) for name, operator in operators.items()}
            forecasts["finetuned"] = source
            forecasts |= dict(composition.results())
            for name, forecast in forecasts.items():
                scores[name].update(forecast, window.target, window.mask)
            if observe is not None:
                observe(numbers, window, forecasts)
            step.advance(len(numbers))
    return {name: score.compute() for name, score in scores.items()}, errors
