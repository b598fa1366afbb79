"""Chains of nested partitions: tried on held-out blocks, fitted on all of them (M7).

Partitions are nested in wavenumber, orientation, channel and lead time, the root one cell for
everything. On a chain of them each cell starts from its parent's weights and moves as far as its
own sums justify,

    w_b = w_parent + (G_b + λ diag(G_b))⁻¹ (r_b - G_b w_parent),

the first starting from zero, i.e. from the source. All partitions are unions of the finest cells,
so every chain comes from the same sums. The penalty is in proportion to each column's own energy,
so it asks the same of small repairs and of whole recalled frames.

A fold's fit saw less data than the final one. Of its held-out error, what stems from that is
taken off: with w_k the fits of the folds and w̄ their mean, ‖w_k - w̄‖²_G of each scored block (the
jackknife's estimate of the variance that the final fit will not have).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from r2no.ensemble.gram import GramSums
from r2no.ensemble.holdout import Fold
from r2no.ensemble.ridge import quadratic_error, scaled_ridge
from r2no.errors import ConfigError
from r2no.spectral import FourierCells

#: Bands, sectors and groups of lead time; no bands and sectors mean one cell for all channels.
Level = tuple[int, int, int]

#: Cells that are looked at together when fits on different partitions are compared.
_CHUNK = 4096


@dataclass(frozen=True)
class Chain:
    """Partitions fitted one after the other, and how much they count.

    Attributes:
        levels: (bands, sectors, groups of lead time) of each partition.
        penalties: λ of each.
        share: Weight in the average.
    """

    levels: tuple[Level, ...]
    penalties: tuple[float, ...]
    share: float


@dataclass(frozen=True, eq=False)
class Trial:
    """A chain under trial: its weights by fold on the cells of its last level, and its scores."""

    levels: tuple[Level, ...]
    penalties: tuple[float, ...]
    weights: list[Float[Tensor, "cell column"]]
    errors: Float[Tensor, " block"]


class ChainSearch:
    """Held-out trials of polar partitions nested in the finest one.

    Everything is over *slots*: pairs of an occupied finest cell and a channel with its group of
    lead time. A level maps each slot to one of its cells.
    """

    def __init__(
        self,
        sums: GramSums,
        folds: Sequence[Fold],
        finest: FourierCells,
        grid: tuple[float, ...],
        scoring: GramSums | None = None,
        *,
        leads: int = 1,
    ) -> None:
        if not finest.radial:
            raise ConfigError("`cells` must be polar to have nested coarser partitions.")
        self._finest, self._grid, self._leads = finest, grid, leads
        self._occupied = finest.occupied  # the others hold nothing, and would only cost time
        self._folds, self._sums, self._scoring = folds, sums, scoring or sums
        self._channels = sums.moments.shape[2] // leads
        self._columns = sums.moments.shape[-1] - 1
        self._maps: dict[Level, tuple[Tensor, int]] = {}
        self._root = (1, 1) if finest.shared_channels else (0, 0)

    # -- trials -------------------------------------------------------------------------------

    def source(self) -> Trial:
        """Zero weights everywhere."""
        everything = (*self._root, 1)
        zeros = self._sums.moments.new_zeros(self._map(everything)[1], self._columns)
        errors = [self._blocks(score)[..., -1, -1].sum(1) for _, score in self._folds]
        return Trial((), (), [zeros] * len(self._folds), torch.cat(errors))

    def trials(self) -> list[Trial]:
        """The root, every partition by itself and after the root; then with lead time apart."""
        bands, sectors = _halvings(self._finest.radial), _halvings(self._finest.angular)
        sizes = [(r, a) for r in bands[::-1][::2] for a in sectors[::-1][::2]]
        sizes = [size for size in sizes if size != self._root]
        source = self.source()
        roots: list[Trial] = []
        for leads in _divisors(self._leads):
            roots += self._attempt([source, *roots[:1]], (*self._root, leads))
        found = list(roots)
        for size in sizes:
            shared: list[Trial] = []
            for leads in _divisors(self._leads):
                starts = [source, *(r for r in roots if r.levels[-1][2] == leads)][:2]
                tried = self._attempt([*starts, *shared], (*size, leads))
                shared = shared or [min(tried, key=lambda trial: float(trial.errors.sum()))]
                found += tried
        return found

    def _attempt(self, starts: Sequence[Trial], level: Level) -> list[Trial]:
        """From each start a partition with its penalty of lowest held-out error."""
        paths = [
            self._paths(self._coarse(self._sums, fit, level), fold, starts, level, self._grid)
            for fold, (fit, _) in enumerate(self._folds)
        ]
        blocks = [self._coarse_blocks(self._blocks(score), level) for _, score in self._folds]
        trials = []
        for number, start in enumerate(starts):
            errors = held_out(blocks, [path[number] for path in paths])
            best = int(errors.sum(0).argmin())
            weights = [path[number, best] for path in paths]
            penalties = (*start.penalties, self._grid[best])
            trials.append(Trial((*start.levels, level), penalties, weights, errors[:, best]))
        return trials

    def _paths(
        self,
        moments: Float[Tensor, "cell column_and_target column_and_target"],
        fold: int,
        starts: Sequence[Trial],
        level: Level,
        grid: Sequence[float],
    ) -> Float[Tensor, "start ridge cell column"]:
        """Weights of a level for every penalty, from each of ``starts``."""
        parents = [self._inherited(start.weights[fold], start, level) for start in starts]
        return _stepped(moments, torch.stack(parents), grid)

    def _inherited(self, weights: Tensor, start: Trial, level: Level) -> Tensor:
        return weights[self._parents(start.levels[-1] if start.levels else (*self._root, 1), level)]

    # -- comparing and refitting --------------------------------------------------------------

    def quadratics(
        self, trials: Sequence[Trial]
    ) -> tuple[Float[Tensor, "fold trial trial"], Float[Tensor, "fold trial"]]:
        """By fold, P and c of the stacking programme: held-out products of the trials' forecasts.

        P = Q - D with Q of the fits themselves and D of their distances from their means over the
        folds; a fold's own blocks are what it is held against.
        """
        number = len(trials)
        square = self._sums.moments.new_zeros(len(self._folds), number, number)
        right = self._sums.moments.new_zeros(len(self._folds), number)
        means = [torch.stack(trial.weights).mean(0) for trial in trials]
        for fold, (_, score) in enumerate(self._folds):
            moments = self._blocks(score).sum(0)
            for slots in torch.arange(len(moments)).split(_CHUNK):
                part = moments[slots]
                fits = self._on(slots, trials, [trial.weights[fold] for trial in trials])
                away = fits - self._on(slots, trials, means)
                for weights, sign in ((fits, 1.0), (away, -1.0)):
                    moved = torch.einsum("xij,nxj->nxi", part[:, :-1, :-1], weights)
                    square[fold] += sign * torch.einsum("mxi,nxi->mn", weights, moved)
                right[fold] += torch.einsum("nxi,xi->n", fits, part[:, :-1, -1])
        return square, right

    def errors_of_mean(
        self, trials: Sequence[Trial], shares: Sequence[Float[Tensor, " trial"]]
    ) -> Float[Tensor, " block"]:
        """Held-out errors of means of trials, whose shares may differ by fold."""
        slots = torch.arange(self._slots)
        fits = []
        for fold in range(len(self._folds)):
            mean = self._sums.moments.new_zeros(self._slots, self._columns)
            for trial, share in zip(trials, shares[fold].tolist(), strict=True):
                if share:
                    mean += share * self._on(slots, [trial], [trial.weights[fold]])[0]
            fits.append(mean[None])
        return held_out([self._blocks(score) for _, score in self._folds], fits)[:, 0]

    def refit(self, chains: Sequence[Chain]) -> Float[Tensor, "cell channel column"]:
        """The mean of the chains, fitted on all groups; on the finest cells."""
        mean = self._sums.moments.new_zeros(self._slots, self._columns)
        for chain in chains:
            before: Level = (*self._root, 1)
            weights = mean.new_zeros(self._map(before)[1], self._columns)
            for level, ridge in zip(chain.levels, chain.penalties, strict=True):
                moments = self._coarse(self._sums, None, level)
                parents = weights[self._parents(before, level)]
                weights, before = _stepped(moments, parents[None], [ridge])[0, 0], level
            mean += chain.share * weights[self._map(before)[0]]
        shape = (self._finest.num_cells, self._channels * self._leads, self._columns)
        everywhere = mean.new_zeros(shape)
        everywhere[self._occupied] = mean.unflatten(0, (-1, shape[1]))
        return everywhere

    # -- levels -------------------------------------------------------------------------------

    @property
    def _slots(self) -> int:
        return int(self._occupied.sum()) * self._channels * self._leads

    def _map(self, level: Level) -> tuple[Int[Tensor, " slot"], int]:
        """For each slot its cell in a partition (occupied ones), and their number."""
        if level not in self._maps:
            radial, angular, groups = level
            cell = torch.zeros(self._finest.num_cells, dtype=torch.long)
            channel = torch.arange(self._channels)
            if (radial, angular) == (0, 0):
                channel = torch.zeros_like(channel)
            else:
                cell = self._finest.parents(self._finest.coarser(radial, angular))
            lead = torch.arange(self._leads) * groups // self._leads
            slot = cell[self._occupied][:, None, None] * self._channels + channel[:, None]
            slot = slot * groups + lead
            met, index = slot.reshape(-1).unique(return_inverse=True)
            self._maps[level] = (index, len(met))
        return self._maps[level]

    def _parents(self, coarse: Level, fine: Level) -> Int[Tensor, " cell"]:
        """For each cell of a level its cell in a coarser one."""
        (child, number), (parent, _) = self._map(fine), self._map(coarse)
        found = torch.zeros(number, dtype=torch.long)
        found[child] = parent
        return found

    def _on(
        self, slots: Tensor, trials: Sequence[Trial], weights: Sequence[Tensor]
    ) -> Float[Tensor, "trial slot column"]:
        """Weights of trials on some slots."""
        pairs = zip(trials, weights, strict=True)
        return torch.stack([each[self._map(t.levels[-1])[0][slots]] for t, each in pairs])

    def _blocks(self, groups: Sequence[int]) -> Tensor:
        """Moments of the blocks that a fold scores, (block, slot, ...)."""
        return self._scoring.moments[list(groups)][:, self._occupied].flatten(1, 2)

    def _coarse(self, sums: GramSums, groups: tuple[int, ...] | None, level: Level) -> Tensor:
        """Moments of a level's cells, summed over groups."""
        total = sums.total(groups).moments[:, self._occupied].flatten(1, 2)
        return self._coarse_blocks(total, level)[0]

    def _coarse_blocks(self, moments: Tensor, level: Level) -> Tensor:
        index, number = self._map(level)
        shape = (moments.shape[0], number, *moments.shape[2:])
        return moments.new_zeros(shape).index_add_(1, index, moments)


def _stepped(
    moments: Float[Tensor, "cell column_and_target column_and_target"],
    parents: Float[Tensor, "start cell column"],
    grid: Sequence[float],
) -> Float[Tensor, "start ridge cell column"]:
    """w_parent + (G + λ diag(G))⁻¹ (r - G w_parent), for every penalty."""
    gram, rhs = moments[..., :-1, :-1], moments[..., :-1, -1]
    left = rhs - torch.einsum("cij,scj->sci", gram, parents)
    return parents[:, None] + scaled_ridge(gram, left, grid)


def held_out(
    blocks: Sequence[Float[Tensor, "_ cell column_and_target column_and_target"]],
    fits: Sequence[Float[Tensor, "ridge cell column"]],
) -> Float[Tensor, "all_blocks ridge"]:
    """Errors of each fold's fits on its blocks, less the fits' distance from their mean."""
    mean = torch.stack(list(fits)).mean(0)
    errors = []
    for moments, fit in zip(blocks, fits, strict=True):
        rows = []
        for weights, centre in zip(fit, mean, strict=True):
            away = torch.nn.functional.pad(weights - centre, (0, 1))  # no target column
            excess = torch.einsum("ci,bcij,cj->b", away, moments, away)
            rows.append(quadratic_error(moments, weights[None]).sum(1) - excess)
        errors.append(torch.stack(rows, 1))
    return torch.cat(errors)


def _halvings(number: int) -> list[int]:
    """1 and the numbers met on the way there by halving, increasing."""
    numbers = [number]
    while number % 2 == 0:
        number //= 2
        numbers.append(number)
    return sorted({1, *numbers})


def _divisors(leads: int) -> Iterator[int]:
    """1, the divisor of ``leads`` nearest to its root, and ``leads``."""
    middle = [n for n in range(2, leads) if leads % n == 0]
    yield from sorted({1, leads, *sorted(middle, key=lambda n: abs(n - leads / 2))[:1]})


def refit_chains(
    sums: GramSums, finest: FourierCells, chains: Sequence[Chain], *, leads: int = 1
) -> Float[Tensor, "cell channel column"]:
    """The mean of given chains, fitted on the total of ``sums``; on the finest cells."""
    return ChainSearch(sums, (), finest, (), leads=leads).refit(chains)
