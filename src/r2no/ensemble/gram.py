"""GramSums: additive second moments of the columns in every cell (M6).

For each group of windows, cell b and channel the sums keep the (J+1) × (J+1) matrix of inner
products of the projected columns and, as last row, of the target residual y - h_0:

    moments = [[G_b, r_b], [r_bᵀ, ‖P_b(y - h_0)‖²]].

They add over windows, so they stream, merge across processes and sites, and carry everything that
solving and scoring need. Weighted by ‖y‖^-p per window, in float64, in physical units.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from r2no.ensemble.columns import Columns, lead_slices
from r2no.errors import NonFiniteError, ShapeError
from r2no.spectral import FourierCells, forward
from r2no.spectral.transforms import channel_picker, space_last

_CHUNK_BYTES = 2 * 2**20


@dataclass(frozen=True, eq=False)
class GramSums:
    """Moments by group of windows; groups are the blocks that held-out choices leave out.

    Attributes:
        moments: Second moments, last column the target residual.
        windows: Number of windows in each group.
    """

    moments: Float[Tensor, "group cell channel column_and_target column_and_target"]
    windows: Float[Tensor, " group"]

    @classmethod
    def zeros(
        cls,
        columns: Columns,
        cells: FourierCells,
        channels: int,
        groups: int,
        lead_groups: int = 1,
    ) -> "GramSums":
        """Sums of no windows; the channel axis runs over channels, then groups of lead time."""
        size = columns.number + 1
        weighted = cells.weight_channels(channels) * lead_groups
        shape = (groups, cells.num_cells, weighted, size, size)
        moments = torch.zeros(shape, dtype=torch.float64)
        return cls(moments, torch.zeros(groups, dtype=torch.float64))

    @property
    def gram(self) -> Float[Tensor, "group cell channel column column"]:
        """G_b of each group."""
        return self.moments[..., :-1, :-1]

    @property
    def rhs(self) -> Float[Tensor, "group cell channel column"]:
        """r_b of each group."""
        return self.moments[..., :-1, -1]

    @property
    def energy(self) -> Float[Tensor, "group cell channel"]:
        """‖P_b(y - h_0)‖², the error of the source, of each group."""
        return self.moments[..., -1, -1]

    def __add__(self, other: "GramSums") -> "GramSums":
        """Group-wise sum; the two must have the same groups, cells, channels and columns."""
        if self.moments.shape != other.moments.shape:
            raise ShapeError(
                "`other` must have the same groups, cells, channels and columns as these sums, "
                f"{tuple(self.moments.shape)}, but got {tuple(other.moments.shape)}. Fit both with "
                "the same cells, measured channels, members and depths."
            )
        return GramSums(self.moments + other.moments, self.windows + other.windows)

    def beside(self, other: "GramSums") -> "GramSums":
        """Both sums, the groups of ``other`` after these; cells and columns must agree."""
        if self.moments.shape[1:] != other.moments.shape[1:]:
            raise ShapeError(
                "`other` must have the same cells, channels and columns as these sums, "
                f"{tuple(self.moments.shape[1:])}, but got {tuple(other.moments.shape[1:])}."
            )
        moments = torch.cat([self.moments, other.moments])
        return GramSums(moments, torch.cat([self.windows, other.windows]))

    def total(self, groups: tuple[int, ...] | None = None) -> "GramSums":
        """Sum over the given groups (default: all), as one group."""
        chosen = list(range(len(self.windows))) if groups is None else list(groups)
        moments = self.moments[chosen].sum(0, keepdim=True)
        return GramSums(moments, self.windows[chosen].sum(0, keepdim=True))

    def with_groups(self, number: int) -> "GramSums":
        """The same sums with at least so many groups, new ones empty."""
        missing = number - len(self.windows)
        if missing <= 0:
            return self
        empty = self.moments.new_zeros(missing, *self.moments.shape[1:])
        counts = self.windows.new_zeros(missing)
        return GramSums(torch.cat([self.moments, empty]), torch.cat([self.windows, counts]))

    def with_columns(self, positions: list[int]) -> "GramSums":
        """Sums of a subset of the columns: a sub-block, no new pass over the data."""
        kept = torch.tensor([*positions, self.moments.shape[-1] - 1])
        return replace(self, moments=self.moments[..., kept[:, None], kept[None, :]])

    def with_index(self, coarse: Int[Tensor, " cell"], number: int) -> "GramSums":
        """Sums of a coarser partition, cell b of this one lying in cell ``coarse[b]`` of it."""
        shape = (self.moments.shape[0], number, *self.moments.shape[2:])
        return replace(
            self, moments=self.moments.new_zeros(shape).index_add_(1, coarse, self.moments)
        )

    def packed(self, occupied: Bool[Tensor, " cell"]) -> dict[str, Tensor]:
        """For files: the upper triangles of the occupied cells."""
        size = self.moments.shape[-1]
        rows, columns = torch.triu_indices(size, size).unbind()
        triangles = self.moments[:, occupied][..., rows, columns]
        return {"triangles": triangles, "occupied": occupied, "windows": self.windows}

    @classmethod
    def unpacked(cls, packed: dict[str, Tensor]) -> "GramSums":
        """Inverse of :meth:`packed`."""
        triangles, occupied = packed["triangles"], packed["occupied"]
        size = round((2 * triangles.shape[-1] + 0.25) ** 0.5 - 0.5)
        rows, columns = torch.triu_indices(size, size).unbind()
        square = triangles.new_zeros(*triangles.shape[:-1], size, size)
        square[..., rows, columns] = square[..., columns, rows] = triangles
        groups, _, channels = triangles.shape[:3]
        moments = square.new_zeros(groups, len(occupied), channels, size, size)
        moments[:, occupied] = square
        return cls(moments, packed["windows"])

    def shared_over_channels(self, lead_groups: int = 1) -> "GramSums":
        """Sums of the partition without the channel axis."""
        return replace(self, moments=self.moments.unflatten(2, (-1, lead_groups)).sum(2))


class ColumnSpectra:
    """Spectra of the columns of one batch, filled as the iterates appear; then summed (M6).

    Under a mask the target residual and every column are set to zero where nothing was measured,
    so those points have no influence; the cells are then orthogonal only approximately, which
    is the price of gaps. The memory of an earlier batch that is no longer needed can be taken over
    (``reuse``): it is the largest of a fit.
    """

    def __init__(
        self,
        source: Float[Tensor, "batch time *space_channel"],
        target: Float[Tensor, "batch time *space_channel"],
        columns: Columns,
        cells: FourierCells,
        *,
        measured: tuple[int, ...],
        mask: Tensor | None = None,
        lead_groups: int = 1,
        by_deviation: bool = False,
        reuse: "ColumnSpectra | None" = None,
    ) -> None:
        self.columns, self.cells, self.measured = columns, cells, measured
        self._by_deviation = by_deviation
        self._lead_groups = lead_groups
        self._source = self._measured(source).contiguous()
        self._mask = None if mask is None else self._measured(mask)
        target = self._measured(target)
        self.target = target if self._mask is None else torch.where(self._mask, target, 0)
        batch, frames, channels = self._source.shape[:3]
        self._order, self._runs = _by_cell(cells)
        shape = (channels, len(self._order), columns.number + 1, batch, frames)
        kind = source.dtype.to_complex()
        spectra: Tensor | None = None if reuse is None else reuse._spectra
        if spectra is None or (spectra.shape, spectra.dtype) != (shape, kind):
            spectra = torch.empty(shape, dtype=kind, device=source.device)
        self._spectra: Tensor = spectra
        self._residual = torch.empty_like(self._source)
        self._put(columns.number, torch.sub(target, self._source, out=self._residual))
        if columns.base:
            self._put(columns.number - 1, columns.base_column(self._source))
            if columns.centred and mask is None:  # exactly, not but for rounding
                self._spectra[:, self._order == 0, columns.number - 1] = 0

    def add(self, member: int, depth: int, iterate: Tensor) -> None:
        """Take iterate h_ℓ (ℓ ≥ 1) of a member; ignored when the depth is not retained."""
        position = self.columns.position(member, depth)
        if position is not None:
            values = self._measured(iterate)
            self._put(position, torch.sub(values, self._source, out=self._residual))

    def _measured(self, field: Tensor) -> Tensor:
        return space_last(field[..., channel_picker(self.measured)])

    def _put(self, position: int, column: Tensor) -> None:
        """Transform a column, (batch, time, channel, *space), into its slot."""
        if self._mask is not None:
            column = torch.where(self._mask, column, 0)
        spectrum = forward(column, len(self.cells.grid)).flatten(3)
        for channel, slot in enumerate(self._spectra[:, :, position]):
            by_coefficient = spectrum[:, :, channel].flatten(0, 1).t().contiguous()
            slot.copy_(by_coefficient.index_select(0, self._order).unflatten(1, slot.shape[1:]))

    def sums(
        self, group: Int[Tensor, " batch"], num_groups: int, weight_exponent: float
    ) -> GramSums:
        """The batch's moments by group, windows weighted by ‖y‖^-p; a group below 0 is left out."""
        shape = (self.columns, self.cells, len(self.measured), num_groups, self._lead_groups)
        sums = GramSums.zeros(*shape)
        self.add_to(sums, group, weight_exponent)
        return sums

    def add_to(self, sums: GramSums, group: Int[Tensor, " batch"], weight_exponent: float) -> None:
        """Add the batch's moments to ``sums`` in place, each window to its group."""
        weights = window_weights(self._weighed(), weight_exponent)
        for number in sorted({int(number) for number in group if number >= 0}):
            chosen = (group == number).nonzero().squeeze(1)
            self._accumulate(sums.moments[number], chosen, weights[chosen])
            sums.windows[number] += len(chosen)

    def _weighed(self) -> Tensor:
        """What the norm of a window is taken of: the target, or its deviation from its mean."""
        return deviation(self.target, self._mask) if self._by_deviation else self.target

    def _accumulate(self, moments: Tensor, chosen: Tensor, weights: Tensor) -> None:
        """Add Σ m(k)·weight·(column product), over the coefficients of a cell, to its moments."""
        whole = len(chosen) == self._spectra.shape[3]
        spectra = self._spectra if whole else self._spectra[:, :, :, chosen]
        multiplicity = self.cells.multiplicity.reshape(-1).to(self._spectra.device)[self._order]
        root = (multiplicity[:, None] * weights).sqrt()
        leads = lead_slices(spectra.shape[-1], self._lead_groups)
        for (channel, of_channel), (lead, frames) in product(enumerate(spectra), enumerate(leads)):
            first = 0 if self.cells.shared_channels else channel * len(leads)
            slot, of_channel = moments[:, first + lead], of_channel[..., frames]
            for cells, start, count in self._parts(of_channel[0].numel()):
                part = slice(start, start + len(cells) * count)
                values = torch.view_as_real(of_channel[part]).unflatten(0, (len(cells), count))
                scale = root[part].unflatten(0, (len(cells), 1, count))[..., None, None]
                values = values.transpose(1, 2).double() * scale
                values = values.flatten(2)  # cell, column, observation
                products = values @ values.transpose(-1, -2)
                _check_finite(products)
                slot.index_add_(0, cells, products.cpu())

    def _parts(self, values: int) -> Iterator[tuple[Tensor, int, int]]:
        """Runs of cells with the same count, cut so that a part fits in cache."""
        for cells, start, count in self._runs:
            step = max(1, _CHUNK_BYTES // (16 * values * count))
            for first in range(0, len(cells), step):
                yield cells[first : first + step], start + first * count, count


def _by_cell(cells: FourierCells) -> tuple[Tensor, list[tuple[Tensor, int, int]]]:
    """Coefficients ordered so that cells of one size lie together, and a run of each size.

    A run is the cells' numbers, the place of its first coefficient, and coefficients per cell.
    """
    index = cells.index.reshape(-1)
    counts = torch.bincount(index, minlength=cells.num_cells)
    order = torch.argsort(counts[index] * cells.num_cells + index, stable=True)
    runs, start = [], 0
    for count in counts.unique().tolist():
        if count > 0:
            members = (counts == count).nonzero().squeeze(1)
            runs.append((members, start, count))
            start += count * len(members)
    return order, runs


def _check_finite(products: Tensor) -> None:
    """A value that is not finite shows in the squares of its column."""
    if not torch.isfinite(products.diagonal(dim1=-2, dim2=-1).sum()):
        raise NonFiniteError(
            "`source`, `iterates` and `target` must be finite on the measured channels, but a "
            "value is NaN or infinite. Pass a mask for gaps in the target; a non-finite "
            "iterate means the repair loop diverged."
        )


def deviation(
    target: Float[Tensor, "batch time *channel_space"], mask: Tensor | None
) -> Float[Tensor, "batch time *channel_space"]:
    """The target less the mean of each window and channel, zero where it was not measured.

    In float64. A channel that is constant but for rounding deviates by nothing.
    """
    axes = (1, *range(3, target.ndim))
    valid = torch.ones_like(target, dtype=torch.bool) if mask is None else mask
    wide, count = target.double(), valid.sum(axes, keepdim=True).clamp_min(1)
    mean = wide.sum(axes, keepdim=True) / count  # the target is zero where it was not measured
    away = torch.where(valid, wide - mean, 0.0)
    rounding = torch.finfo(target.dtype).eps * mean.abs()
    return torch.where(away.square().sum(axes, keepdim=True) > count * rounding**2, away, 0.0)


def window_weights(
    target: Float[Tensor, "batch time *channel_space"], exponent: float
) -> Float[Tensor, " batch"]:
    """‖y‖^-p of each window over the measured values; a window whose norm is zero weighs 0."""
    norms = target.double().flatten(1).norm(dim=1)
    if exponent == 0:
        return torch.ones_like(norms)
    return torch.where(norms > 0, norms.clamp_min(torch.finfo(norms.dtype).tiny) ** -exponent, 0.0)
