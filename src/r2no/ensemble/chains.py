"""Chains of nested levels: tried on held-out blocks, fitted on all of them (M7).

On a chain of levels (:mod:`r2no.ensemble.levels`) each cell starts from its parent's weights and
moves as far as its own sums justify,

    w_b = w_parent + (G_b + λ diag(G_b))⁻¹ (r_b - G_b w_parent),

the first starting from zero, i.e. from the source, or from another forecast that needs no
adaptation. The penalty is in proportion to each column's own energy, so it asks the same of small
repairs and of whole recalled frames.

Columns nest as cells do: a chain may leave the repairs out, which have little to say where the
columns that cost nothing say it already, and would only cost certainty there.

A fold's fit saw less data than the final one. Of its held-out error, what stems from that is
taken off: with w_k the fits of the folds and w̄ their mean, ‖w_k - w̄‖²_G of each scored block (the
jackknife's estimate of the variance that the final fit will not have).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from r2no.ensemble.columns import Columns
from r2no.ensemble.gram import GramSums, sub_block
from r2no.ensemble.holdout import Fold
from r2no.ensemble.levels import Level, Levels
from r2no.ensemble.ridge import scaled_ridge
from r2no.spectral import FourierCells

#: Slots that are looked at together when fits on different levels are compared.
_CHUNK = 4096
#: A refinement whose held-out error is so many times that of the coarser level ends its line.
_WORSE = 1.02


@dataclass(frozen=True)
class Chain:
    """Levels fitted one after the other, and how much they count.

    Attributes:
        levels: (bands, sectors, groups of lead time) of each.
        penalties: λ of each.
        share: Weight in the average.
        start: Label of the column whose forecast it starts from; none for the source, nor where
            the column was left out.
        free: Whether it leaves out the repairs.
    """

    levels: tuple[Level, ...]
    penalties: tuple[float, ...]
    share: float
    start: str | None = None
    free: bool = False


@dataclass(frozen=True, eq=False)
class Trial:
    """A chain under trial.

    Attributes:
        chain: Levels with the penalties of lowest held-out error.
        weights: By fold, on the cells of the last level; each with the penalties that the blocks
            of the other folds prefer, so that no choice saw the blocks it is scored on.
        errors: Held-out error of every block.
    """

    chain: Chain
    weights: list[Float[Tensor, "cell column"]]
    errors: Float[Tensor, " block"]

    @property
    def error(self) -> float:
        """Over all blocks."""
        return float(self.errors.sum())


class ChainSearch:
    """Held-out trials of chains, on one set of sums and folds."""

    def __init__(
        self,
        sums: GramSums,
        folds: Sequence[Fold],
        finest: FourierCells,
        grid: tuple[float, ...],
        scoring: GramSums | None = None,
        *,
        leads: int = 1,
        columns: Columns | None = None,
    ) -> None:
        self.levels = Levels(finest, sums.moments.shape[2] // leads, leads)
        self._grid = grid
        self._fit = self.levels.compact(sums.moments)
        self._score = self._fit if scoring is None else self.levels.compact(scoring.moments)
        self._columns, self._number = columns, sums.moments.shape[-1] - 1
        self._at_root = self.levels.coarsen(self._score, self.levels.root)
        self._hold_out(folds)

    def _hold_out(self, folds: Sequence[Fold]) -> None:
        """Which groups judge which."""
        self.folds, self._blocks = folds, [block for _, score in folds for block in score]
        fold_of = [number for number, (_, score) in enumerate(folds) for _ in score]
        self._fold_of = torch.tensor(fold_of, dtype=torch.long)
        chosen = [[float(group in fit) for group in range(len(self._fit))] for fit, _ in folds]
        self._chosen = torch.tensor(chosen, dtype=torch.float64)

    def judged_on(self, folds: Sequence[Fold]) -> "ChainSearch":
        """The same search with other folds of the groups."""
        other = copy.copy(self)
        other._hold_out(folds)
        return other

    def restricted(self, columns: Columns) -> "ChainSearch":
        """The same search with some of the columns."""
        positions = self._positions(columns)
        fewer = copy.copy(self)
        fewer._fit = fewer._score = sub_block(self._fit, positions)
        if self._score is not self._fit:
            fewer._score = sub_block(self._score, positions)
        fewer._at_root = sub_block(self._at_root, positions)
        fewer._columns, fewer._number = columns, len(positions)
        return fewer

    def _positions(self, fewer: Columns | None) -> list[int]:
        """Places of fewer columns; only a search that knows its columns has fewer."""
        assert self._columns is not None
        assert fewer is not None
        return self._columns.positions(fewer)

    def without_repairs(self) -> "ChainSearch | None":
        """The same search with the columns that cost nothing.

        None where there are no repairs to leave out, or no forecasts but them.
        """
        columns = self._columns
        if columns is None or not (columns.members and columns.further):
            return None
        return self.restricted(columns.restricted(members=0))

    def widened(self, trial: Trial, free: "ChainSearch") -> Trial:
        """A trial of the search without repairs as one of this search."""
        weights = [self._wide(each, free) for each in trial.weights]
        return Trial(replace(trial.chain, free=True), weights, trial.errors)

    def _wide(
        self, weights: Float[Tensor, "cell fewer"], free: "ChainSearch"
    ) -> Float[Tensor, "cell column"]:
        wide = weights.new_zeros(len(weights), self._number)
        wide[:, self._positions(free._columns)] = weights
        return wide

    # -- trials -------------------------------------------------------------------------------

    def forecast(self, start: str | None = None) -> Trial:
        """A forecast as it is: of the source, or of a rival."""
        weights = self._start(start)
        extended = torch.cat([-weights, weights.new_ones(len(weights), 1)], -1)
        errors = torch.einsum("ci,bcij,cj->b", extended, self._at_root[self._blocks], extended)
        return Trial(Chain((), (), 0.0, start), [weights] * len(self.folds), errors)

    def trials(self, starts: Sequence[Trial]) -> list[Trial]:
        """The root, partitions by themselves and after the root; then with lead time apart.

        A line of refinements ends where held-out blocks say that it has gone too far.
        """
        leads = self.levels.lead_groups()
        found: list[Trial] = []
        roots: dict[int, Trial] = {}
        for groups in leads:
            first = [roots[1]] if roots else []
            tried = self._attempt([*starts, *first], (*self.levels.root[:2], groups))
            roots[groups] = _best(tried)
            found += tried
        best = {self.levels.root[:2]: roots[1].error}
        for size in self.levels.sizes():
            before = [best[one] for one in self.levels.coarser(size) if one in best]
            if not before and self.levels.coarser(size) != []:
                continue
            shared: list[Trial] = []
            for groups in leads:
                tried = self._attempt([*starts, roots[groups], *shared], (*size, groups))
                found += tried
                if shared and _best(tried).error > _WORSE * shared[0].error:
                    break
                shared = shared or [_best(tried)]
            if not before or shared[0].error <= _WORSE * min(before):
                best[size] = shared[0].error
        return found

    def _attempt(self, starts: Sequence[Trial], level: Level) -> list[Trial]:
        """From each start one more level, with the penalty of lowest held-out error."""
        fit, score = self._coarse(level)
        paths = []  # by fold: cell, column, ridge, start
        for number, total in enumerate((self._chosen @ fit.flatten(1)).unflatten(1, fit.shape[1:])):
            parents = [self._inherited(start.weights[number], start, level) for start in starts]
            paths.append(_stepped(total, torch.stack(parents, -1), self._grid))
        errors = self._held_out(score, paths)  # block, ridge, start
        trials = []
        for number, start in enumerate(starts):
            own = errors[..., number]
            best = int(own.sum(0).argmin())
            without = [
                int(own[self._fold_of != fold].sum(0).argmin()) for fold in range(len(paths))
            ]
            weights = [path[..., r, number].clone() for path, r in zip(paths, without, strict=True)]
            penalties = (*start.chain.penalties, self._grid[best])
            chain = replace(start.chain, levels=(*start.chain.levels, level), penalties=penalties)
            apart = own[range(len(own)), torch.tensor(without)[self._fold_of]]
            trials.append(Trial(chain, weights, apart))
        return trials

    def _held_out(
        self,
        score: Float[Tensor, "group cell column_and_target column_and_target"],
        paths: Sequence[Float[Tensor, "cell column ridge start"]],
    ) -> Float[Tensor, "block ridge start"]:
        """Errors of each fold's fits on its blocks, less the fits' distance from their mean.

        ‖y - Cw‖² - ‖C(w - w̄)‖² = ‖y‖² - 2 w·r + (2w - w̄)·G w̄.
        """
        fits = [path.flatten(2) for path in paths]  # cell, column, n
        mean = fits[0] / len(fits)
        for fit in fits[1:]:
            mean.add_(fit, alpha=1 / len(fits))
        errors = []
        for fold, block in zip(self._fold_of.tolist(), self._blocks, strict=True):
            moments = score[block]
            moved = torch.bmm(moments[:, :-1, :-1], mean)
            moved *= 2 * fits[fold] - mean
            cross = moments[:, :-1, -1].flatten() @ fits[fold].flatten(0, 1)
            errors.append(moments[:, -1, -1].sum() - 2 * cross + moved.sum((0, 1)))
        found: Tensor = torch.stack(errors).unflatten(1, paths[0].shape[2:])
        return found

    # -- comparing and refitting --------------------------------------------------------------

    def quadratics(
        self, trials: Sequence[Trial]
    ) -> tuple[Float[Tensor, "fold trial trial"], Float[Tensor, "fold trial"]]:
        """By fold, P and c of the stacking programme: held-out products of the trials' forecasts.

        P = Q - D with Q of the fits themselves and D of their distances from their means over the
        folds; a fold's own blocks are what it is held against.
        """
        number = len(trials)
        square = self._fit.new_zeros(len(self.folds), number, number)
        right = self._fit.new_zeros(len(self.folds), number)
        means = [torch.stack(trial.weights).mean(0) for trial in trials]
        for fold, (_, score) in enumerate(self.folds):
            moments = self._score[list(score)].sum(0)
            for slots in torch.arange(len(moments)).split(_CHUNK):
                part = moments[slots]
                gram = part[:, :-1, :-1].contiguous()
                fits = self._on(slots, trials, [trial.weights[fold] for trial in trials])
                away = fits - self._on(slots, trials, means)
                for weights, sign in ((fits, 1.0), (away, -1.0)):
                    moved = torch.bmm(gram, weights.transpose(1, 2))  # slot, column, trial
                    square[fold] += sign * (
                        weights.transpose(0, 1).flatten(1) @ (moved.permute(2, 0, 1).flatten(1).T)
                    )
                right[fold] += torch.einsum("xni,xi->n", fits, part[:, :-1, -1])
        return square, right

    def means(
        self, trials: Sequence[Trial], shares: Sequence[Float[Tensor, " trial"]]
    ) -> list[Float[Tensor, "slot column"]]:
        """By fold, the mean of the trials' fits without its blocks; shares may differ by fold."""
        slots, means = torch.arange(self.levels.slots), []
        for fold in range(len(self.folds)):
            mean = self._fit.new_zeros(self.levels.slots, self._number)
            for trial, share in zip(trials, shares[fold].tolist(), strict=True):
                if share:
                    mean += share * self._on(slots, [trial], [trial.weights[fold]])[:, 0]
            means.append(mean)
        return means

    def errors_of_means(
        self, means: Sequence[Float[Tensor, "slot column"]]
    ) -> Float[Tensor, " block"]:
        """Held-out errors of weights by fold."""
        errors: Tensor = self._held_out(self._score, [mean[..., None, None] for mean in means])[
            :, 0, 0
        ]
        return errors

    def errors_of(
        self, chains: Sequence[Chain], groups: Sequence[Sequence[int]] | None = None
    ) -> Float[Tensor, " block"]:
        """Held-out errors of a mean of chains, by default refitted on each fold's groups."""
        fitted = [fit for fit, _ in self.folds] if groups is None else groups
        return self.errors_of_means([self.mean(chains, each) for each in fitted])

    def refit(self, chains: Sequence[Chain]) -> Float[Tensor, "cell channel column"]:
        """The mean of the chains, fitted on all groups; on the finest cells."""
        return self.levels.spread(self.mean(chains, range(len(self._fit))))

    def mean(self, chains: Sequence[Chain], groups: Sequence[int]) -> Float[Tensor, "slot column"]:
        """The mean of the chains, fitted on some groups.

        Where there are no forecasts but repairs, chains that leave them out have all columns.
        """
        mean = self._fit.new_zeros(self.levels.slots, self._number)
        bare = self.without_repairs() if any(chain.free for chain in chains) else None
        searches = {free: (bare if free else None) or self for free in {c.free for c in chains}}
        sums = {free: one._fit[list(groups)].sum(0, True) for free, one in searches.items()}
        for chain in chains:
            search = searches[chain.free]
            weights = search._fitted(chain, sums[chain.free])
            mean += chain.share * (weights if search is self else self._wide(weights, search))
        return mean

    def _fitted(self, chain: Chain, total: Tensor) -> Float[Tensor, "slot column"]:
        """One chain, fitted on the sums of some groups."""
        before, weights = self.levels.root, self._start(chain.start)
        for level, ridge in zip(chain.levels, chain.penalties, strict=True):
            moments = self.levels.coarsen(total, level)[0]
            parents = weights[self.levels.parents(before, level)]
            weights, before = _stepped(moments, parents[..., None], [ridge])[..., 0, 0], level
        return weights[self.levels.map(before)[0]]

    # -- pieces -------------------------------------------------------------------------------

    def _start(self, label: str | None) -> Float[Tensor, "cell column"]:
        """Weights of a forecast as it is, on the root."""
        cells = self.levels.map(self.levels.root)[1]
        weights = self._fit.new_zeros(cells, self._number)
        place = None if label is None or self._columns is None else self._columns.place(label)
        if place is not None:
            weights[:, place] = 1.0
        return weights

    def _last(self, trial: Trial) -> Level:
        return trial.chain.levels[-1] if trial.chain.levels else self.levels.root

    def _inherited(self, weights: Tensor, start: Trial, level: Level) -> Tensor:
        return weights[self.levels.parents(self._last(start), level)]

    def _on(
        self, slots: Tensor, trials: Sequence[Trial], weights: Sequence[Tensor]
    ) -> Float[Tensor, "slot trial column"]:
        """Weights of trials on some slots."""
        pairs = zip(trials, weights, strict=True)
        on_slots = [each[self.levels.map(self._last(trial))[0][slots]] for trial, each in pairs]
        return torch.stack(on_slots, 1)

    def _coarse(self, level: Level) -> tuple[Tensor, Tensor]:
        """Moments of a level by group, to fit on and to score with."""
        fit = self.levels.coarsen(self._fit, level)
        return fit, fit if self._score is self._fit else self.levels.coarsen(self._score, level)


def _best(trials: Sequence[Trial]) -> Trial:
    return min(trials, key=lambda trial: trial.error)


def _stepped(
    moments: Float[Tensor, "cell column_and_target column_and_target"],
    parents: Float[Tensor, "cell column start"],
    grid: Sequence[float],
) -> Float[Tensor, "cell column ridge start"]:
    """w_parent + (G + λ diag(G))⁻¹ (r - G w_parent), for every penalty."""
    gram, rhs = moments[..., :-1, :-1].contiguous(), moments[..., :-1, -1:]
    steps = scaled_ridge(gram, rhs - torch.bmm(gram, parents), grid)
    return steps.add_(parents[:, :, None])
