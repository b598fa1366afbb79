"""Nested cells: an average of fits from coarse to fine, as held-out data weigh them (M7).

Partitions are nested, the root one cell for everything. On a chain of them each cell starts from
its parent's weights and moves as far as its own sums justify,

    w_b = w_parent + (G_b + λ tr(G_b)/J I)⁻¹ (r_b - G_b w_parent),

the first starting from zero, i.e. from the source. A chain is a partition by itself, or the root
and then a partition; its penalties are those of lowest held-out error. The weights are the mean
over the chains and the source (w = 0), each counting

    a ∝ exp(-(E - E_min) / (τ E_min)),

E being its held-out error. Chains much worse than the best count nothing, and near ties, which
held-out blocks cannot tell apart, are averaged. All partitions are unions of the finest cells, so
every chain comes from the same sums.

A fold's fit saw less data than the final one. Of its held-out error, what stems from that is
taken off: with w_k the fits of the folds and w̄ their mean, ‖w_k - w̄‖²_G of each scored block (the
jackknife's estimate of the variance that the final fit will not have).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from r2no.ensemble.blocks import Fold
from r2no.ensemble.gram import GramSums
from r2no.ensemble.ridge import quadratic_error, ridge_solutions
from r2no.ensemble.verdict import Verdict, judge
from r2no.errors import ConfigError, EmptySplitError
from r2no.spectral import FourierCells

#: Penalties tried on every partition.
NESTED_GRID = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)

#: τ: chains whose held-out errors differ by less than this share count about alike.
TEMPERATURE = 0.01

#: From so many recordings on, held-out blocks are whole recordings and show what carries over.
_ENOUGH_RECORDINGS = 4

#: Chains that would count less than this are left out.
_LEAST_SHARE = 1e-3

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
class NestedFit:
    """What the nested estimator decided.

    Attributes:
        weights: On the finest cells.
        chains: What they are the mean of, largest share first; the source has the rest.
        gains: Held-out gain over the source of every block, each judged by a fit without it.
        before: Held-out error of the source of every block.
    """

    weights: Float[Tensor, "cell channel column"]
    chains: tuple[Chain, ...]
    gains: Float[Tensor, " block"]
    before: Float[Tensor, " block"]

    @property
    def verdict(self) -> Verdict:
        """Deploy or keep the source, from the held-out gains."""
        return judge(self.gains, self.before)

    @property
    def deployed(self) -> Float[Tensor, "cell channel column"]:
        """The weights, or zeros (the source) where the verdict is to keep it."""
        keep = self.verdict.decision == "keep the source"
        return torch.zeros_like(self.weights) if keep else self.weights

    @property
    def leading(self) -> Chain:
        """The chain that counts most; an empty one if the source alone counts."""
        return self.chains[0] if self.chains else Chain((), (), 0.0)

    def decisions(self) -> dict[str, list[Any]]:
        """What was decided, JSON-able."""
        return {
            "chains": [
                {
                    "levels": [list(size) for size in chain.levels],
                    "penalties": list(chain.penalties),
                    "share": chain.share,
                }
                for chain in self.chains
            ]
        }

    @classmethod
    def from_decisions(
        cls, decisions: dict[str, list[Any]], weights: Tensor, gains: Tensor, before: Tensor
    ) -> "NestedFit":
        """Inverse of :meth:`decisions`; reads the single chain of earlier versions too."""
        stored = decisions.get("chains", [{**decisions, "share": 1.0}])
        chains = tuple(
            Chain(
                tuple((radial, angular) for radial, angular in chain["levels"]),
                tuple(chain["penalties"]),
                chain["share"],
            )
            for chain in stored
        )
        return cls(weights, chains, gains, before)


def solve_nested(
    sums: GramSums,
    folds: Sequence[Fold],
    finest: FourierCells,
    *,
    judged: GramSums | None = None,
    grid: Sequence[float] = NESTED_GRID,
    temperature: float = TEMPERATURE,
    recordings: int | None = None,
) -> NestedFit:
    """Weigh the chains on the folds, then fit them on all groups.

    Args:
        sums: Gram sums on the finest cells, by group (block of windows).
        folds: Pairs (groups to fit on, groups to score on); each scored group is a block.
        finest: The finest polar partition considered.
        judged: Sums of the same windows under the weighting that judges; default ``sums``.
        grid: Penalties tried.
        temperature: τ.
        recordings: Number k of recordings in ``sums``, if the weights are meant for others too:
            below four the source gets a share of 1/(k + 1), whatever the blocks say.
    """
    if not folds:
        raise EmptySplitError(
            "The nested fit needs blocks to hold out, but there are too few windows to part them. "
            "Give more windows, or a fixed partition and `ridge`."
        )
    search = _Search(sums, folds, finest, tuple(grid), judged)
    source = search.source()
    trials = [trial for trial in search.trials() if math.inf not in trial.penalties]
    scores = torch.tensor([float(trial.errors.sum()) for trial in (source, *trials)])
    least = scores.min().clamp_min(torch.finfo(scores.dtype).tiny)
    shares = torch.softmax(-(scores - least) / (temperature * least), 0)
    shares = torch.where(shares < _LEAST_SHARE, 0.0, shares)
    shares = shares / shares.sum()
    if recordings is not None and recordings < _ENOUGH_RECORDINGS:
        shares *= recordings / (recordings + 1)
    pairs = zip(trials, shares[1:].tolist(), strict=True)
    counted = [(trial, share) for trial, share in pairs if share]
    errors = search.errors_of_mean(counted)
    chains = sorted(
        (Chain(trial.levels, trial.penalties, share) for trial, share in counted),
        key=lambda chain: -chain.share,
    )
    weights = search.refit(chains)
    return NestedFit(weights, tuple(chains), source.errors - errors, source.errors)


def refit_chains(
    sums: GramSums, finest: FourierCells, chains: Sequence[Chain]
) -> Float[Tensor, "cell channel column"]:
    """The mean of given chains, fitted on the total of ``sums``; on the finest cells."""
    return _Search(sums, (), finest, ()).refit(chains)


@dataclass(frozen=True, eq=False)
class _Trial:
    """A chain under trial: its weights by fold on the occupied finest cells, and its scores."""

    levels: tuple[Size, ...]
    penalties: tuple[float, ...]
    weights: list[Tensor]
    errors: Float[Tensor, " block"]


class _Search:
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

    def source(self) -> _Trial:
        """Zero weights everywhere."""
        size = self._all.shape[-1] - 1
        zeros = self._all.new_zeros(*self._all.shape[:2], size)
        errors = torch.cat([block[..., -1, -1].sum((1, 2)) for block in self._blocks])
        return _Trial((), (), [zeros] * len(self._fits), errors)

    def trials(self) -> list[_Trial]:
        """The root, every partition by itself, and every partition after the root."""
        bands, sectors = _halvings(self._finest.radial), _halvings(self._finest.angular)
        sizes = [(r, a) for r in bands[::-1][::2] for a in sectors[::-1][::2]]
        sizes = [size for size in sizes if size != self._root]
        source = self.source()
        root = self._attempt([source], self._root)[0]
        return [root, *(trial for size in sizes for trial in self._attempt([source, root], size))]

    def errors_of_mean(self, counted: Sequence[tuple[_Trial, float]]) -> Float[Tensor, " block"]:
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

    def _attempt(self, starts: Sequence[_Trial], size: Size) -> list[_Trial]:
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
            trials.append(_Trial((*start.levels, size), penalties, weights, errors[:, best]))
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
                coarse = FourierCells.polar(
                    finest.grid, radial=size[0], angular=size[1], extent=finest.extent
                )
                cell[finest.index.reshape(-1)] = coarse.index.reshape(-1)
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
