"""Whether a window looks like those of the fit, by energies of its history (M15).

A window is described by the logarithms of the energies of its history, and of the change between
its frames, by band and channel. Its score is the distance to the fit windows next to it; its
p-value the share of fit windows that lie as far from theirs, not counting those that overlap them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from r2no._repr import brief_repr
from r2no.errors import ShapeError
from r2no.spectral import FourierCells, forward
from r2no.spectral.energy import spectrum_energy
from r2no.spectral.transforms import space_last

#: The distance is to the fifth nearest window; one alone may be near by chance.
_NEAREST = 5


def described(
    history: Float[Tensor, "batch time height width channel"],
) -> Float[Tensor, "batch feature"]:
    """Log energies of a history and of its changes, by band and channel."""
    spectrum = torch.view_as_real(forward(space_last(history), 2))
    cells = _bands((history.shape[2], history.shape[3]))
    parts = [spectrum] if history.shape[1] < 2 else [spectrum, spectrum.diff(dim=1)]
    energies = torch.cat([spectrum_energy(part, cells).flatten(1) for part in parts], 1)
    return energies.clamp_min(torch.finfo(torch.float32).tiny).log()


@cache
def _bands(grid: tuple[int, int]) -> FourierCells:
    return FourierCells.bands(grid)


@dataclass(frozen=True, eq=False)
class Familiar:
    """The fit windows, as a new one is held against them.

    Attributes:
        features: What :func:`described` says of each.
        places: Recording and first frame of each.
        reach: Frames between two starts below which windows share some.
    """

    features: Float[Tensor, "window feature"]
    places: Int[Tensor, "window 2"]
    reach: int

    __repr__ = brief_repr

    def p_values(self, features: Float[Tensor, "batch feature"]) -> Float[Tensor, " batch"]:
        """The conformal rank of each window: small where nothing in the fit is like it."""
        apart = torch.cdist(features / self._spread, self._scaled)
        scores = apart.kthvalue(min(_NEAREST, len(self.features)), dim=1).values
        as_far = (self._scores >= scores[:, None]).sum(1)
        return (1 + as_far) / (len(self._scores) + 1.0)

    @cached_property
    def _spread(self) -> Tensor:
        """Of each feature; one that never changes counts as if it changed a little."""
        spread = self.features.std(0, correction=0)
        return spread.clamp_min(1e-3)  # a part in a thousand of an energy

    @cached_property
    def _scaled(self) -> Tensor:
        return self.features / self._spread

    @cached_property
    def _scores(self) -> Float[Tensor, " window"]:
        """Scores of the fit windows among those they share no frame with; some may have none."""
        same = self.places[:, None, 0] == self.places[None, :, 0]
        near = (self.places[:, None, 1] - self.places[None, :, 1]).abs() < self.reach
        apart = torch.cdist(self._scaled, self._scaled).masked_fill(same & near, torch.inf)
        scores = apart.kthvalue(min(_NEAREST, len(apart)), dim=1).values
        return scores[scores.isfinite()]

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
        sound = features.ndim == 2 and tuple(places.shape) == (len(features), 2)
        if not sound or not len(features) or not bool(features.isfinite().all()):
            raise ValueError("features and places of the fit windows do not fit each other")
        return cls(features.double(), places.long(), int(reach))
