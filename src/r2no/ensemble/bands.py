"""Bands: how far off a forecast may be, from residuals of fits that had not seen them (M14).

The half-width is q(p) s m: the scale s by place, lead time and channel, the factor m by which a
forecast is steeper there than usual (both of :mod:`r2no.ensemble.scale`), and a factor for the
coverage p. Scores |r|/(s m) of a group of windows come from a scale of
other groups. q_apart(p) is a quantile of them at a level p' a little above p, such that

    mean over folds of  F_scored(q_fitted(p'))  =  p,

F_scored being the share of scores of a fold's groups up to a number, q_fitted the quantile of the
groups it fits on. Where every group is one point, p' is the (n + 1)/n of split conformal bands.
The scale in use rests on all groups, those of the folds on a share f of them, and the excess that
the noise of a scale brings falls as one over its data. So, with q_seen of scores by the scale that
is used, which has no such excess, q = q_seen^(1 - f) q_apart^f.

What a single short recording goes on to lies beyond all that the model was fitted on. Of its
blocks only those of outer folds do; the others are forecast better. Scores of outer folds reach
coverage p where all do at F(q_outer(p)), and that level takes the place of p.

:class:`Calibration` joins them with the alarm (M15), since both come from one pass.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from r2no import checks
from r2no._repr import brief_repr
from r2no.ensemble.familiar import Familiar
from r2no.ensemble.residuals import Residuals
from r2no.ensemble.scale import (
    Map,
    choose_exponent,
    choose_pulls,
    pooled_scale,
    relative,
    steepness,
)
from r2no.errors import ConfigError, EmptySplitError

#: Scores are counted on a logarithmic grid; beyond its ends in the last bin.
_BINS, _LOWEST, _HIGHEST = 1400, 1e-4, 1e3
_STEP = math.log(_HIGHEST / _LOWEST) / _BINS
_TRIES = 24  # halvings of the interval in which p' lies

Scores = Float[Tensor, "scale=2 group bin"]


@dataclass(frozen=True, eq=False)
class Bands:
    """Half-widths of bands around a forecast, for any coverage; :meth:`of` makes them.

    Attributes:
        residuals: Sizes of held-out residuals, from which everything else follows.
        pulls: How much each level of the scale is drawn to the one before.
        scores: How many residuals of each group lie in each bin of |r|/(s m), s and m being of
            groups apart from it; then the same with those that are used.
        exponent: β, how much bands follow the steepness of a forecast; 0 for not at all.
    """

    residuals: Residuals
    pulls: tuple[float, ...]
    scores: Scores
    exponent: float = 0.0

    __repr__ = brief_repr

    @classmethod
    def of(cls, residuals: Residuals) -> "Bands":
        """Choose scale and exponent, then count scores by them and by those of the folds."""
        totals, counts, folds = residuals.totals, residuals.counts, residuals.folds
        pulls = choose_pulls(totals, counts, folds)
        every = range(len(totals))
        found: list[dict[int, tuple[Tensor, Tensor]]] = [{}, {}]
        for fit, score in folds:
            for which, known in enumerate((fit, every)):
                chosen = list(known)
                scale = pooled_scale(totals[chosen].sum(0), counts[chosen].sum(0), pulls)
                usual = residuals.usual(chosen)
                for group in score:
                    sizes, places = residuals.of(group)
                    ratios = residuals.relative(group, usual)
                    usual_size = scale.flatten()[places]
                    told = (sizes > 0) | (usual_size != 0)  # not where all is met exactly
                    found[which][group] = ((sizes / usual_size)[told], ratios[told])
        exponent = choose_exponent(*zip(*found[0].values(), strict=True))
        scores = torch.zeros(2, len(totals), _BINS, dtype=torch.float64)
        for which, by_group in enumerate(found):
            for group, (sizes, ratios) in by_group.items():
                scores[which, group] = _counted(sizes / ratios**exponent)
        return cls(residuals, pulls, scores, exponent)

    @cached_property
    def scale(self) -> Map:
        """s, in the unit of each channel: what m is 1 for."""
        return pooled_scale(self.residuals.total, self.residuals.count, self.pulls)

    @property
    def groups(self) -> int:
        """Blocks of windows that were held out."""
        return int((self.scores[0].sum(1) > 0).sum())

    def half_width(self, coverage: float) -> Map:
        """Half of the width of the band that holds a value with this probability.

        Of a forecast as steep as usual; :meth:`follow` is what another has to be multiplied by.
        """
        return self.factor(coverage) * self.scale

    def follow(
        self, forecast: Float[Tensor, "batch time height width channel"]
    ) -> Float[Tensor, "#batch #time #height #width #channel"]:
        """The factor m of forecasts, over the measured channels; 1 if bands do not follow them."""
        if not self.exponent:
            return forecast.new_ones(1, 1, 1, 1, 1)
        found: Tensor = relative(steepness(forecast), self._usual) ** self.exponent
        return found

    @cached_property
    def _usual(self) -> Map:
        return self.residuals.usual(range(len(self.residuals.totals)))

    def factor(self, coverage: float) -> float:
        """q(p).

        Raises:
            ConfigError: for a coverage that is not between 0 and 1.
            EmptySplitError: if there are too few groups for it; says how many it takes.
        """
        coverage = checked_coverage(coverage)
        if coverage not in self._factors:
            self._factors[coverage] = self._found(coverage)
        return self._factors[coverage]

    @cached_property
    def _factors(self) -> dict[float, float]:
        return {}

    def _found(self, coverage: float) -> float:
        """The factor of a scale with as much data as there are."""
        if not self.scores[0].any():  # all is met exactly
            return 0.0
        every, level = range(self.scores.shape[1]), self._level(coverage)
        seen, apart = _quantile(self._shares(1, every), level), self._apart(level, coverage)
        return math.exp((1 - self._part) * math.log(seen) + self._part * math.log(apart))

    def _level(self, coverage: float) -> float:
        """The share of all scores up to where outer folds have this one."""
        folds, outer = self.residuals.folds, self.residuals.outer
        if not outer or len(outer) == len(folds):
            return coverage
        groups = [group for number in outer for group in folds[number][1]]
        if not self.scores[0, groups].any():  # nothing was measured there
            return coverage
        reached = _quantile(self._shares(0, groups), coverage)
        return _share(self._shares(0, range(self.scores.shape[1])), reached)

    @property
    def _part(self) -> float:
        """f: how much of the data the folds fit on."""
        sizes = self.scores[0].sum(1)
        parts = [float(sizes[list(fit)].sum() / sizes.sum()) for fit, _ in self.residuals.folds]
        return sum(parts) / len(parts)

    def _apart(self, wanted: float, coverage: float) -> float:
        """Halve the interval of levels until the held-out share is what this coverage takes."""
        folds = self.residuals.folds
        pairs = [(self._shares(0, fit), self._shares(0, score)) for fit, score in folds]
        sizes = [float(self.scores[0, list(score)].sum()) for _, score in folds]

        def held(level: float) -> float:
            parts = [_share(score, _quantile(fit, level)) for fit, score in pairs]
            return float(np.average(parts, weights=sizes))

        low, high = 0.0, 1.0
        if len(pairs) < 2 or held(high) < wanted:
            missed = 1 - held(high) if len(pairs) > 1 else 0.5
            needed = max(math.ceil(self.groups * missed / (1 - wanted)), self.groups + 1)
            raise EmptySplitError(
                f"A band of coverage {coverage:g} needs about {needed} held-out blocks, but the "
                f"fit had {self.groups}. Ask for a lower coverage, or fit on more recordings."
            )
        for _ in range(_TRIES):
            middle = (low + high) / 2
            low, high = (middle, high) if held(middle) < wanted else (low, middle)
        return _quantile(self._shares(0, range(self.scores.shape[1])), high)

    def _shares(self, which: int, groups: Sequence[int]) -> np.ndarray:
        """Cumulative shares of the scores of some groups, at the upper ends of the bins."""
        counted = self.scores[which, list(groups)].sum(0).double().numpy()
        shares: np.ndarray = counted.cumsum() / max(counted.sum(), 1e-300)
        return shares

    def merge(self, other: "Bands") -> "Bands":
        """The bands of both sets of groups: those that one pass over both would have given."""
        return Bands.of(self.residuals.merge(other.residuals))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values from which :meth:`from_state` makes it again."""
        tensors, settings = self.residuals.state()
        pulls = torch.tensor(self.pulls, dtype=torch.float64)
        found = {**tensors, "pulls": pulls, "scores": self.scores.int()}
        return found, {**settings, "exponent": self.exponent}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> "Bands":
        """Inverse of :meth:`state`.

        Raises:
            ValueError: if the parts do not fit each other.
        """
        residuals = Residuals.from_state(tensors, settings)
        scores, pulls = tensors["scores"].double(), tuple(tensors["pulls"].tolist())
        if scores.shape != (2, len(residuals.totals), _BINS) or not bool((scores >= 0).all()):
            raise ValueError("sums and scores of the bands do not fit each other")
        if not all(pull > 0 for pull in pulls):
            raise ValueError("the pulls of the bands must be above zero")
        exponent = float(settings.get("exponent", 0.0))  # of an earlier version
        if not 0 <= exponent <= 1 or (exponent and residuals.steepness is None):
            raise ValueError("exponent and steepness of the bands do not fit each other")
        bands = cls(residuals, pulls, scores, exponent)
        _ = bands.scale  # as many pulls as levels
        return bands


def checked_coverage(coverage: Any) -> float:
    """A number between 0 and 1, both excluded."""
    found = checks.real("coverage", coverage)
    if not 0 < found < 1:
        raise ConfigError(
            f"`coverage` must lie between 0 and 1, such as 0.9, but got {coverage!r}."
        )
    return found


def _counted(scores: Float[Tensor, " sample"]) -> Float[Tensor, " bin"]:
    """How many scores lie in each bin; what has no scale counts as far out."""
    inside = scores.nan_to_num(nan=_HIGHEST).clamp(_LOWEST, _HIGHEST)
    bins = ((inside / _LOWEST).log() / _STEP).long().clamp_max(_BINS - 1)
    return torch.bincount(bins, minlength=_BINS).double()


def _quantile(shares: np.ndarray, level: float) -> float:
    """The score below which a share lies, logarithmically within its bin."""
    place = min(int(np.searchsorted(shares, min(level, shares[-1]))), _BINS - 1)
    below = shares[place - 1] if place else 0.0
    part = (level - below) / max(shares[place] - below, 1e-300)
    return _LOWEST * math.exp((place + min(part, 1.0)) * _STEP)


def _share(shares: np.ndarray, score: float) -> float:
    """The share of scores up to one; the inverse of :func:`_quantile`."""
    place = min(max(math.log(score / _LOWEST) / _STEP, 0.0), _BINS - 1e-9)
    below = float(shares[int(place) - 1]) if place >= 1 else 0.0
    return below + (place - int(place)) * (float(shares[int(place)]) - below)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Bands around forecasts, and an alarm for windows that they were not made for.

    Attributes:
        bands: Half-widths for any coverage, by measured channel (M14).
        familiar: The fit windows, against which new ones are held (M15).
    """

    bands: Bands
    familiar: Familiar

    __repr__ = brief_repr

    def merge(self, other: "Calibration") -> "Calibration":
        """That of the windows of both."""
        return Calibration(self.bands.merge(other.bands), self.familiar.merge(other.familiar))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values from which :meth:`from_state` makes it again."""
        tensors, settings = self.bands.state()
        return {**tensors, **self.familiar.tensors()}, settings

    @classmethod
    def from_state(
        cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> "Calibration | None":
        """Inverse of :meth:`state`; raises ValueError if the parts do not fit each other.

        Earlier versions kept no residuals, only their sum over the blocks under another name. Bands
        that could be merged cannot be made of that: there are none then.
        """
        if "total" in tensors and "totals" not in tensors:
            return None
        return cls(Bands.from_state(tensors, settings), Familiar.from_tensors(tensors))
