"""Nested cells: an average of fits from coarse to fine, as held-out data weigh them (M7).

A chain is a partition by itself, or the root and then a partition (:mod:`r2no.ensemble.chains`);
its penalties are those of lowest held-out error. The weights are the mean over the chains and the
source (w = 0), each counting

    a ∝ exp(-(E - E_min) / (τ E_min)),

E being its held-out error. Chains much worse than the best count nothing, and near ties, which
held-out blocks cannot tell apart, are averaged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from r2no._repr import brief_repr
from r2no.ensemble.chains import Chain, ChainSearch
from r2no.ensemble.gram import GramSums
from r2no.ensemble.holdout import Fold
from r2no.ensemble.verdict import Verdict, judge
from r2no.errors import EmptySplitError
from r2no.spectral import FourierCells

#: Penalties tried on every partition.
NESTED_GRID = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)

#: τ: chains whose held-out errors differ by less than this share count about alike.
TEMPERATURE = 0.01

#: From so many recordings on, held-out blocks are whole recordings and show what carries over.
_ENOUGH_RECORDINGS = 4

#: Chains that would count less than this are left out.
_LEAST_SHARE = 1e-3


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

    __repr__ = brief_repr

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
    search = ChainSearch(sums, folds, finest, tuple(grid), judged)
    source = search.source()
    trials = [trial for trial in search.trials() if math.inf not in trial.penalties]
    scores = torch.stack([trial.errors.sum() for trial in (source, *trials)])
    scores = scores.clamp_min(0)  # what is taken off for variance may exceed an error near zero
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
