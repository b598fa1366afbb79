"""Sizes of held-out residuals: what bands rest on, kept so that two sets of them can be joined.

Scores are sizes over a scale, and the scale is that of all data: where data are added, it changes
everywhere. So nothing is kept that depends on a scale. Sums of |r| by group add up, and of each
window some sizes are kept with their places, chosen by a rule that knows nothing of other windows.
What is computed from two sets together is therefore what one pass over both would have given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from r2no._repr import brief_repr
from r2no.ensemble.holdout import Fold
from r2no.ensemble.scale import Map, Maps, Steepness, relative
from r2no.errors import ShapeError

#: Sizes that are kept of a window.
_KEPT = 2048
#: Multiples of it, without their whole parts, are spread evenly however many are taken.
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, eq=False)
class Residuals:
    """Sums of |r| by place for each group, and a sample of single sizes.

    Attributes:
        totals: Σ|r| over the windows of each group.
        counts: Their numbers; fewer where targets have gaps.
        sizes: Some |r|, group by group and in each by place.
        places: Where each lies in a map that is written as one row.
        kept: How many there are of each group.
        folds: Groups to fit on, groups to score on.
        steepness: How steep the forecasts were, at the same places; ``None`` if it was not kept, as
            in files of earlier versions.
        outer: Numbers of the folds that score beyond all that they fit on; of a short recording.
    """

    totals: Maps
    counts: Maps
    sizes: Float[Tensor, " sample"]
    places: Int[Tensor, " sample"]
    kept: Int[Tensor, " group"]
    folds: tuple[Fold, ...]
    steepness: Steepness | None = None
    outer: tuple[int, ...] = ()

    __repr__ = brief_repr

    @cached_property
    def total(self) -> Map:
        """Σ|r| of all groups."""
        return self.totals.sum(0)

    @cached_property
    def count(self) -> Map:
        """Their numbers."""
        return self.counts.sum(0)

    def of(self, group: int) -> tuple[Float[Tensor, " sample"], Int[Tensor, " sample"]]:
        """Sizes and places of one group."""
        part = self._part(group)
        return self.sizes[part], self.places[part]

    def relative(self, group: int, usual: Map) -> Float[Tensor, " sample"]:
        """How steep forecasts of one group were where its sizes are from; 1 if it is not known."""
        part = self._part(group)
        if self.steepness is None:
            return torch.ones_like(self.sizes[part])
        return relative(self.steepness.sample[part], usual, self.places[part])

    def usual(self, groups: Sequence[int]) -> Map:
        """How steep forecasts of some groups were on average; zero if it is not known."""
        if self.steepness is None:
            return torch.zeros_like(self.totals[0])
        return self.steepness.usual(groups)

    def _part(self, group: int) -> slice:
        """Where the sample of a group lies."""
        start = int(self.kept[:group].sum())
        return slice(start, start + int(self.kept[group]))

    def merge(self, other: "Residuals") -> "Residuals":
        """The groups of both. Each fold fits on all groups of the other set too.

        So none scores beyond what it fits on any more. Steepness is kept if both know theirs.
        """
        if self.totals.shape[1:] != other.totals.shape[1:]:
            raise ShapeError(
                f"`other` has bands of shape {tuple(other.totals.shape[1:])}, not "
                f"{tuple(self.totals.shape[1:])}. Merge fits of the same fields."
            )
        first, second = len(self.totals), len(other.totals)
        folds = _widened(self.folds, 0, range(first, first + second))
        folds += _widened(other.folds, first, range(first))
        steep = None
        if self.steepness is not None and other.steepness is not None:
            steep = self.steepness.merge(other.steepness)
        return Residuals(
            torch.cat([self.totals, other.totals]),
            torch.cat([self.counts, other.counts]),
            torch.cat([self.sizes, other.sizes]),
            torch.cat([self.places, other.places]),
            torch.cat([self.kept, other.kept]),
            tuple(folds),
            steep,
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values from which :meth:`from_state` makes it again."""
        first = self.counts[:, :1, :1, :1, :1]
        even = torch.equal(first.expand_as(self.counts), self.counts)  # no gaps
        tensors = {
            "totals": self.totals.float(),
            "counts": (first if even else self.counts).float().contiguous(),
            "sizes": self.sizes.float(),
            "size_places": self.places.int(),
            "sizes_kept": self.kept.int(),
        }
        if self.steepness is not None:
            tensors["steep_totals"] = self.steepness.totals.float()
            tensors["steep_windows"] = self.steepness.windows.int()
            tensors["steep_sample"] = self.steepness.sample.float()
        folds = [[list(fit), list(score)] for fit, score in self.folds]
        return tensors, {"folds": folds, "outer": list(self.outer)}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> "Residuals":
        """Inverse of :meth:`state`.

        Raises:
            ValueError: if the parts do not fit each other.
        """
        totals, counts, sizes, places, kept = (
            tensors[name] for name in ("totals", "counts", "sizes", "size_places", "sizes_kept")
        )
        folds = tuple((tuple(fit), tuple(score)) for fit, score in settings["folds"])
        named = {group for fold in folds for part in fold for group in part}
        outer = tuple(settings.get("outer", ()))  # not known to an earlier version
        sound = totals.ndim == 5 and counts.shape in (totals.shape, (len(totals), 1, 1, 1, 1))
        sound = sound and named <= set(range(len(totals))) and kept.shape == (len(totals),)
        sound = sound and set(outer) <= set(range(len(folds)))
        sound = sound and sizes.shape == places.shape == (int(kept.sum()),)
        sound = sound and all(
            bool((part.isfinite() & (part >= 0)).all())
            for part in (totals, counts, sizes, places, kept)
        )
        if not sound or not bool((places < totals[0].numel()).all()):
            raise ValueError("sums and sizes of the bands do not fit each other")
        counts = counts.expand_as(totals)
        steep = _steepness(tensors, totals, sizes)
        return cls(totals, counts, sizes, places.long(), kept.long(), folds, steep, outer)


class ResidualGatherer:
    """Residuals window by window, in any order.

    Args:
        group: Group of each window.
        folds: Groups to fit on, groups to score on.
        shape: Frames, grid and channels of a residual.
        steep: Whether the steepness of the forecasts is taken in too.
        outer: Numbers of the folds that score beyond all that they fit on.
    """

    def __init__(
        self,
        group: Int[Tensor, " window"],
        folds: Sequence[Fold],
        shape: Sequence[int],
        *,
        steep: bool = False,
        outer: tuple[int, ...] = (),
    ) -> None:
        self._group, self._folds, self._outer = group, tuple(folds), outer
        groups = 1 + max(int(group.max()), *(g for fold in folds for part in fold for g in part))
        self._totals, self._counts = torch.zeros(2, groups, *shape)
        number = self._totals[0].numel()
        self._sizes = torch.zeros(len(group), min(number, _KEPT))
        self._steep = steep
        self._steep_totals = torch.zeros_like(self._totals if steep else self._totals[:0])
        self._steep_sample = torch.zeros_like(self._sizes if steep else self._sizes[:0])
        earlier = group[:, None] == group[None]
        self._places = _places(earlier.tril(-1).sum(1), number)

    @property
    def sums(self) -> tuple[Tensor, ...]:
        """What processes with a share of the windows each have to add up."""
        found = (self._totals, self._counts, self._sizes)
        return (*found, self._steep_totals, self._steep_sample) if self._steep else found

    def add(
        self,
        windows: Int[Tensor, " batch"],
        sizes: Float[Tensor, "batch time height width channel"],
        steepness: Float[Tensor, "batch time height width channel"] | None = None,
    ) -> None:
        """Take in |r| of windows by their numbers, each once; NaN in gaps."""
        groups = self._group[windows]
        self._totals.index_add_(0, groups, sizes.nan_to_num(nan=0.0))
        self._counts.index_add_(0, groups, (~sizes.isnan()).float())
        places = self._places[windows]
        self._sizes[windows] = sizes.flatten(1).gather(1, places)
        if self._steep and steepness is not None:
            self._steep_totals.index_add_(0, groups, steepness)
            self._steep_sample[windows] = steepness.flatten(1).gather(1, places)

    def residuals(self) -> Residuals:
        """What was taken in; which window of a group a size is of is forgotten."""
        number = self._totals[0].numel()
        known = ~self._sizes.isnan()
        group = self._group[:, None].expand_as(self._sizes)[known]
        places, sizes = self._places[known], self._sizes[known]
        order = (group * number + places).argsort(stable=True)
        kept = group.bincount(minlength=len(self._totals))
        steep = None
        if self._steep:
            windows = self._group.bincount(minlength=len(self._totals))
            steep = Steepness(self._steep_totals, windows, self._steep_sample[known][order])
        parts = (self._totals, self._counts, sizes[order], places[order], kept)
        return Residuals(*parts, self._folds, steep, self._outer)


def _steepness(tensors: Mapping[str, Tensor], totals: Tensor, sizes: Tensor) -> Steepness | None:
    """What a file has of it; ValueError if it does not fit the sizes."""
    names = ("steep_totals", "steep_windows", "steep_sample")
    if not any(name in tensors for name in names):
        return None
    sums, windows, sample = (tensors[name] for name in names)
    sound = sums.shape == totals.shape and windows.shape == totals.shape[:1]
    sound = sound and sample.shape == sizes.shape
    if not sound or not all(
        bool((part.isfinite() & (part >= 0)).all()) for part in (sums, windows, sample)
    ):
        raise ValueError("sizes and steepness of the bands do not fit each other")
    return Steepness(sums, windows.long(), sample)


def _places(turn: Int[Tensor, " window"], number: int) -> Int[Tensor, "window sample"]:
    """Places of the sizes that are kept of the first, second, ... window of a group."""
    if number <= _KEPT:
        return torch.arange(number).expand(len(turn), -1)
    steps = turn[:, None] * _KEPT + torch.arange(_KEPT)
    return (steps.double() * _GOLDEN % 1.0 * number).long()


def _widened(folds: Sequence[Fold], offset: int, more: Sequence[int]) -> list[Fold]:
    """Folds of groups numbered from ``offset`` on, fitted on those of another set too."""
    return [
        (tuple(sorted([*(g + offset for g in fit), *more])), tuple(g + offset for g in score))
        for fit, score in folds
    ]
