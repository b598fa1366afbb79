"""JointComposition: many readouts of one trajectory from one transform per iterate (M8).

Readouts differ in their weights only, so the transform of h_ℓ - h_0 is shared and each readout
costs one multiplication per coefficient.
"""

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from r2no.ensemble.compose import CellWeights
from r2no.ensemble.model import SpectralEnsemble
from r2no.errors import ConfigError, NotFittedError
from r2no.spectral import forward, inverse
from r2no.spectral.transforms import channel_picker, space_last


class JointReadouts:
    """Fitted ensembles over one grid and one set of measured channels, ready to be composed."""

    def __init__(self, ensembles: Mapping[str, SpectralEnsemble]) -> None:
        self.weights = {name: _spread(name, ensemble) for name, ensemble in ensembles.items()}
        first = next(iter(self.weights.values()), None)
        if first is None:
            raise ConfigError("`ensembles` is empty: give at least one readout.")
        self.measured, self.grid = first.measured, first.cells.grid
        self.channels = channel_picker(self.measured)
        self.used = {n: w.plane.flatten(1).any(1).tolist() for n, w in self.weights.items()}
        for name, weights in self.weights.items():
            if weights.measured != self.measured or weights.cells.grid != self.grid:
                raise ConfigError(
                    f"Readout `{name}` has another grid or other measured channels than the "
                    "first. Compose readouts of one model together."
                )

    def compose(self, source: Float[Tensor, "batch time *space_channel"]) -> "JointComposition":
        """Start one batch's predictions: ``add`` every iterate, then read ``results()``."""
        return JointComposition(self, source)


class JointComposition:
    """One batch's predictions of all readouts under way."""

    def __init__(
        self, readouts: JointReadouts, source: Float[Tensor, "batch time *space_channel"]
    ) -> None:
        self._readouts, self._source = readouts, source
        self._base = space_last(source[..., readouts.channels]).contiguous()
        self._sums: dict[str, Tensor] = {}
        based = {n: w.columns for n, w in readouts.weights.items() if w.columns.base}
        for centred in (False, True):
            alike = {n: c for n, c in based.items() if c.centred == centred}
            if alike:
                column = next(iter(alike.values())).base_column(self._base)
                self._accumulate({n: c.number - 1 for n, c in alike.items()}, column)

    def add(self, member: int, depth: int, iterate: Tensor) -> Tensor:
        """Take iterate h_ℓ (ℓ ≥ 1) of a member; returns the transform of h_ℓ - h_0.

        It is (batch, time, channel, *half, 2) over the measured channels, last real and imaginary.
        """
        positions = {
            name: position
            for name, weights in self._readouts.weights.items()
            if (position := weights.columns.position(member, depth)) is not None
        }
        return self._accumulate(positions, self.residual(iterate))

    def residual(self, field: Tensor) -> Tensor:
        """The measured channels of ``field`` - h_0, (batch, time, channel, *space)."""
        measured = space_last(field[..., self._readouts.channels])
        return torch.sub(measured, self._base, out=torch.empty_like(self._base))

    def _accumulate(self, positions: dict[str, int], column: Tensor) -> Tensor:
        spectrum = torch.view_as_real(forward(column, len(self._readouts.grid)))
        for name, position in positions.items():
            if not self._readouts.used[name][position]:
                continue
            weights = self._readouts.weights[name]
            values = spectrum if weights.cells.num_cells > 1 else column
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(values)
            weights.add(position, values, self._sums[name])
        return spectrum

    def results(self) -> Iterator[tuple[str, Float[Tensor, "batch time *space_channel"]]]:
        """Each readout's field in turn; unmeasured channels are those of the source."""
        for name, weights in self._readouts.weights.items():
            prediction, total = self._source.clone(), self._sums.pop(name, None)
            if total is not None:
                if weights.cells.num_cells > 1:
                    total = inverse(torch.view_as_complex(total), self._readouts.grid)
                for number, channel in enumerate(weights.measured):
                    prediction[..., channel] += total[:, :, number]
            yield name, prediction


def _spread(name: str, ensemble: SpectralEnsemble) -> CellWeights:
    if ensemble.weights_ is None or ensemble.columns_ is None:
        raise NotFittedError(f"Readout `{name}` is not fitted yet.")
    return CellWeights(
        ensemble.weights_,
        ensemble.columns_,
        ensemble.cells,
        measured=ensemble.measured,
        lead_groups=ensemble.lead_groups,
    )
