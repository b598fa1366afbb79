"""Composition: the predictor (M8), assembled while the iterates appear.

    R(X) = h_0 + F⁻¹[ Σ_j W_j ⊙ F(c_j) ],

one complex accumulator whatever the depth and number of members, one inverse transform at the end.
Readouts of one trajectory differ in their weights only, so they share the transform of h_ℓ - h_0
and each costs one multiplication per coefficient; a single forecast is one readout.
Residuals are formed before the transform: weights of near-collinear columns are large and of
opposite sign, and would amplify the rounding of F(h_ℓ) and F(h_0) apart.
"""

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from r2no._types import Field
from r2no.ensemble.columns import BASE, PARTNER, Columns, lead_slices, repair_label
from r2no.errors import ConfigError
from r2no.spectral import FourierCells, forward, inverse
from r2no.spectral.transforms import (
    channel_picker,
    quadrature_sign,
    rows_together,
    space_last,
)


class CellWeights:
    """Fitted weights spread over the half-plane once, so that prediction only multiplies."""

    def __init__(
        self,
        weights: Float[Tensor, "cell channel column"],
        columns: Columns,
        cells: FourierCells,
        *,
        measured: tuple[int, ...],
        lead_groups: int = 1,
    ) -> None:
        self.columns, self.cells, self.measured = columns, cells, measured
        self.lead_groups = lead_groups
        full = weights.unflatten(1, (-1, lead_groups)).expand(-1, len(measured), -1, -1)
        self.spectral = cells.num_cells > 1 or bool(columns.partners)
        if not self.spectral:  # a global combination needs no transform
            plane = full[0].permute(2, 1, 0)[..., *[None] * len(cells.grid)]
        else:
            plane = full[cells.index].movedim((-1, -2, -3), (0, 1, 2))
            plane = plane[..., None].expand(*plane.shape, 2)  # for both parts of a coefficient
        self.plane = plane.contiguous()  # column, lead, channel, *half[, 2]
        self.used = weights.ne(0).flatten(0, -2).any(0).tolist()  # by column
        self._cast: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def like(self, field: Tensor) -> Float[Tensor, "column lead channel *half_and_parts"]:
        """The weights in the precision and on the device of ``field``."""
        key = (field.dtype, field.device)
        if key not in self._cast:
            self._cast[key] = self.plane.to(field)
        return self._cast[key]

    @property
    def labels(self) -> set[str]:
        """Columns that are needed: with a weight somewhere, or a partner that has one."""
        pairs = zip(self.columns.labels, self.used, strict=True)
        return {label.removeprefix(PARTNER) for label, used in pairs if used}

    def used_place(self, label: str) -> int | None:
        """Position of a column, or ``None`` where it has no weight anywhere."""
        place = self.columns.place(label)
        return place if place is not None and self.used[place] else None

    def add(self, position: int, values: Tensor, total: Tensor) -> None:
        """Add weight · values, (batch, time, channel, ...), of one column to ``total``."""
        for plane, frames in zip(
            self.like(values)[position],
            lead_slices(values.shape[1], self.lead_groups),
            strict=True,
        ):
            total[:, frames].addcmul_(values[:, frames], plane)


class Readouts:
    """Weights by name over one grid and one set of measured channels, ready to be composed."""

    def __init__(self, weights: Mapping[str, CellWeights]) -> None:
        self.weights = dict(weights)
        first = next(iter(self.weights.values()), None)
        if first is None:
            raise ConfigError("`ensembles` is empty: give at least one readout.")
        self.cells, self.measured, self.grid = first.cells, first.measured, first.cells.grid
        self.channels = channel_picker(self.measured)
        for name, each in self.weights.items():
            if each.measured != self.measured or each.cells.grid != self.grid:
                raise ConfigError(
                    f"Readout `{name}` has another grid or other measured channels than the "
                    "first. Compose readouts of one model together."
                )

    def __repr__(self) -> str:
        return f"Readouts({', '.join(self.weights)} on {' x '.join(map(str, self.grid))})"

    def compose(self, source: Field, *, spectra: bool = False) -> "Composition":
        """Start one batch: ``add`` every iterate, then read ``result()`` or ``results()``.

        With ``spectra`` every ``add`` returns the transform, whether a readout needs it or not.
        """
        self.cells.check_field("source", source)
        return Composition(self, source, spectra)


class Composition:
    """One batch's forecasts under way, of one readout or of many."""

    def __init__(
        self,
        readouts: Readouts,
        source: Field,
        spectra: bool = False,
    ) -> None:
        self._readouts, self._source, self._spectra = readouts, source, spectra
        self._base = rows_together(space_last(source[..., readouts.channels]))
        self._sums: dict[str, Tensor] = {}
        based = {n: w.columns for n, w in readouts.weights.items() if w.columns.base}
        for centred in (False, True):
            alike = {n: c for n, c in based.items() if c.centred == centred}
            if alike:
                self._accumulate(BASE, next(iter(alike.values())).base_column(self._base), alike)

    def __repr__(self) -> str:
        return f"Composition(source {tuple(self._source.shape)}, {self._readouts})"

    def add(self, member: int, depth: int, iterate: Tensor) -> Tensor | None:
        """Take iterate h_ℓ (ℓ ≥ 1) of a member; returns the transform of h_ℓ - h_0, if made.

        It is (batch, time, channel, *half, 2) over the measured channels, last real and imaginary.
        """
        return self.put(repair_label(member, depth), iterate)

    def put(self, label: str, forecast: Tensor) -> Tensor | None:
        """Take the forecast u of a column; returns the transform of u - h_0, if made."""
        columns = {n: w.columns for n, w in self._readouts.weights.items()}
        columns = {n: c for n, c in columns.items() if c.place(label) is not None}
        if not columns and not self._spectra:
            return None
        return self._accumulate(label, self.residual(forecast), columns)

    def residual(self, field: Tensor) -> Tensor:
        """The measured channels of ``field`` - h_0, (batch, time, channel, *space)."""
        measured = space_last(field[..., self._readouts.channels])
        return torch.sub(measured, self._base, out=torch.empty_like(self._base))

    def _accumulate(
        self, label: str, column: Tensor, columns: Mapping[str, Columns]
    ) -> Tensor | None:
        """Add a column, and its partner where there is one, to the readouts that use it.

        Zero weights retain the source also where an iterate overflowed, so they add nothing.
        """
        weights = {name: self._readouts.weights[name] for name in columns}
        own = {name: each.used_place(label) for name, each in weights.items()}
        partner = {name: each.used_place(PARTNER + label) for name, each in weights.items()}
        needed = (w.spectral and {own[n], partner[n]} != {None} for n, w in weights.items())
        spectrum = None
        if self._spectra or any(needed):
            spectrum = torch.view_as_real(forward(column, len(self._readouts.grid)))
        for name, place in own.items():
            if place is not None:
                plain = spectrum is None or not weights[name].spectral
                self._add(name, place, column if plain else spectrum)
        if any(place is not None for place in partner.values()):
            assert spectrum is not None  # partners make a readout spectral
            turned = self._turned(spectrum)
            for name, place in partner.items():
                if place is not None:
                    self._add(name, place, turned)
        return spectrum

    def _add(self, name: str, place: int, values: Tensor | None) -> None:
        assert values is not None
        if name not in self._sums:
            self._sums[name] = torch.zeros_like(values)
        self._readouts.weights[name].add(place, values, self._sums[name])

    def _turned(self, spectrum: Tensor) -> Tensor:
        """The transform of the quadrature partner, real and imaginary part last."""
        sign = quadrature_sign(self._readouts.grid).to(spectrum)[..., None]
        real, imaginary = spectrum.split(1, -1)
        return torch.cat([-imaginary, real], -1) * sign

    def result(self) -> Field:
        """The forecast of the only readout."""
        ((_, forecast),) = self.results()
        return forecast

    def results(self) -> Iterator[tuple[str, Field]]:
        """Each readout's field in turn; unmeasured channels are the source's, bit for bit."""
        for name, weights in self._readouts.weights.items():
            prediction, total = self._source.clone(), self._sums.pop(name, None)
            if total is not None:
                if weights.spectral:
                    total = inverse(torch.view_as_complex(total), self._readouts.grid)
                for number, channel in enumerate(weights.measured):
                    prediction[..., channel] += total[:, :, number]
            yield name, prediction
