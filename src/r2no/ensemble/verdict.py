"""Verdict: deploy the adapted model or keep what needs no adaptation (DESIGN: do no harm)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

#: Deploy if the squared error falls by this share, and surely: the lower 95 % bound of the mean
#: over the blocks is a gain. The weights are drawn towards what needs no adaptation already, as far
#: as the blocks ask for it, so this guards against blocks that disagree.
WORTH = 0.01

# One-sided 95 % quantiles of Student's t by degrees of freedom; the last one from there on.
_STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782)
#: That of many.
MANY = _STUDENT[-1]


@dataclass(frozen=True)
class Verdict:
    """What held-out blocks say about the gain.

    Attributes:
        decision: "deploy" if the squared error is below that of the best forecast that needs no
            adaptation by 1 %, and the lower 95 % bound of the mean over the blocks is a gain;
            otherwise "keep ...".
        gain: Estimated relative reduction of the source's RMSE, held out.
        interval: Where it will lie with 90 % over as many new blocks as there were (each end a
            one-sided 95 % bound), wider by what recordings differ where they are too few to tell,
            and by what the fits of the folds lack for having seen less data than the model.
        blocks: Number of blocks, or of recordings where there are several.
        best: The best forecast that needs no adaptation.
        gain_over_best: As ``gain``, against that one.
        interval_over_best: As ``interval``.
        within: Whether all blocks are of one recording, so that others may differ.
        kept: The forecast to use if the decision is to keep one: ``best``, unless recordings are so
            few that it may well not be better than the source on others.
    """

    decision: str
    gain: float
    interval: tuple[float, float]
    blocks: int
    best: str = "source"
    gain_over_best: float | None = None
    interval_over_best: tuple[float, float] | None = None
    within: bool = False
    kept: str = "source"

    @property
    def deploy(self) -> bool:
        """Whether the adapted forecast is the one to use."""
        return self.decision == "deploy"

    def __str__(self) -> str:
        where = f"held-out blocks{' within this recording' if self.within else ''}"
        text = f"{self.decision}: RMSE {_against(self.gain, self.interval, 'source')}"
        if self.best != "source" and self.gain_over_best is not None:
            bounds = self.interval_over_best or (-math.inf, math.inf)
            text += f", {_against(self.gain_over_best, bounds, readable(self.best))}"
        return f"{text}; 90 % intervals over {self.blocks} {where}"


def readable(name: str) -> str:
    """A forecast's name for people."""
    if name.startswith("recall:") and name != "recall:1":
        return f"last frame but {int(name.removeprefix('recall:')) - 1}"
    return {"recall:1": "persistence", "mean": "mean field"}.get(name, name)


def said(name: str) -> str:
    """A forecast within a sentence, with its article."""
    words = readable(name)
    return words if words == "persistence" else f"the {words}"


def _against(gain: float, interval: tuple[float, float], name: str) -> str:
    side = "below" if gain >= 0 else "above"
    low, high = (f"{-100 * end:+.1f}" for end in interval[::-1])
    whose = name if name == "persistence" else f"the {name}'s"
    return f"{100 * abs(gain):.1f} % {side} {whose} ({low} to {high} %)"


def judge(
    gains: Float[Tensor, " block"],
    before: Float[Tensor, " block"],
    *,
    rival: Float[Tensor, " block"] | None = None,
    name: str = "source",
    units: Sequence[int] = (),
    spread: float = 0.0,
    shortfall: float = 0.0,
) -> Verdict:
    """Weigh the held-out gains in squared error against their scatter over the blocks.

    Args:
        gains: Over the source.
        before: Errors of the source.
        rival: Errors of the best forecast that needs no adaptation; default the source.
        name: Its name.
        units: Recording of each block: several are what the interval is over.
        spread: Standard deviation of the mean reduction over as many recordings as there are, where
            these are too few to tell.
        shortfall: By how much more a fit on all blocks is expected to reduce the error.
    """
    rival = before if rival is None else rival
    within = len(set(units)) == 1
    if len(set(units)) > 1:
        gains, before, rival = (_by_unit(values, units) for values in (gains, before, rival))
    share = float(before.sum() / rival.sum()) if float(rival.sum()) > 0 else 1.0
    several = len(gains) > 1 and not within
    own = _Scatter.of(gains, before, spread, shortfall, several)
    over = _Scatter.of(gains - before + rival, rival, share * spread, share * shortfall, several)
    ahead = _Scatter.of(before - rival, before, spread, 0.0, several)
    kept = "source" if spread and ahead.mean <= ahead.margin() else name
    return Verdict(
        "deploy" if over.mean > max(WORTH, over.margin()) else f"keep {said(kept)}",
        own.gain,
        own.interval(),
        len(gains),
        name,
        over.gain,
        over.interval(),
        within,
        kept,
    )


def student(freedom: int) -> float:
    """One-sided 95 % quantile of Student's t."""
    return _STUDENT[min(max(freedom, 1), len(_STUDENT)) - 1]


def _by_unit(values: Float[Tensor, " block"], units: Sequence[int]) -> Float[Tensor, " unit"]:
    """Sums over the blocks of each recording."""
    number = torch.tensor(units).unique(return_inverse=True)[1]
    return values.new_zeros(int(number.max()) + 1).index_add_(0, number, values)


class _Scatter(NamedTuple):
    """The mean reduction of the squared error, and what is known of how it scatters."""

    mean: float
    noise: float  # standard error
    quantile: float  # one-sided 95 % of Student's t
    spread: float  # standard deviation over recordings, where the blocks are of one only
    shortfall: float

    @classmethod
    def of(
        cls,
        gains: Float[Tensor, " block"],
        before: Float[Tensor, " block"],
        spread: float,
        shortfall: float,
        several: bool,
    ) -> "_Scatter":
        """From the blocks; few recordings scatter as those do that ``spread`` was seen on."""
        mean, noise = _reduction(gains, before)
        quantile = student(len(gains) - 1)
        if several and spread:
            noise, quantile, spread = max(noise, spread), MANY, 0.0
        return cls(mean, noise, quantile, spread, shortfall)

    @property
    def gain(self) -> float:
        """Relative reduction of the RMSE."""
        return _in_rmse(self.mean)

    def margin(self, new: bool = False) -> float:
        """How far the mean may be from the true one, or from that of as many new blocks.

        Those scatter as these do, so that is √2 times as far.
        """
        own = (math.sqrt(2) if new else 1.0) * self.quantile * self.noise
        return math.hypot(own, MANY * self.spread)

    def interval(self) -> tuple[float, float]:
        """Where the gain will lie with 90 % over as many new blocks, as whoever checks it has."""
        low, high = self.mean - self.margin(new=True), self.mean + self.margin(new=True)
        return _in_rmse(low), _in_rmse(high + self.shortfall)


def _reduction(
    gains: Float[Tensor, " block"], before: Float[Tensor, " block"]
) -> tuple[float, float]:
    """Relative reduction of the squared error, and its standard error over the blocks."""
    number, total = len(gains), float(before.sum())
    mean = float(gains.sum()) / total if total > 0 else 0.0
    if number < 2 or total <= 0:
        return mean, math.inf
    return mean, float((gains - mean * before).std()) * math.sqrt(number) / total


def _in_rmse(reduction: float) -> float:
    """Relative reduction of the RMSE from that of the squared error."""
    if reduction >= 1:
        return 1.0
    return 1 - math.sqrt(1 - reduction) if reduction > -math.inf else -math.inf
