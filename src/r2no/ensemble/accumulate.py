"""The one accumulator of Gram sums: iterates in, additive sums by block of windows out (M6).

Fitting arrays and adapting a model both go through :class:`GramAccumulator`; windows come with the
number of their block, or as a bare stream that is cut into blocks on the way.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from r2no import devices
from r2no._types import Field, Number
from r2no.ensemble.columns import BASE, PARTNER, Columns, lead_slices, repair_label
from r2no.ensemble.gram import FitBatch, GramSums, StreamBlocks, check_batch
from r2no.ensemble.holdout import Fold
from r2no.errors import ConfigError, NonFiniteError
from r2no.spectral import FourierCells, forward
from r2no.spectral.transforms import (
    channel_picker,
    quadrature_partner,
    rows_together,
    space_last,
)

_CHUNK_BYTES, _DEVICE_CHUNK_BYTES = 2 * 2**20, 256 * 2**20


class GramAccumulator:
    """Sums of a fit under way: ``begin`` a batch, give it every iterate, ``add`` it.

    Args:
        columns: Which iterates are columns.
        cells: The partition.
        measured: Channels that the target really holds.
        exponents: One set of sums for each exponent p of the window weight ‖y‖^-p.
        groups: Number of blocks if windows come with theirs, which may be numbered further; 0 for
            a bare stream.
        lead_groups: Groups of lead time with sums of their own.
        weigh_by: Whether p refers to the norm of y, or to that of its deviation from its mean.
    """

    def __init__(
        self,
        columns: Columns,
        cells: FourierCells,
        *,
        measured: tuple[int, ...],
        exponents: Sequence[Number],
        groups: int = 0,
        lead_groups: int = 1,
        weigh_by: Literal["norm", "deviation"] = "norm",
    ) -> None:
        self.columns, self.cells, self.measured = columns, cells, measured
        self.lead_groups, self.groups, self.weigh_by = lead_groups, groups, weigh_by
        self.sums = {exponent: self._zeros(groups) for exponent in exponents} if groups else {}
        self._streams = {exponent: StreamBlocks() for exponent in exponents} if not groups else {}
        self._batch: ColumnSpectra | None = None

    def __repr__(self) -> str:
        how = f"{self.groups} groups" if self.groups else "a stream"
        return f"GramAccumulator({how}, {self.columns.number} columns, {self.cells})"

    def begin(
        self,
        source: Field,
        target: Field,
        mask: Tensor | None = None,
    ) -> "ColumnSpectra":
        """Start a batch; what it returns takes the iterates. Memory of the last one is reused."""
        check_batch(FitBatch(source, source[None, None], target, mask), self.cells, self.measured)
        self.sums = {exponent: sums.to(source.device) for exponent, sums in self.sums.items()}
        self._batch = ColumnSpectra(
            source,
            target,
            self.columns,
            self.cells,
            measured=self.measured,
            mask=mask,
            lead_groups=self.lead_groups,
            by_deviation=self.weigh_by == "deviation",
            reuse=self._batch,
        )
        return self._batch

    def add(self, group: Int[Tensor, " batch"] | None = None) -> None:
        """Sum up the batch that was begun, each window into its block."""
        assert self._batch is not None
        if (group is None) == bool(self.groups):
            raise ConfigError(
                "`group` must be given with every batch or with none, and `folds` only with "
                "groups, but a batch differs. Number the block of each window."
            )
        if group is None:
            for exponent, stream in self._streams.items():
                for block, chosen in stream.assign(self._batch.windows):
                    stream.add(self._batch.sums(chosen, 1, float(exponent)), block)
            return
        group, squares = group.cpu(), []
        for exponent, sums in self.sums.items():
            self.sums[exponent] = sums.with_groups(int(group.max()) + 1)
            squares += self._batch.add_to(self.sums[exponent], group, float(exponent))
        _check_finite(squares)

    def collected(self) -> dict[Number, GramSums]:
        """The sums of each exponent so far, on the CPU."""
        return {exponent: sums.to(devices.CPU) for exponent, sums in self.sums.items()}

    def streamed(self, exponent: Number) -> tuple[GramSums, tuple[Fold, ...]]:
        """The sums of a bare stream by block, and the folds between the blocks."""
        sums, folds = self._streams[exponent].finish()
        return sums.to(devices.CPU), folds

    def _zeros(self, groups: int) -> GramSums:
        return GramSums.zeros(
            self.columns, self.cells, len(self.measured), groups, self.lead_groups
        )


class ColumnSpectra:
    """Spectra of the columns of one batch, filled as the iterates appear; then summed (M6).

    Under a mask the target residual and every column are set to zero where nothing was measured,
    so those points have no influence; the cells are then orthogonal only approximately, which
    is the price of gaps. The memory of an earlier batch that is no longer needed can be taken over
    (``reuse``): it is the largest of a fit.
    """

    def __init__(
        self,
        source: Field,
        target: Field,
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
        self._source = rows_together(self._measured(source))
        self._mask = None if mask is None else self._measured(mask)
        target = self._measured(target)
        self.target = target if self._mask is None else torch.where(self._mask, target, 0)
        batch, frames, channels = self._source.shape[:3]
        self._place = source.device
        self._order, self._runs, zero = _by_cell(cells, source.device)
        shape = (channels, columns.number + 1, len(self._order), batch, frames)
        kind = source.dtype.to_complex()
        spectra: Tensor | None = None if reuse is None else reuse._spectra
        if spectra is None or (spectra.shape, spectra.dtype) != (shape, kind):
            spectra = torch.empty(shape, dtype=kind, device=source.device)
        self._spectra: Tensor = spectra
        self._residual = torch.empty_like(self._source)
        self._given: set[int] = set()  # columns that were put
        self._put(columns.number, torch.sub(target, self._source, out=self._residual))
        if columns.base:
            self._put_with_partner(BASE, columns.base_column(self._source))
            if columns.centred and mask is None:  # exactly, not but for rounding
                self._spectra[:, columns.number - 1, zero] = 0

    def __repr__(self) -> str:
        return f"ColumnSpectra({self.windows} windows, {self.columns.number} columns, {self.cells})"

    @property
    def windows(self) -> int:
        """Number of windows in the batch."""
        return self._spectra.shape[3]

    def add(self, member: int, depth: int, iterate: Tensor) -> None:
        """Take iterate h_ℓ (ℓ ≥ 1) of a member; ignored when the depth is not retained."""
        self.put(repair_label(member, depth), iterate)

    def put(self, label: str, forecast: Tensor) -> None:
        """Take the forecast u of a column by its label; ignored when it is not a column."""
        if self.columns.place(label) is not None:
            values = self._measured(forecast)
            column = torch.sub(values, self._source, out=self._residual)
            self._put_with_partner(label, column)

    def _measured(self, field: Tensor) -> Tensor:
        return space_last(field[..., channel_picker(self.measured)])

    def _put_with_partner(self, label: str, column: Tensor) -> None:
        """Fill the slot of a column and that of its quadrature partner, if it has one."""
        place, partner = self.columns.place(label), self.columns.place(PARTNER + label)
        if partner is not None:
            self._put(partner, quadrature_partner(column, self.cells.grid))
        if place is not None:
            self._put(place, column)

    def _put(self, position: int, column: Tensor) -> None:
        """Transform a column, (batch, time, channel, *space), into its slot."""
        self._given.add(position)
        if self._mask is not None:
            column = torch.where(self._mask, column, 0)
        spectrum = forward(column, len(self.cells.grid)).flatten(3)
        for channel, slot in enumerate(self._spectra[:, position]):
            by_coefficient = spectrum[:, :, channel].flatten(0, 1).t().contiguous()
            torch.index_select(by_coefficient, 0, self._order, out=slot.flatten(1))

    def sums(
        self, group: Int[Tensor, " batch"], num_groups: int, weight_exponent: float
    ) -> GramSums:
        """The batch's moments by group, windows weighted by ‖y‖^-p; a group below 0 is left out."""
        shape = (self.columns, self.cells, len(self.measured), num_groups, self._lead_groups)
        sums = GramSums.zeros(*shape).to(self._place)
        _check_finite(self.add_to(sums, group, weight_exponent))
        return sums

    def add_to(
        self, sums: GramSums, group: Int[Tensor, " batch"], weight_exponent: float
    ) -> list[Tensor]:
        """Add the batch's moments to ``sums`` in place, each window to its group.

        Returns a sum of squares for each group, not finite if a value is not: looking at it waits
        for a GPU, so callers look once.
        """
        if missing := set(range(self.columns.number)) - self._given:
            names = [self.columns.labels[place] for place in sorted(missing)]
            raise ConfigError(f"Columns {names} were never given, so there is nothing to sum up.")
        weights, squares = window_weights(self._weighed(), weight_exponent), []
        for number in sorted({number for number in group.tolist() if number >= 0}):
            chosen = (group == number).nonzero().squeeze(1).to(self._place)
            self._accumulate(sums.moments[number], chosen, weights[chosen])
            sums.windows[number] += len(chosen)
            squares.append(sums.moments[number].diagonal(dim1=-2, dim2=-1).sum())
        return squares

    def _weighed(self) -> Tensor:
        """What the norm of a window is taken of: the target, or its deviation from its mean."""
        return deviation(self.target, self._mask) if self._by_deviation else self.target

    def _accumulate(self, moments: Tensor, chosen: Tensor, weights: Tensor) -> None:
        """Add Σ m(k)·weight·(column product), over the coefficients of a cell, to its moments."""
        whole = len(chosen) == self.windows
        spectra = self._spectra if whole else self._spectra[:, :, :, chosen]
        multiplicity = self.cells.multiplicity.reshape(-1).to(self._place)[self._order]
        root = (multiplicity[:, None] * weights).sqrt()
        leads = lead_slices(spectra.shape[-1], self._lead_groups)
        for (channel, of_channel), (lead, frames) in product(enumerate(spectra), enumerate(leads)):
            first = 0 if self.cells.shared_channels else channel * len(leads)
            slot, of_channel = moments[:, first + lead], of_channel[..., frames]
            for cells, start, count in self._parts(of_channel[:, 0].numel()):
                part = slice(start, start + len(cells) * count)
                values = torch.view_as_real(of_channel[:, part]).unflatten(1, (len(cells), count))
                values = values.transpose(0, 1)  # cell, column, observations
                scale = root[part].unflatten(0, (len(cells), count))[..., None, None]
                scale = scale.expand(values[:, 0].shape).flatten(1)[:, None]
                wide = torch.empty(values.shape, dtype=scale.dtype, device=self._place)
                wide = wide.copy_(values).flatten(2).mul_(scale)
                slot.index_add_(0, cells, wide @ wide.transpose(-1, -2))

    def _parts(self, values: int) -> Iterator[tuple[Tensor, int, int]]:
        """Runs of cells with the same count, cut so that a part fits in cache."""
        most = _CHUNK_BYTES if self._place.type == "cpu" else _DEVICE_CHUNK_BYTES
        for cells, start, count in self._runs:
            step = max(1, most // (16 * values * count))
            for first in range(0, len(cells), step):
                yield cells[first : first + step], start + first * count, count


def _by_cell(
    cells: FourierCells, device: torch.device
) -> tuple[Tensor, list[tuple[Tensor, int, int]], int]:
    """Coefficients ordered so that cells of one size lie together, and a run of each size.

    A run is the cells' numbers, the place of its first coefficient, and coefficients per cell. The
    last result is the place of the mean, coefficient 0.
    """
    index = cells.index.reshape(-1)
    counts = torch.bincount(index, minlength=cells.num_cells)
    order = torch.argsort(counts[index] * cells.num_cells + index, stable=True)
    runs, start = [], 0
    for count in counts.unique().tolist():
        if count > 0:
            members = (counts == count).nonzero().squeeze(1)
            runs.append((members.to(device), start, count))
            start += count * len(members)
    return order.to(device), runs, int((order == 0).nonzero())


def _check_finite(squares: Sequence[Tensor]) -> None:
    """A value that is not finite shows in the squares of its column."""
    if squares and not torch.isfinite(torch.stack(list(squares))).all():
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
