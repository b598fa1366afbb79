"""Whether a window looks like those the model was adapted to, by energies of its history (M15).

A window is described by the logarithms of the energies of its history, and of the change between
its frames, by band and channel, in units of their fluctuation within a recording. Its score x is
the logarithm of the distance to the known windows next to it. Windows of a recording overlap and
share what makes the recording special, so a recording is one draw, not many: known windows are
scored against those of other blocks (recordings, or stretches of a few), and with block means m_b,
their variance S² over B blocks and the mean variance W² within a block,

    p = P(T > (x - mean m_b) / √(S² (1 + 1/B) + W²)),

T being Student's t with B - 1 degrees of freedom: the chance that a window of a further block of
the same kind lies as far. A rank over B blocks could never be below 1/(B + 1).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from r2no._repr import brief_repr
from r2no.errors import ShapeError
from r2no.spectral import FourierCells, forward
from r2no.spectral.cells import spectrum_energy
from r2no.spectral.transforms import space_last

#: The distance is to the fifth nearest window; one alone may be near by chance.
_NEAREST = 5
#: Recordings that are blocks themselves; of fewer, such as one in two splits, stretches are.
_ENOUGH = 3
#: Stretches of a recording at most.
_STRETCHES = 6


def described(
    history: Float[Tensor, "batch time height width channel"],
) -> Float[Tensor, "batch feature"]:
    """Log energies of a history and of its changes, by band and channel."""
    spectrum = torch.view_as_real(forward(space_last(history), 2)).double()  # squares are large
    cells = _bands((history.shape[2], history.shape[3]))
    parts = [spectrum] if history.shape[1] < 2 else [spectrum, spectrum.diff(dim=1)]
    energies = torch.cat([spectrum_energy(part, cells).flatten(1) for part in parts], 1)
    return energies.clamp_min(torch.finfo(torch.float32).tiny).log()


@cache
def _bands(grid: tuple[int, int]) -> FourierCells:
    return FourierCells.bands(grid)


@dataclass(frozen=True, eq=False)
class Familiar:
    """The known windows, as a new one is held against them.

    Attributes:
        features: What :func:`described` says of each.
        places: Recording and first frame of each.
        reach: Frames between two starts below which windows of a recording are alike.
    """

    features: Float[Tensor, "window feature"]
    places: Int[Tensor, "window 2"]
    reach: int

    __repr__ = brief_repr

    def p_values(self, features: Float[Tensor, "batch feature"]) -> Float[Tensor, " batch"]:
        """How likely a window of the same kind is as far from the known ones: small where unlike.

        Fewer than two blocks cannot tell how far apart blocks are; then it is 1.
        """
        blocks = self._scores
        if len(blocks) < 2:
            return torch.ones(len(features), dtype=torch.float64)
        scores = _distances(features, self.features, self._unit, self._nearest)
        means = torch.stack([block.mean() for block in blocks])
        within = torch.stack([block.var(correction=0) for block in blocks]).mean()
        spread = (means.var() * (1 + 1 / len(blocks)) + within).sqrt().clamp_min(1e-6)
        return _upper_tail((scores - means.mean()) / spread, len(blocks) - 1)

    @cached_property
    def _unit(self) -> Float[Tensor, " feature"]:
        return _fluctuation(self.features, self.places[:, 0])

    @property
    def _nearest(self) -> int:
        """Which neighbour of a new window counts, as large a share as the fifth for the blocks."""
        away = [int(others.sum()) for _, others in self._parts]
        return round(_NEAREST * len(self.features) * len(away) / sum(away))

    @cached_property
    def _scores(self) -> list[Float[Tensor, " window"]]:
        """Scores of each block among the windows that lie apart from it."""
        found = []
        for own, away in self._parts:
            unit = _fluctuation(self.features[away], self.places[away, 0])
            found.append(_distances(self.features[own], self.features[away], unit, _NEAREST))
        return found

    @cached_property
    def _parts(self) -> list[tuple[Bool[Tensor, " window"], Bool[Tensor, " window"]]]:
        """The windows of each block and those apart from it; a block with too few is left out."""
        found, (recording, start) = [], self.places.T
        for block in self._blocks.unique():
            own = self._blocks == block
            first, last = start[own].min() - self.reach, start[own].max() + self.reach
            near = (recording == recording[own][0]) & (start > first) & (start < last)
            if int((~near & ~own).sum()) >= _NEAREST:
                found.append((own, ~near & ~own))
        return found

    @property
    def _blocks(self) -> Int[Tensor, " window"]:
        """The block of each window: its recording, or, with few of them, a stretch of it."""
        block: Tensor
        names, block = self.places[:, 0].unique(return_inverse=True)
        if len(names) >= _ENOUGH:
            return block
        block = block * _STRETCHES
        for name in names:
            own = self.places[:, 0] == name
            start = self.places[own, 1] - self.places[own, 1].min()
            span = int(start.max()) + 1
            block[own] += start * min(max(span // self.reach, 1), _STRETCHES) // span
        return block

    def merge(self, other: "Familiar") -> "Familiar":
        """The windows of both; their recordings are different ones."""
        if self.features.shape[1] != other.features.shape[1] or self.reach != other.reach:
            raise ShapeError("`other` describes windows of another kind. Merge fits of one kind.")
        moved = other.places.clone()
        moved[:, 0] += self.places[:, 0].max() + 1
        features = torch.cat([self.features, other.features])
        return Familiar(features, torch.cat([self.places, moved]), self.reach)

    def tensors(self) -> dict[str, Tensor]:
        """What :meth:`from_tensors` makes it from."""
        return {
            "features": self.features.contiguous(),
            "places": self.places.contiguous(),
            "reach": torch.tensor([self.reach]),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Familiar":
        """Inverse of :meth:`tensors`.

        Raises:
            ValueError: if the parts do not fit each other.
        """
        features, places, reach = (tensors[name] for name in ("features", "places", "reach"))
        sound = features.ndim == 2 and tuple(places.shape) == (len(features), 2) and int(reach) > 0
        if not sound or not len(features) or not bool(features.isfinite().all()):
            raise ValueError("features and places of the known windows do not fit each other")
        return cls(features.double(), places.long(), int(reach))


def _distances(
    features: Float[Tensor, "batch feature"],
    others: Float[Tensor, "window feature"],
    unit: Float[Tensor, " feature"],
    which: int,
) -> Float[Tensor, " batch"]:
    """Logarithms of the distances to the nearest, second nearest, ... of the others."""
    apart = torch.cdist(features / unit, others / unit)
    nearest = apart.kthvalue(min(which, len(others)), dim=1).values
    return nearest.clamp_min(torch.finfo(apart.dtype).tiny).log()


def _fluctuation(
    features: Float[Tensor, "window feature"], recording: Int[Tensor, " window"]
) -> Float[Tensor, " feature"]:
    """Spread of each feature within recordings, or over them if each has one window only.

    So features count the more, the better they tell recordings apart. One that never changes counts
    as if it changed by a part in a thousand.
    """
    names, number = recording.unique(return_inverse=True)
    if len(names) == len(recording):
        number = torch.zeros_like(number)
    sums = features.new_zeros(len(names), features.shape[1]).index_add_(0, number, features)
    means = sums / number.bincount(minlength=len(names)).clamp_min(1)[:, None]
    spread: Tensor = (features - means[number]).square().mean(0).sqrt().clamp_min(1e-3)
    return spread


def _upper_tail(t: Float[Tensor, " batch"], freedom: int) -> Float[Tensor, " batch"]:
    """P(T > t) of Student's t, by the finite sums for whole degrees of freedom."""
    angle = (t / math.sqrt(freedom)).atan()
    odd = freedom % 2 == 1
    term = angle.cos() if odd else torch.ones_like(angle)
    series = torch.zeros_like(angle)
    for power in range(1 if odd else 0, freedom - 1, 2):
        series = series + term
        term = term * angle.cos().square() * (power + 1) / (power + 2)
    inside = angle.sin() * series
    if odd:
        inside = 2 / math.pi * (angle + inside)
    return ((1 - inside) / 2).clamp(0, 1)
