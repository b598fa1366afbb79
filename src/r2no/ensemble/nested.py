"""Nested cells: shrink every cell towards a coarser parent, as far as held-out data allow (M7).

Levels are nested partitions, the root one cell for everything. Level by level each cell starts
from its parent's weights and moves as far as its own sums justify,

    w_b = w_parent + (G_b + λ tr(G_b)/J I)⁻¹ (r_b - G_b w_parent),

the root (left out if it does not help) starting from zero, i.e. from the source. Which partition
comes next and its λ are chosen on held-out blocks; a level is added only if the blocks agree that
it helps. All partitions are unions of the finest cells, so every level comes from the same sums.
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

#: Penalties tried at every level.
NESTED_GRID = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)

#: A level is added if it lowers the held-out error by so many standard errors over the blocks ...
STRICTNESS = 1.0
#: ... and by this share: the best of a hundred trials looks a little better than it is.
WORTH = 0.01

#: Penalties whose held-out errors differ by less than this share are tied; the smallest is taken,
#: since the final fit has more data than any fold.
TIED = 0.001

Size = tuple[int, int]


@dataclass(frozen=True, eq=False)
class NestedFit:
    """What the nested estimator decided.

    Attributes:
        weights: On the finest cells.
        levels: The partitions used, root first: (bands, sectors); (0, 0) is one cell shared by all
            channels.
        penalties: λ of each level.
        gains: Held-out gain over the source of every block, each judged by a fit without it.
        before: Held-out error of the source of every block.
    """

    weights: Float[Tensor, "cell channel column"]
    levels: tuple[Size, ...]
    penalties: tuple[float, ...]
    gains: Float[Tensor, " block"]
    before: Float[Tensor, " block"]

    @property
    def verdict(self) -> Verdict:
        """Deploy or keep the source, from the held-out gains."""
        return judge(self.gains, self.before)

    def decisions(self) -> dict[str, list[Any]]:
        """What was decided, JSON-able."""
        return {"levels": [list(size) for size in self.levels], "penalties": list(self.penalties)}

    @classmethod
    def from_decisions(
        cls, decisions: dict[str, list[Any]], weights: Tensor, gains: Tensor, before: Tensor
    ) -> "NestedFit":
        """Inverse of :meth:`decisions`."""
        levels = tuple((radial, angular) for radial, angular in decisions["levels"])
        return cls(weights, levels, tuple(decisions["penalties"]), gains, before)


def solve_nested(
    sums: GramSums,
    folds: Sequence[Fold],
    finest: FourierCells,
    *,
    judged: GramSums | None = None,
    grid: Sequence[float] = NESTED_GRID,
    strictness: float = STRICTNESS,
) -> NestedFit:
    """Grow the tree on the folds, then fit it on all groups.

    Args:
        sums: Gram sums on the finest cells, by group (block of windows).
        folds: Pairs (groups to fit on, groups to score on); each scored group is a block.
        finest: The finest polar partition considered.
        judged: Sums of the same windows under the weighting that judges; default ``sums``.
        grid: Penalties tried.
        strictness: Standard errors over the blocks by which a level must help.
    """
    if not folds:
        raise EmptySplitError(
            "The nested fit needs blocks to hold out, but there are too few windows to part them. "
            "Give more windows, or a fixed partition and `ridge`."
        )
    search = _Search(sums, folds, finest, tuple(grid), judged)
    state, steps = search.source(), []
    root = search.attempt(state, search.root)
    if root.helps(state, strictness):
        state, steps = root, [root]
    while (step := search.climb(state)) is not None and step.helps(state, strictness):
        state, steps = step, [*steps, step]
    levels, penalties = [step.size for step in steps], [step.ridge for step in steps]
    weights = search.refit(levels, penalties)
    before = search.source().errors
    return NestedFit(weights, tuple(levels), tuple(penalties), before - state.errors, before)


def refit_levels(
    sums: GramSums, finest: FourierCells, levels: Sequence[Size], penalties: Sequence[float]
) -> Float[Tensor, "cell channel column"]:
    """Fit given levels with given penalties on the total of ``sums``; on the finest cells."""
    return _Search(sums, (), finest, ()).refit(levels, penalties)


@dataclass(frozen=True, eq=False)
class _Step:
    """A level under trial: its weights by fold on the occupied finest cells, and its scores."""

    size: Size
    ridge: float
    weights: list[Tensor]
    errors: Float[Tensor, " block"]

    @property
    def score(self) -> float:
        return float(self.errors.sum())

    def helps(self, before: "_Step", strictness: float) -> bool:
        """Whether the blocks agree that this level lowers the held-out error."""
        gains = before.errors - self.errors
        noise = float(gains.std()) * math.sqrt(len(gains)) if len(gains) > 1 else math.inf
        return float(gains.sum()) > max(strictness * noise, WORTH * before.score)


class _Search:
    """Held-out search over polar partitions nested in the finest one."""

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
        self.root: Size = (1, 1) if finest.shared_channels else (0, 0)
        self._bands, self._sectors = _halvings(finest.radial), _halvings(finest.angular)

    def source(self) -> _Step:
        """Zero weights everywhere."""
        size = self._all.shape[-1] - 1
        zeros = self._all.new_zeros(*self._all.shape[:2], size)
        errors = torch.cat([block[..., -1, -1].sum((1, 2)) for block in self._blocks])
        return _Step((0, 0), math.inf, [zeros] * len(self._fits), errors)

    def climb(self, state: _Step) -> _Step | None:
        """The best finer partition: every second number of bands and sectors, then climbing.

        Neighbours on the lattice of (bands, sectors) are tried until none is better, so that most
        partitions are never fitted.
        """
        least = (max(state.size[0], 1), max(state.size[1], 1))
        allowed = [
            (r, a) for r in self._bands for a in self._sectors if r >= least[0] and a >= least[1]
        ]
        allowed = [size for size in allowed if size != state.size]
        if not allowed:
            return None
        tried = {size: self.attempt(state, size) for size in _thinned(allowed)}
        while True:
            here = min(tried.values(), key=lambda step: step.score)
            near = [size for size in self._neighbours(here.size) if size in allowed]
            fresh = [size for size in near if size not in tried]
            if not fresh:
                return here
            tried |= {size: self.attempt(state, size) for size in fresh}

    def refit(self, levels: Sequence[Size], penalties: Sequence[float]) -> Tensor:
        """The chosen levels and penalties, fitted on all groups; on the finest cells."""
        _, channels, size = self._all.shape[:3]
        weights = self._all.new_zeros(*self._all.shape[:2], size - 1)
        for level, ridge in zip(levels, penalties, strict=True):
            weights = self._spread(self._path(self._all, weights, level, [ridge])[0], level)
        everywhere = weights.new_zeros(self._finest.num_cells, channels, size - 1)
        everywhere[self._finest.occupied] = weights
        return everywhere

    def attempt(self, state: _Step, size: Size) -> _Step:
        """A partition with its penalty of lowest held-out error, starting from ``state``.

        In a tie the smallest penalty: see ``TIED``.
        """
        paths = [
            self._path(fit, start, size, self._grid)
            for fit, start in zip(self._fits, state.weights, strict=True)
        ]
        errors = torch.cat(
            [
                quadratic_error(self._coarse(block, size)[:, None], path[None]).sum((2, 3))
                for block, path in zip(self._blocks, paths, strict=True)
            ]
        )  # block, ridge
        total = errors.sum(0)
        number = int((total <= (1 + TIED) * total.min()).nonzero()[0])
        weights = [self._spread(path[number], size) for path in paths]
        return _Step(size, self._grid[number], weights, errors[:, number])

    def _path(
        self, moments: Tensor, start: Tensor, size: Size, grid: Sequence[float]
    ) -> Float[Tensor, "ridge cell channel column"]:
        """Weights of a level for every penalty, starting from the finest-cell weights ``start``."""
        level = self._coarse(moments[None], size)[0]
        parent = self._gather(start, size)
        return parent + ridge_solutions(recentre(level, parent), grid)

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

    def _neighbours(self, size: Size) -> list[Size]:
        found = []
        for axis, values in enumerate((self._bands, self._sectors)):
            place = values.index(size[axis])
            for other in values[max(place - 1, 0) : place + 2]:
                found.append((other, size[1]) if axis == 0 else (size[0], other))
        return [other for other in found if other != size]


def _halvings(number: int) -> list[int]:
    """1 and the numbers met on the way there by halving, increasing."""
    numbers = [number]
    while number % 2 == 0:
        number //= 2
        numbers.append(number)
    return sorted({1, *numbers})


def _thinned(sizes: Sequence[Size]) -> list[Size]:
    """Those with every second number of bands and of sectors, the largest included."""
    bands, sectors = (sorted({size[axis] for size in sizes})[::-1][::2] for axis in (0, 1))
    return [size for size in sizes if size[0] in bands and size[1] in sectors]


def recentre(
    moments: Float[Tensor, "*cells column_and_target column_and_target"],
    weights: Float[Tensor, "*cells column"],
) -> Float[Tensor, "*cells column_and_target column_and_target"]:
    """Moments whose target is what is left after the given weights: r - G w, ‖...‖²."""
    gram, rhs = moments[..., :-1, :-1], moments[..., :-1, -1]
    left = rhs - torch.einsum("...ij,...j->...i", gram, weights)
    moved = moments.clone()
    moved[..., :-1, -1] = moved[..., -1, :-1] = left
    moved[..., -1, -1] = quadratic_error(moments, weights)
    return moved
