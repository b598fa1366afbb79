"""Calibration: what held-out windows of the fit tell about the errors of new ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from r2no._repr import brief_repr
from r2no.ensemble.bands import Bands
from r2no.ensemble.familiar import Familiar


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
