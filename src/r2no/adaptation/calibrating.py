"""Calibration: one more pass over the fit split, with weights that never saw what they forecast.

Residuals of every held-out block come from the weights of its own fold (M7). Their sizes are kept
in a file while the scale is chosen, then counted by it (M14).
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from r2no import devices, ranks, storage
from r2no.adaptation.model import AdaptedModel
from r2no.data.window import Windows, collate
from r2no.ensemble import HeldOut
from r2no.ensemble.bands import Bands, Scoring
from r2no.ensemble.calibration import Calibration
from r2no.ensemble.compose import CellWeights
from r2no.ensemble.familiar import Familiar, described
from r2no.progress import Reporter
from r2no.training import SourceCache

#: Of more windows than these, or than a gigabyte holds, some are taken, evenly.
_MOST_WINDOWS, _MOST_BYTES = 512, 2**30


@torch.no_grad()
def calibrated(
    model: AdaptedModel,
    windows: Windows,
    held_out: HeldOut,
    cache: SourceCache,
    reporter: Reporter,
    train: Windows | None = None,
) -> AdaptedModel:
    """The model with bands from the windows it was fitted to, if its settings ask for them.

    A fit that held nothing out has none. The alarm knows windows of ``train`` as well: it asks for
    histories only, and the more recordings it knows, the better it tells a new kind from a new one.
    """
    calibration = None
    if model.settings.bands is True and held_out.folds:
        task = _Task(model, windows, held_out, cache)
        with tempfile.TemporaryDirectory(prefix="r2no-") as folder:
            sizes = task.residuals(Path(folder) / "sizes", reporter)
            calibration = Calibration(task.bands(sizes), task.familiar(train))
            del sizes
    return replace(model, ensemble=model.ensemble.settled(), calibration=calibration)


class _Task:
    """The windows that calibrate, by fold, and what is gathered over them."""

    def __init__(
        self, model: AdaptedModel, windows: Windows, held_out: HeldOut, cache: SourceCache
    ) -> None:
        self._model, self._windows, self._cache = model, windows, cache
        self._held_out, self._measured = held_out, list(model.fields.measured)
        frames, *grid, _ = model.fields.target_shape
        self._shape = (frames, *grid, len(self._measured))
        most = min(_MOST_WINDOWS, max(_MOST_BYTES // (4 * int(np.prod(self._shape))), 1))
        scored = torch.tensor([g for _, score in held_out.folds for g in score])
        judged = torch.isin(held_out.group, scored).nonzero()[:, 0]
        self._numbers = judged[:: -(-len(judged) // most)]  # of the windows that are used
        self._groups = held_out.group[self._numbers]
        self._mine: list[list[int]] = []  # rows of this process, batch by batch
        groups = int(held_out.group.max()) + 1
        self._totals, self._counts = torch.zeros(2, groups, *self._shape)
        history = windows[int(self._numbers[0])].history[None, ..., self._measured]
        width = described(history).shape[1]
        self._features = torch.zeros(len(self._numbers), width, dtype=torch.float64)

    def residuals(self, path: Path, reporter: Reporter) -> np.ndarray:
        """|y - R(X)| of each window, NaN in gaps, by the weights of the fold that scores it."""
        shape = (len(self._numbers), *self._shape)
        sizes = storage.scratch_array(path, np.float32, shape)
        ensemble, size = self._model.ensemble, self._model.settings.batch_size
        with reporter.step("calibrating bands", len(self._numbers)) as step:
            for fold, weights in enumerate(ensemble.held_out_weights()):
                spread = ensemble.spread_of(weights)
                score = torch.tensor(self._held_out.folds[fold][1])
                rows = torch.isin(self._groups, score).nonzero()[:, 0]
                for number, part in enumerate(rows.split(size)):
                    if number % ranks.world_size() == ranks.rank():
                        with devices.memory_named(len(part), self._attempt(part, spread)):
                            sizes[part.numpy()] = self._sizes(part, spread)
                        self._mine.append(part.tolist())
                    step.advance(len(part))
        ranks.add_up(self._totals, self._counts, self._features)
        return sizes

    def _attempt(self, rows: Tensor, spread: CellWeights) -> Callable[[int], np.ndarray]:
        return lambda size: self._sizes(rows[:size], spread)

    def _sizes(self, rows: Tensor, spread: CellWeights) -> np.ndarray:
        """Those of a batch, added to the sums of their groups."""
        numbers = self._numbers[rows].tolist()
        window = collate([self._windows[number] for number in numbers])
        forecast = self._model.compose(window.history, self._cache[numbers], spread)
        sizes = (window.target - forecast)[..., self._measured].abs().float()
        if window.mask is not None:
            sizes = sizes.masked_fill(~window.mask[..., self._measured], torch.nan)
        groups = self._groups[rows]
        self._totals.index_add_(0, groups, sizes.nan_to_num(nan=0.0))
        self._counts.index_add_(0, groups, (~sizes.isnan()).float())
        self._features[rows] = described(window.history[..., self._measured])
        found: np.ndarray = sizes.numpy()
        return found

    def bands(self, sizes: np.ndarray) -> Bands:
        """The scale, then the scores by it."""
        scoring = Scoring(self._totals, self._counts, self._held_out.folds)
        for rows in self._mine:
            for row in rows:
                scoring.add(int(self._groups[row]), torch.from_numpy(np.array(sizes[row])))
        ranks.add_up(scoring.scores)
        return scoring.bands()

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
