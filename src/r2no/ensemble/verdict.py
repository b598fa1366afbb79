"""Verdict: deploy the adapted model or keep the source, with the evidence (DESIGN: do no harm)."""

import math
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

#: Deploy if the squared error falls by this share ...
WORTH = 0.01
#: ... and by this many of its standard errors over the blocks. The weights are drawn towards the
#: source already, as far as the blocks ask for it, so this guards against blocks that disagree.
CAUTION = 0.5

# One-sided 95 % quantiles of Student's t by degrees of freedom.
_STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782)


@dataclass(frozen=True)
class Verdict:
    """What held-out blocks say about the gain over the source.

    Attributes:
        decision: "deploy" if the gain is worth it and beyond its noise, see ``WORTH``, ``CAUTION``.
        gain: Estimated relative reduction of the RMSE, held out.
        interval: Its 90 % interval over the blocks (each end a one-sided 95 % bound).
        blocks: Number of blocks.
    """

    decision: Literal["deploy", "keep the source"]
    gain: float
    interval: tuple[float, float]
    blocks: int

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.decision}: RMSE {100 * self.gain:+.1f} % better than the source on held-out "
            f"blocks (90 % interval {100 * low:+.1f} to {100 * high:+.1f} %, {self.blocks} blocks)"
        )


def judge(gains: Float[Tensor, " block"], before: Float[Tensor, " block"]) -> Verdict:
    """Weigh the held-out gains in squared error against their scatter over the blocks."""
    number, total = len(gains), float(before.sum())
    mean = float(gains.sum()) / total if total > 0 else 0.0
    noise, spread = math.inf, math.inf
    if number > 1 and total > 0:
        noise = float((gains - mean * before).std()) * math.sqrt(number) / total
        spread = _STUDENT[min(number - 1, len(_STUDENT)) - 1] * noise
    low, high = _in_rmse(mean - spread), _in_rmse(mean + spread)
    deploy = mean > max(WORTH, CAUTION * noise)
    decision: Literal["deploy", "keep the source"] = "deploy" if deploy else "keep the source"
    return Verdict(decision, _in_rmse(mean), (low, high), number)


def _in_rmse(reduction: float) -> float:
    """Relative reduction of the RMSE from that of the squared error."""
    if reduction >= 1:
        return 1.0
    return 1 - math.sqrt(1 - reduction) if reduction > -math.inf else -math.inf
