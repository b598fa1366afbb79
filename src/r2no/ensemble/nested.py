"""Nested cells: a mean of fits from coarse to fine, as held-out data weigh them (M7).

A chain is a partition by itself, or one after a coarser one (:mod:`r2no.ensemble.chains`); its
penalties are those of lowest held-out error. The weights are a mean over chains, the source (w = 0)
and other forecasts that need no adaptation, with the shares of lowest held-out error
(:mod:`r2no.ensemble.stacking`).

What is reported is judged outside of that choice: the gain of every block is that of a mean whose
penalties and shares were chosen without the blocks of its fold, made of fits that never saw them.
Of two or three recordings, whose blocks are stretches of each, the whole choice is made again
without each of them, and judged on it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from r2no._repr import brief_repr
from r2no.ensemble.chains import Chain, ChainSearch, Trial
from r2no.ensemble.columns import Columns
from r2no.ensemble.gram import GramSums
from r2no.ensemble.holdout import Fold
from r2no.ensemble.levels import Level
from r2no.ensemble.stacking import stacking_shares
from r2no.ensemble.verdict import Verdict, judge
from r2no.errors import EmptySplitError
from r2no.spectral import FourierCells

#: Penalties tried on every partition, in shares of a column's own energy.
NESTED_GRID = (1e-8, 1e-5, 1e-3, 1e-2, 1e-1, 1.0, 10.0)

#: So many chains, those of lowest held-out error, are weighed against each other.
_MOST_CHAINS = 24

#: From so many recordings on, held-out blocks are whole recordings and show what carries over.
ENOUGH_RECORDINGS = 4

#: Chains that would count less than this are left out.
_LEAST_SHARE = 1e-3

SOURCE = "source"


@dataclass(frozen=True, eq=False)
class NestedFit:
    """What the nested estimator decided.

    Attributes:
        weights: On the finest cells.
        chains: What they are the mean of, largest share first; the source has the rest.
        gains: Held-out gain over the source of every block, each judged by a fit without it.
        before: Held-out error of the source of every block.
        rivals: Held-out error of every block of each other forecast that needs no adaptation.
        units: Recording of every block; none if not known.
        apart: By judging fold, the weights that its blocks were judged by; not stored, since only
            the pass that calibrates bands needs them.
        spread: Standard deviation of the share of the source's squared error that weights of so few
            recordings remove, over the mean of as many, as seen elsewhere; 0 where the blocks tell.
        shortfall: Share of the source's squared error by which the fit on all blocks is expected to
            do better than those of the folds, which saw fewer.
    """

    weights: Float[Tensor, "cell channel column"]
    chains: tuple[Chain, ...]
    gains: Float[Tensor, " block"]
    before: Float[Tensor, " block"]
    rivals: Mapping[str, Float[Tensor, " block"]] = field(default_factory=dict)
    units: tuple[int, ...] = ()
    apart: tuple[Float[Tensor, "cell channel column"], ...] = ()
    spread: float = 0.0
    shortfall: float = 0.0

    @property
    def best_rival(self) -> str:
        """The forecast of lowest held-out error among those that need no adaptation."""
        errors = {SOURCE: self.before, **self.rivals}
        return min(errors, key=lambda name: float(errors[name].sum()))

    __repr__ = brief_repr

    @property
    def verdict(self) -> Verdict:
        """Deploy, or keep the best forecast that needs no adaptation, from the held-out gains."""
        best = self.best_rival
        rival = self.rivals.get(best, self.before)
        return judge(
            self.gains,
            self.before,
            rival=rival,
            name=best,
            units=self.units,
            spread=self.spread,
            shortfall=self.shortfall,
        )

    def deployed(self, columns: Sequence[str]) -> Float[Tensor, "cell channel column"]:
        """The weights, or those of the forecast that the verdict keeps."""
        if self.verdict.deploy:
            return self.weights
        kept = torch.zeros_like(self.weights)
        if self.verdict.kept != SOURCE:
            kept[..., columns.index(self.verdict.kept)] = 1.0
        return kept

    @property
    def main(self) -> tuple[Chain, ...]:
        """The three chains that count most, standing for the others too: enough to compare by."""
        first = self.chains[:3]
        factor = sum(c.share for c in self.chains) / (sum(c.share for c in first) or 1.0)
        return tuple(replace(chain, share=factor * chain.share) for chain in first)

    def decisions(self) -> dict[str, Any]:
        """What was decided, JSON-able."""
        return {
            "chains": [
                {
                    "levels": [list(size) for size in chain.levels],
                    "penalties": list(chain.penalties),
                    "share": chain.share,
                    "start": chain.start,
                    "free": chain.free,
                }
                for chain in self.chains
            ],
            "rivals": list(self.rivals),
            "units": list(self.units),
            "spread": self.spread,
            "shortfall": self.shortfall,
        }

    def tensors(self) -> dict[str, Tensor]:
        """What :meth:`from_decisions` needs besides."""
        parts = {"nested": self.weights, "gains": self.gains, "before": self.before}
        if self.rivals:
            parts["rivals"] = torch.stack(list(self.rivals.values()))
        return parts

    @classmethod
    def from_decisions(
        cls, decisions: dict[str, Any], tensors: Mapping[str, Tensor], *, leads: int = 1
    ) -> "NestedFit":
        """Inverse of :meth:`decisions` and :meth:`tensors`; reads those of earlier versions too.

        Those knew no levels of lead time: all but the root had the ``leads`` groups of the fit.
        """
        stored = decisions.get("chains", [{**decisions, "share": 1.0}])

        def level(radial: int, angular: int, groups: int | None = None) -> Level:
            return radial, angular, (leads if radial else 1) if groups is None else groups

        chains = tuple(
            Chain(
                tuple(level(*size) for size in chain["levels"]),
                tuple(chain["penalties"]),
                chain["share"],
                chain.get("start"),
                bool(chain.get("free", False)),
            )
            for chain in stored
        )
        names = decisions.get("rivals", [])
        rivals = dict(zip(names, tensors["rivals"], strict=True)) if names else {}
        parts = (tensors["nested"], chains, tensors["gains"], tensors["before"])
        spread, shortfall = (float(decisions.get(n, 0.0)) for n in ("spread", "shortfall"))
        units = tuple(decisions.get("units", ()))
        return cls(*parts, rivals, units, spread=spread, shortfall=shortfall)


class Carried(NamedTuple):
    """What other recordings say of few: how much they differ, v, and the spread of the gain."""

    variation: float
    spread: float  # of one recording, see NestedFit

    def kept(self, recordings: int) -> float:
        """Share of the weights that is kept where so many recordings were fitted, k/(k + v)."""
        return recordings / (recordings + self.variation)


#: Where the blocks tell by themselves.
ALL_OF_IT = Carried(1.0, 0.0)


def solve_nested(
    sums: GramSums,
    folds: Sequence[Fold],
    finest: FourierCells,
    *,
    judged: GramSums | None = None,
    grid: Sequence[float] = NESTED_GRID,
    leads: int = 1,
    recordings: int | None = None,
    columns: Columns | None = None,
    units: Sequence[int] = (),
    carried: Carried = ALL_OF_IT,
) -> NestedFit:
    """Weigh the chains on the folds, then fit them on all groups.

    Args:
        sums: Gram sums on the finest cells, by group (block of windows).
        folds: Pairs (groups to fit on, groups to score on); each scored group is a block.
        finest: The finest polar partition considered.
        judged: Sums of the same windows under the weighting that judges; default ``sums``.
        grid: Penalties tried.
        leads: Groups of lead time in the sums, the finest considered.
        recordings: Number k of recordings in ``sums``, if the weights are meant for others too:
            below four k/(k + v) of the weights is kept, whatever the blocks say.
        columns: What the columns are: further forecasts are rivals that need no adaptation, and
            chains may leave repairs out. None for columns that are only fitted.
        units: Recording of each group; none if not known.
        carried: What other recordings say of these; counts below four of them.
    """
    if not folds:
        raise EmptySplitError(
            "The nested fit needs blocks to hold out, but there are too few windows to part them. "
            "Give more windows, or a fixed partition and `ridge`."
        )
    search = ChainSearch(sums, folds, finest, tuple(grid), judged, leads=leads, columns=columns)
    few = few_recordings(recordings)
    chains, means = _settled(search, columns, carried.kept(few) if few else 1.0)
    weights, outer, apart = search.refit(chains), search, means
    if few and len(parts := _by_recording(folds, units)) > 1:
        outer, apart = _chosen_again(search, parts, columns, carried)
    source = outer.forecast()
    gains = source.errors - outer.errors_of_means(apart)
    further = columns.further if columns else ()
    return NestedFit(
        weights,
        tuple(chains),
        gains,
        source.errors,
        {name: outer.forecast(name).errors for name in further},
        tuple(units[block] for _, score in outer.folds for block in score) if units else (),
        tuple(search.levels.spread(mean) for mean in apart),
        carried.spread / math.sqrt(few) if few else 0.0,
        _shortfall(sums if judged is None else judged, outer.folds, weights, gains),
    )


def judging_folds(
    folds: Sequence[Fold], units: Sequence[int], recordings: int | None
) -> tuple[Fold, ...]:
    """The folds that the verdict rests on: those of the choice, or each recording left out."""
    parts = _by_recording(folds, units) if few_recordings(recordings) else []
    return tuple(part for part, _ in parts) if len(parts) > 1 else tuple(folds)


def few_recordings(recordings: int | None) -> int:
    """How many recordings, if their blocks do not show what carries over to others; else 0."""
    return recordings if recordings is not None and recordings < ENOUGH_RECORDINGS else 0


def _settled(
    search: ChainSearch, columns: Columns | None, trust: float
) -> tuple[list[Chain], list[Float[Tensor, "slot column"]]]:
    """The whole choice: chains and their shares; by fold, the mean that knew none of its blocks."""
    source = search.forecast()
    others = {name: search.forecast(name) for name in columns.further} if columns else {}
    trials = [*_best_chains(search, source, others), *others.values()]
    shares, means = _weighed(search, trials, trust)
    chains = [
        replace(trial.chain, share=share)
        for trial, share in zip(trials, shares.tolist(), strict=True)
        if share
    ]
    return sorted(chains, key=lambda chain: -chain.share), means


def _chosen_again(
    search: ChainSearch,
    parts: Sequence[tuple[Fold, list[Fold]]],
    columns: Columns | None,
    carried: Carried,
) -> tuple[ChainSearch, list[Float[Tensor, "slot column"]]]:
    """The whole choice without each recording, of :func:`_by_recording`: who judges, the means."""
    apart = []
    for (groups, _), inner in parts:
        chains, _ = _settled(search.judged_on(inner), columns, carried.kept(len(parts) - 1))
        apart.append(search.mean(chains, groups))
    return search.judged_on([part for part, _ in parts]), apart


def _by_recording(folds: Sequence[Fold], units: Sequence[int]) -> list[tuple[Fold, list[Fold]]]:
    """For each recording a fold that leaves it out, and what then still judges the others.

    Empty where the others cannot judge each other: their blocks are whole recordings, which the
    folds leave out as they are.
    """
    found = []
    for name in sorted(set(units)):
        own = {group for group, unit in enumerate(units) if unit == name}
        rest = tuple(group for group in range(len(units)) if group not in own)
        parts = [tuple(tuple(g for g in part if g not in own) for part in fold) for fold in folds]
        inner = [(fit, score) for fit, score in parts if fit and score]
        if not inner:
            return []
        found.append(((rest, tuple(sorted(own))), inner))
    return found


def _best_chains(search: ChainSearch, source: Trial, others: Mapping[str, Trial]) -> list[Trial]:
    """With all columns and with those that cost nothing; the best first."""
    found = search.trials(_starts(source, others))
    free = search.without_repairs()
    if free is not None:
        names = {name: free.forecast(name) for name in others}
        trials = free.trials(_starts(free.forecast(), names))
        found += [search.widened(trial, free) for trial in trials]
    return sorted(found, key=lambda trial: trial.error)[:_MOST_CHAINS]


def _starts(source: Trial, others: Mapping[str, Trial]) -> list[Trial]:
    """The source, and the best of the others if that is better."""
    better = [trial for trial in others.values() if trial.error < source.error]
    return [source, *sorted(better, key=lambda trial: trial.error)[:1]]


def _shortfall(
    sums: GramSums,
    folds: Sequence[Fold],
    weights: Float[Tensor, "cell channel column"],
    gains: Float[Tensor, " block"],
) -> float:
    """What the folds' gains lack for being of fits on a share f of the data.

    Of weights with p degrees of freedom on n data, errors are lowered by p/n on data that they were
    fitted to and raised by p/n on others. So the gap between the gain on own data and a held-out
    one is (p/n)(1 + 1/f), and the held-out one is short of that of all data by (p/n)(1/f - 1).
    """
    scored = [block for _, score in folds for block in score]
    total = float(sums.windows.sum())
    fitted = [float(sums.windows[list(fit)].sum()) / total for fit, _ in folds]
    share = sum(fitted) / len(fitted)
    moments = sums.total(tuple(scored)).moments[0]
    step = torch.einsum("...ij,...j->...i", moments[..., :-1, :-1], weights)
    own = float((weights * (2 * moments[..., :-1, -1] - step)).sum())
    before = float(moments[..., -1, -1].sum())
    gap = own - float(gains.sum())
    return max(0.0, (1 - share) / (1 + share) * gap / before) if before > 0 else 0.0


def _weighed(
    search: ChainSearch, trials: Sequence[Trial], trust: float
) -> tuple[Float[Tensor, " trial"], list[Float[Tensor, "slot column"]]]:
    """Shares of lowest held-out error, and by fold the mean that knew none of its blocks."""
    square, right = search.quadratics(trials)
    outer = [
        trust * _shares(square.sum(0) - square[fold], right.sum(0) - right[fold])
        for fold in range(len(square))
    ]
    shares = trust * _shares(square.sum(0), right.sum(0))
    return shares, search.means(trials, outer)


def _shares(square: Tensor, right: Tensor) -> Float[Tensor, " trial"]:
    """Shares of lowest held-out error, without those too small to matter."""
    shares = stacking_shares(square, right)
    return torch.where(shares < _LEAST_SHARE, 0.0, shares)
