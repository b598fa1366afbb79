"""Chains of nested partitions: tried on held-out blocks, fitted on all of them (M7).

Partitions are nested, the root one cell for everything. On a chain of them each cell starts from
its parent's weights and moves as far as its own sums justify,

    w_b = w_parent + (G_b + λ tr(G_b)/J I)⁻¹ (r_b - G_b w_parent),

the first starting from zero, i.e. from the source. All partitions are unions of the finest cells,
so every chain comes from the same sums.

A fold's fit saw less data than the final one. Of its held-out error, what stems from that is
taken off: with w_k the fits of the folds and w̄ their mean, ‖w_k - w̄‖²_G of each scored block (the
jackknife's estimate of the variance that the final fit will not have).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from r2no.ensemble.gram import GramSums
from r2no.ensemble.holdout import Fold
from r2no.ensemble.ridge import quadratic_error, ridge_solutions
from r2no.errors import ConfigError
from r2no.spectral import FourierCells

Size = tuple[int, int]


@dataclass(frozen=True)
class Chain:
    """Partitions fitted one after the other, and how much they count.

    Attributes:
        levels: (bands, sectors) of each partition; (0, 0) is one cell shared by all channels.
        penalties: λ of each.
        share: Weight in the average.
    """

    levels: tuple[Size, ...]
    penalties: tuple[float, ...]
    share: float


@dataclass(frozen=True, eq=False)
class Trial:
    """A chain under trial: its weights by fold on the occupied finest cells, and its scores."""

    levels: tuple[Size, ...]
    penalties: tuple[float, ...]
    weights: list[Tensor]
    errors: Float[Tensor, " block"]


class ChainSearch:
    """Held-out trials of polar partitions nested in the finest one."""

    def __init__(
        self,
        sums: GramSums,
        folds: Sequence[Fold],
        finest: FourierCells,
        grid: tuple[float, ...],
        judged: GramSums | None = None,
    ) -> None:
        if not finest.radial:
            raise ConfigError("`cells` must be polar to have nested coarser partitions.")
        self._finest, self._grid = finest, grid
        occupied = finest.occupied  # the others hold nothing, and would only cost time
        self._fits = [sums.total(fit).moments[0, occupied] for fit, _ in folds]
        self._blocks = [(judged or sums).moments[list(score)][:, occupied] for _, score in folds]
        self._all = sums.total().moments[0, occupied]
        self._maps: dict[Size, tuple[Tensor, int]] = {}
        self._root: Size = (1, 1) if finest.shared_channels else (0, 0)

    def source(self) -> Trial:
        """Zero weights everywhere."""
        size = self._all.shape[-1] - 1
        zeros = self._all.new_zeros(*self._all.shape[:2], size)
        errors = torch.cat([block[..., -1, -1].sum((1, 2)) for block in self._blocks])
        return Trial((), (), [zeros] * len(self._fits), errors)

    def trials(self) -> list[Trial]:
        """The root, every partition by itself, and every partition after the root."""
        bands, sectors = _halvings(self._finest.radial), _halvings(self._finest.angular)
        sizes = [(r, a) for r in bands[::-1][::2] for a in sectors[::-1][::2]]
        sizes = [size for size in sizes if size != self._root]
        source = self.source()
        root = self._attempt([source], self._root)[0]
        return [root, *(trial for size in sizes for trial in self._attempt([source, root], size))]

    def errors_of_mean(self, counted: Sequence[tuple[Trial, float]]) -> Float[Tensor, " block"]:
        """Held-out errors of the mean of trials; the source has the rest."""
        mean = self.source().weights
        for trial, share in counted:
            mean = [total + share * part for total, part in zip(mean, trial.weights, strict=True)]
        return _held_out(self._blocks, [weights[None] for weights in mean])[:, 0]

    def refit(self, chains: Sequence[Chain]) -> Tensor:
        """The mean of the chains, fitted on all groups; on the finest cells."""
        _, channels, size = self._all.shape[:3]
        mean = self._all.new_zeros(*self._all.shape[:2], size - 1)
        for chain in chains:
            weights = torch.zeros_like(mean)
            for level, ridge in zip(chain.levels, chain.penalties, strict=True):
                weights = self._spread(
                    self._paths(self._all, [weights], level, [ridge])[0, 0], level
                )
            mean += chain.share * weights
        everywhere = mean.new_zeros(self._finest.num_cells, channels, size - 1)
        everywhere[self._finest.occupied] = mean
        return everywhere

    def _attempt(self, starts: Sequence[Trial], size: Size) -> list[Trial]:
        """From each start a partition with its penalty of lowest held-out error."""
        paths = [
            self._paths(fit, [start.weights[fold] for start in starts], size, self._grid)
            for fold, fit in enumerate(self._fits)
        ]
        blocks = [self._coarse(block, size) for block in self._blocks]
        trials = []
        for number, start in enumerate(starts):
            errors = _held_out(blocks, [path[number] for path in paths])
            best = int(errors.sum(0).argmin())
            weights = [self._spread(path[number, best], size) for path in paths]
            penalties = (*start.penalties, self._grid[best])
            trials.append(Trial((*start.levels, size), penalties, weights, errors[:, best]))
        return trials

    def _paths(
        self, moments: Tensor, starts: Sequence[Tensor], size: Size, grid: Sequence[float]
    ) -> Float[Tensor, "start ridge cell channel column"]:
        """Weights of a level for every penalty, from each of ``starts`` on the finest cells."""
        level = self._coarse(moments[None], size)[0]
        gram, rhs = level[..., :-1, :-1], level[..., :-1, -1]
        parents = torch.stack([self._gather(start, size) for start in starts])
        left = rhs - torch.einsum("kcij,skcj->skci", gram, parents)
        return parents[:, None] + ridge_solutions(gram, left, grid)

    def _map(self, size: Size) -> tuple[Int[Tensor, " finest"], int]:
        """For each occupied finest cell its cell in a partition (occupied ones), their number."""
        if size not in self._maps:
            finest = self._finest
            cell = torch.zeros(finest.num_cells, dtype=torch.long)
            if size != (0, 0):
                cell = finest.parents(finest.coarser(*size))
            met, cell = cell[finest.occupied].unique(return_inverse=True)
            self._maps[size] = (cell, len(met))
        return self._maps[size]

    def _coarse(self, moments: Tensor, size: Size) -> Tensor:
        """Sums of a level, (group, cell, channel, ...), from those of the finest cells."""
        cell, number = self._map(size)
        shape = (moments.shape[0], number, *moments.shape[2:])
        coarse = moments.new_zeros(shape).index_add_(1, cell, moments)
        return coarse.sum(2, keepdim=True) if size == (0, 0) else coarse

    def _gather(self, weights: Tensor, size: Size) -> Tensor:
        """Finest-cell weights that are constant on a level's cells, by cell of that level."""
        cell, number = self._map(size)
        found = weights.new_zeros(number, *weights.shape[1:])
        found[cell] = weights
        return found[:, :1] if size == (0, 0) else found

    def _spread(self, weights: Tensor, size: Size) -> Tensor:
        """Weights of a level on the finest cells and all channels."""
        return weights[self._map(size)[0]].expand(-1, self._all.shape[1], -1)


def _held_out(
    blocks: Sequence[Float[Tensor, "_ cell channel column_and_target column_and_target"]],
    fits: Sequence[Float[Tensor, "ridge cell channel column"]],
) -> Float[Tensor, "all_blocks ridge"]:
    """Errors of each fold's fits on its blocks, less the fits' distance from their mean."""
    mean = torch.stack(list(fits)).mean(0)
    errors = []
    for moments, fit in zip(blocks, fits, strict=True):
        away = torch.nn.functional.pad(fit - mean, (0, 1))  # no target column
        excess = torch.einsum("rkci,bkcij,rkcj->br", away, moments, away)
        errors.append(quadratic_error(moments[:, None], fit[None]).sum((2, 3)) - excess)
    return torch.cat(errors)


def _halvings(number: int) -> list[int]:
    """1 and the numbers met on the way there by halving, increasing."""
    numbers = [number]
    while number % 2 == 0:
        number //= 2
        numbers.append(number)
    return sorted({1, *numbers})


def refit_chains(
    sums: GramSums, finest: FourierCells, chains: Sequence[Chain]
) -> Float[Tensor, "cell channel column"]:
    """The mean of given chains, fitted on the total of ``sums``; on the finest cells."""
    return ChainSearch(sums, (), finest, ()).refit(chains)
