"""Where a repair loop starts: from the source, or from the instant forecast (M16).

The instant forecast is the source composed with the columns that cost nothing, by weights fitted on
the train split: the modules are trained there, and the fit split, which judges them, stays unseen.
It is a column group too, so that cells can use it beside the repairs of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from r2no import storage
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.fitting import fit_ensemble
from r2no.adaptation.groups import INSTANT, ColumnGroup, group_forecasts
from r2no.adaptation.loops import RepairLoops
from r2no.data.window import Windows, gather
from r2no.ensemble import FittedEnsemble
from r2no.progress import Reporter
from r2no.training import SourceCache, operator_identity

#: What a loop may start from, for settings and for people.
STARTS = {"source": "source", INSTANT: "instant forecast"}


@dataclass(frozen=True, eq=False)
class Instant:
    """The source composed with ``groups`` by weights that are settled.

    Attributes:
        ensemble: The weights, without sums.
        groups: The columns that they weigh.
    """

    ensemble: FittedEnsemble
    groups: tuple[ColumnGroup, ...]
    name = INSTANT
    labels = (INSTANT,)
    partners = ()

    @torch.no_grad()
    def __call__(self, history: Tensor, source: Tensor) -> Tensor:
        """The instant forecast."""
        composition = self.ensemble.compose(source)
        for label, forecast in group_forecasts(self.groups, history, source, self._used):
            composition.put(label, forecast)
        return composition.result()

    @property
    def key(self) -> str:
        """Hash of what it was fitted with; not of its weights, whose last bits machines differ in.

        Source and train split have keys of their own.
        """
        fitted = self.ensemble
        others = [operator_identity(g.operator) for g in self.groups if hasattr(g, "operator")]
        given = (fitted.plan.json(), fitted.columns.json(), fitted.cells.state()[1], *others)
        return f"{INSTANT}-{storage.fingerprint(*given)[:12]}"

    @cached_property
    def _used(self) -> set[str]:
        return self.ensemble.spread.labels

    def forecasts(self, history: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The instant forecast as a column."""
        yield INSTANT, self(history, source)


def instant(
    groups: Sequence[ColumnGroup],
    loops: RepairLoops,
    train: Windows,
    cache: SourceCache,
    settings: AdaptSettings,
    reporter: Reporter,
) -> Instant:
    """The instant forecast of resolved settings, fitted on the train split."""
    ensemble, _, _ = fit_ensemble(loops, groups, train, cache, settings, reporter)
    return Instant(ensemble.settled().without_sums(), tuple(groups))


class StartCache(SourceCache):
    """Starts of the windows of a split, composed from the source's cached forecasts when read."""

    def __init__(self, start: Instant, windows: Windows, cache: SourceCache) -> None:
        super().__init__(cache.path.with_stem(f"{cache.path.stem}-{start.key}"))  # no file
        self._start, self._windows, self._cache = start, windows, cache

    def __getitem__(self, numbers: list[int] | range) -> Tensor:
        """Where the loops of the windows with these numbers start."""
        history = gather(self._windows, numbers).history
        return self._start(history, self._cache[numbers])
