"""Readouts: every way to turn the trajectories into a forecast, scored in one pass (M8, M9).

Each is a weight array over the same columns: zeros give the source, a one-hot one depth, equal
weights a mean, one cell a global combination, many cells R2NO.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from r2no import devices
from r2no._types import Operator
from r2no.adaptation.groups import RECALL, group_forecasts
from r2no.adaptation.model import AdaptedModel
from r2no.data.coordinates import check_alike
from r2no.data.window import Window, Windows
from r2no.ensemble import Columns, DepthErrors, FittedEnsemble, Readouts
from r2no.progress import SILENT, Reporter
from r2no.scoring import Depths, Forecaster, Metrics, Observer, Watch, score
from r2no.spectral import FourierCells


def readouts(model: AdaptedModel) -> dict[str, FittedEnsemble]:
    """The readouts of the paper for a fitted model, keyed by name.

    ``irno_final`` and ``irno_selected`` read the first member at depth L and at ℓ* (lowest RMSE
    on the fit split), where loops start from the source; ``mean_final``, ``mean_all``, ``global``
    use all members; ``r2no_m0`` none, only what costs nothing, ``r2no_m1`` the first member,
    ``r2no_mM`` all of them.
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

        if loops.start is None:
            selected = columns.one_hot(0, model.fit_errors.best_depth())
            final = columns.one_hot(0, loops.steps)
            found = {"irno_final": fixed(final), "irno_selected": fixed(selected)}
        found |= {
            "mean_final": fixed(columns.mean_final()),
            "mean_all": fixed(columns.mean_all()),
            "global": ensemble.derive(cells=cell, ridge="auto", without=free, lead_groups=1),
        }
    for fewer in ({0} if free else set()) | ({1} if members else set()):
        if fewer < members:
            found[f"r2no_m{fewer}"] = ensemble.derive(members=fewer)
    return found | {f"r2no_m{members}": ensemble}


def further_forecasts(model: AdaptedModel) -> dict[str, FittedEnsemble]:
    """What else needs no adaptation, each as it is: mean field, further operators, own groups.

    Recalled frames are left out; the last one is persistence.
    """
    cell, measured = FourierCells.single(model.fields.grid), model.fields.measured
    labels = [label for group in model.groups for label in group.labels if group.name != RECALL]
    one = torch.ones(1, dtype=torch.float64)
    return {
        label: FittedEnsemble.from_weights(
            one, Columns(0, (), base=False, further=(label,)), cell, measured=measured
        )
        for label in labels
    }


def observe(
    model: AdaptedModel,
    windows: Windows,
    chosen: Mapping[str, FittedEnsemble],
    observers: Sequence[Observer],
    *,
    operators: Mapping[str, Operator] | None = None,
    title: str,
    reporter: Reporter = SILENT,
) -> dict[str, float]:
    """One pass over a split with one roll-out per batch for all readouts; observers see all of it.

    Forecasts, in this order, are those of ``operators``, the ``source`` and the readouts. Returns
    the seconds that each part took.

    Raises:
        ShapeError, GridMismatchError, DataError: as :meth:`AdaptedModel.evaluate` does.
    """
    check_alike(model.fields, windows.fields)
    return score(
        _roll_out(model, chosen, operators or {}),
        windows,
        observers,
        batch_size=model.settings.batch_size,
        device=model.device,
        title=title,
        reporter=reporter,
    )


def _roll_out(
    model: AdaptedModel, chosen: Mapping[str, FittedEnsemble], others: Mapping[str, Operator]
) -> Forecaster:
    """What :func:`r2no.scoring.score` asks for the forecasts of a batch."""
    loops = model.loops
    joint = Readouts({name: one.spread for name, one in chosen.items()}) if chosen else None

    def forecasts(numbers: range, window: Window, watch: Watch) -> Iterator[tuple[str, Tensor]]:
        """Roll out one batch for all readouts; the watch sees every iterate and the clock."""
        for name, operator in others.items():
            yield name, devices.answer(operator, window.history)
        watch.charge("readouts")
        source = model.source_forecast(window.history)
        watch.charge("source")
        composition = None if joint is None else joint.compose(source, spectra=watch.spectra)
        first = loops.first(window.history, source) if loops.modules else source
        for member in range(len(loops.modules)):
            watch.iterate(member, 0, first)
        if composition is not None:
            for label, forecast in group_forecasts(model.groups, window.history, source):
                composition.put(label, forecast)
        watch.charge("readouts")
        for member, depth, iterate in loops(window.history, first):
            watch.charge("rollout")
            spectrum = None if composition is None else composition.add(member, depth, iterate)
            watch.iterate(member, depth, iterate, spectrum)
            watch.charge("readouts")
        yield "source", source
        if composition is not None:
            yield from composition.results()

    return forecasts


def score_readouts(
    model: AdaptedModel,
    windows: Windows,
    chosen: Mapping[str, FittedEnsemble],
    *,
    operators: Mapping[str, Operator] | None = None,
    observers: Sequence[Observer] = (),
    reporter: Reporter = SILENT,
) -> tuple[dict[str, dict[str, float]], DepthErrors]:
    """Score readouts, the source and other operators on a split, from one roll-out.

    ``observers`` see every batch with its forecasts, so that reports need no second roll-out.

    Returns the metrics by name (``operators`` first, then ``source``, then the readouts) and the
    errors by depth and band of the roll-out.
    """
    metrics, depths = Metrics(model.fields.measured), Depths(model.fit_errors.cleared())
    observe(
        model,
        windows,
        chosen,
        [depths, metrics, *observers],
        operators=operators,
        title="scoring on test",
        reporter=reporter,
    )
    depths.errors.collect()
    return metrics.compute(), depths.errors
