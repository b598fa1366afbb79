"""Calibration: one more pass over the fit split, with weights that never saw what they forecast.

Residuals of every held-out block come from the weights of its own fold (M7); bands are made from
sums and a sample of their sizes (M14).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from r2no import devices, ranks
from r2no.adaptation.model import AdaptedModel
from r2no.data.window import Windows, gather
from r2no.ensemble import HeldOut
from r2no.ensemble.bands import Bands, Calibration
from r2no.ensemble.compose import CellWeights
from r2no.ensemble.familiar import Familiar, described
from r2no.ensemble.holdout import outer_folds
from r2no.ensemble.residuals import ResidualGatherer
from r2no.ensemble.scale import steepness
from r2no.progress import Reporter
from r2no.training import SourceCache

#: Of more windows than these some are taken, evenly.
_MOST_WINDOWS = 512


@torch.no_grad()
def calibrated(
    model: AdaptedModel,
    windows: Windows,
    held_out: HeldOut,
    cache: SourceCache,
    reporter: Reporter,
    train: Windows | None = None,
    weights: Sequence[Tensor] | None = None,
) -> AdaptedModel:
    """The model with bands from the windows it was fitted to, if its settings ask for them.

    A fit that held nothing out has none. The alarm knows windows of ``train`` as well: it asks for
    histories only, and the more recordings it knows, the better it tells a new kind from a new one.
    ``weights``, by fold, are by default those that the ensemble knows of its own.
    """
    calibration = None
    if model.settings.bands is True and held_out.folds:
        judging = replace(held_out, folds=model.ensemble.judging_folds)
        task = _Task(model, windows, judging, cache)
        apart = model.ensemble.held_out_weights() if weights is None else weights
        calibration = Calibration(task.bands(apart, reporter), task.familiar(train))
    return replace(model, ensemble=model.ensemble.settled(), calibration=calibration)


class _Task:
    """The windows that calibrate, by fold, and what is gathered over them."""

    def __init__(
        self, model: AdaptedModel, windows: Windows, held_out: HeldOut, cache: SourceCache
    ) -> None:
        self._model, self._windows, self._cache = model, windows, cache
        self._held_out, self._measured = held_out, list(model.fields.measured)
        scored = torch.tensor([g for _, score in held_out.folds for g in score])
        judged = torch.isin(held_out.group, scored).nonzero()[:, 0]
        self._numbers = judged[:: -(-len(judged) // _MOST_WINDOWS)]  # of the windows that are used
        self._groups = held_out.group[self._numbers]
        shape = (*model.fields.target_shape[:-1], len(self._measured))
        self._gathered = ResidualGatherer(
            self._groups,
            held_out.folds,
            shape,
            steep=True,
            outer=outer_folds(held_out, windows.origins, horizon=model.fields.horizon_frames),
        )
        history = windows[int(self._numbers[0])].history[None, ..., self._measured]
        width = described(history).shape[1]
        self._features = torch.zeros(len(self._numbers), width, dtype=torch.float64)

    def bands(self, apart: Sequence[Tensor], reporter: Reporter) -> Bands:
        """From |y - R(X)| of each window, by the weights of the fold that scores it."""
        ensemble, size = self._model.ensemble, self._model.settings.batch_size
        with reporter.step("calibrating bands", len(self._numbers)) as step:
            for fold, weights in enumerate(apart):
                spread = ensemble.spread_of(weights)
                score = torch.tensor(self._held_out.folds[fold][1])
                rows = torch.isin(self._groups, score).nonzero()[:, 0]
                for number, part in enumerate(rows.split(size)):
                    if number % ranks.world_size() == ranks.rank():
                        with devices.memory_named(len(part), self._attempt(part, spread)):
                            found = self._sizes(part, spread)
                        self._gathered.add(part, *found)
                    step.advance(len(part))
        ranks.add_up(*self._gathered.sums, self._features)
        return Bands.of(self._gathered.residuals())

    def _attempt(self, rows: Tensor, spread: CellWeights) -> Callable[[int], tuple[Tensor, Tensor]]:
        return lambda size: self._sizes(rows[:size], spread)

    def _sizes(self, rows: Tensor, spread: CellWeights) -> tuple[Tensor, Tensor]:
        """Those of a batch, NaN in gaps, and the steepness of its forecasts.

        Its histories are described on the way.
        """
        numbers = self._numbers[rows].tolist()
        window = gather(self._windows, numbers)
        forecast = self._model.compose(window.history, self._cache[numbers], spread)
        forecast = forecast[..., self._measured]
        sizes = (window.target[..., self._measured] - forecast).abs().float()
        if window.mask is not None:
            sizes = sizes.masked_fill(~window.mask[..., self._measured], torch.nan)
        self._features[rows] = described(window.history[..., self._measured])
        return sizes, steepness(forecast).float()

    def familiar(self, train: Windows | None) -> Familiar:
        """The windows as new ones are held against them, those of another split too."""
        fields = self._model.fields
        reach = fields.history_frames + fields.horizon_frames  # beyond it no frame is shared
        known = Familiar(self._features, self._windows.origins[self._numbers], reach)
        if train is None:
            return known
        numbers = range(0, len(train), -(-len(train) // _MOST_WINDOWS))
        features = torch.zeros(len(numbers), self._features.shape[1], dtype=torch.float64)
        for row in ranks.share(range(len(numbers))):
            features[row] = described(train[numbers[row]].history[None, ..., self._measured])[0]
        ranks.add_up(features)
        return known.merge(Familiar(features, train.origins[list(numbers)], reach))
