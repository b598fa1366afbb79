"""Composition: the predictor (M8), assembled while the iterates appear.

    R(X) = h_0 + F⁻¹[ Σ_j W_j ⊙ F(c_j) ],

one complex accumulator whatever the depth and number of members, one inverse transform at the end.
Residuals are formed before the transform: weights of near-collinear columns are large and of
opposite sign, and would amplify the rounding of F(h_ℓ) and F(h_0) apart.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from r2no.ensemble.columns import Columns, lead_slices
from r2no.spectral import FourierCells, forward, inverse
from r2no.spectral.transforms import channel_picker, space_last


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
        if cells.num_cells == 1:  # a global combination needs no transform
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

    def add(self, position: int, values: Tensor, total: Tensor) -> None:
        """Add weight · values, (batch, time, channel, ...), of one column to ``total``."""
        for plane, frames in zip(
            self.like(values)[position],
            lead_slices(values.shape[1], self.lead_groups),
            strict=True,
        ):
            total[:, frames].addcmul_(values[:, frames], plane)


class Composition:
    """One batch's prediction under way: give it every iterate, then ask for the result."""

    def __init__(
        self, weights: CellWeights, source: Float[Tensor, "batch time *space_channel"]
    ) -> None:
        weights.cells.check_field("source", source)
        self._weights, self._source = weights, source
        self._spectral = weights.cells.num_cells > 1
        self._pick = channel_picker(weights.measured)
        self._base = space_last(source[..., self._pick]).contiguous()
        self._column = torch.empty_like(self._base)
        self._sum: Tensor | None = None
        if weights.columns.base:
            self._accumulate(weights.columns.number - 1, weights.columns.base_column(self._base))

    def add(self, member: int, depth: int, iterate: Tensor) -> None:
        """Take iterate h_ℓ (ℓ ≥ 1) of a member; ignored when the depth is not retained."""
        position = self._weights.columns.position(member, depth)
        if position is not None:
            measured = space_last(iterate[..., self._pick])
            self._accumulate(position, torch.sub(measured, self._base, out=self._column))

    def _accumulate(self, position: int, column: Tensor) -> None:
        if not self._weights.used[position]:
            return  # zero weights retain the source also where an iterate overflowed
        values = column
        if self._spectral:
            values = torch.view_as_real(forward(column, len(self._weights.cells.grid)))
        if self._sum is None:
            self._sum = torch.zeros_like(values)
        self._weights.add(position, values, self._sum)

    def result(self) -> Float[Tensor, "batch time *space_channel"]:
        """The composed field; unmeasured channels are those of the source, bit for bit."""
        prediction = self._source.clone()
        if self._sum is None:
            return prediction
        grid = self._weights.cells.grid
        total = self._sum
        correction = inverse(torch.view_as_complex(total), grid) if self._spectral else total
        for number, channel in enumerate(self._weights.measured):
            prediction[..., channel] += correction[:, :, number]
        return prediction
