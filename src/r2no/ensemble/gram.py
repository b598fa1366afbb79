"""GramSums: additive second moments of the columns in every cell (M6).

For each group of windows, cell b and channel the sums keep the (J+1) × (J+1) matrix of inner
products of the projected columns and, as last row, of the target residual y - h_0:

    moments = [[G_b, r_b], [r_bᵀ, ‖P_b(y - h_0)‖²]].

They add over windows, so they stream, merge across processes and sites, and carry everything that
solving and scoring need. Weighted by ‖y‖^-p per window, in float64, in physical units.
What is summed up comes as :class:`FitBatch`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from r2no import checks
from r2no._repr import brief_repr
from r2no._types import Field
from r2no.ensemble.columns import Columns
from r2no.ensemble.holdout import Fold
from r2no.errors import EmptySplitError, ShapeError
from r2no.spectral import FourierCells

_MOST_BLOCKS = 8  # of a stream


class FitBatch(NamedTuple):
    """What :meth:`SpectralEnsemble.fit` reads; a bare (source, iterates, target) works too.

    ``mask`` is True where the target was measured. ``group`` numbers the block of windows each
    window belongs to, for held-out choices.
    """

    source: Field
    iterates: Float[Tensor, "member depth batch *field"]
    target: Field
    mask: Tensor | None = None
    group: Int[Tensor, " batch"] | None = None

    def __repr__(self) -> str:
        return brief_repr(self)

    def to(self, device: torch.device) -> "FitBatch":
        """The fields on another device; the numbers of blocks stay."""
        mask = None if self.mask is None else self.mask.to(device)
        return self._replace(
            source=self.source.to(device),
            iterates=self.iterates.to(device),
            target=self.target.to(device),
            mask=mask,
        )

    @classmethod
    def of(cls, parts: Any) -> "FitBatch":
        """From (source, iterates, target) and, if they are there, mask and group."""
        found = checks.listed("batches", parts)
        if not 3 <= len(found) <= 5:
            raise ShapeError(
                "Each of `batches` must be (source, iterates, target) or a `FitBatch`, but one has "
                f"{len(found)} parts."
            )
        return cls(*found)


def check_batch(batch: FitBatch, cells: FourierCells, measured: tuple[int, ...]) -> None:
    """Raise unless the parts of a batch fit each other, the cells and the measured channels."""
    for name in ("source", "iterates", "target"):
        cells.check_field(name, getattr(batch, name))
    shape = tuple(batch.source.shape)
    if 0 in shape:
        raise EmptySplitError(
            f"`source` has shape {shape}, so the batch holds no values. Leave empty batches out."
        )
    if tuple(batch.target.shape) != shape or tuple(batch.iterates.shape[2:]) != shape:
        raise ShapeError(
            "`source`, `target` and each iterate must have one shape, but got "
            f"{shape}, {tuple(batch.target.shape)} and {tuple(batch.iterates.shape[2:])}. "
            "Check frames and channels; iterates are (member, depth, batch, ...)."
        )
    if batch.mask is not None and tuple(batch.mask.shape) != shape:
        raise ShapeError(
            f"`mask` must have the target's shape {shape}, got {tuple(batch.mask.shape)}."
        )
    outside = max(measured, default=-1) >= shape[-1] or min(measured, default=-1) < 0
    if outside or len(set(measured)) < len(measured):
        raise ShapeError(
            f"`measured` must name channels 0..{shape[-1] - 1} of the fields, each once, but is "
            f"{measured}. Fields are (batch, time, *space, channel)."
        )


@dataclass(frozen=True, eq=False)
class GramSums:
    """Moments by group of windows; groups are the blocks that held-out choices leave out.

    Attributes:
        moments: Second moments, last column the target residual.
        windows: Number of windows in each group.
    """

    moments: Float[Tensor, "group cell channel column_and_target column_and_target"]
    windows: Float[Tensor, " group"]

    __repr__ = brief_repr

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

    @staticmethod
    def bytes(
        columns: Columns, cells: FourierCells, channels: int, groups: int, lead_groups: int = 1
    ) -> int:
        """Memory of such sums."""
        slots = cells.num_cells * cells.weight_channels(channels) * lead_groups
        return 8 * groups * slots * (columns.number + 1) ** 2

    def to(self, device: torch.device) -> "GramSums":
        """The moments on another device; the small counts stay."""
        return replace(self, moments=self.moments.to(device))

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

    def concat(self, other: "GramSums") -> "GramSums":
        """Both sums, the groups of ``other`` after these; cells and columns must agree."""
        if self.moments.shape[1:] != other.moments.shape[1:]:
            raise ShapeError(
                "`other` must have the same cells, channels and columns as these sums, "
                f"{tuple(self.moments.shape[1:])}, but got {tuple(other.moments.shape[1:])}."
            )
        return GramSums.stacked([self, other])

    @classmethod
    def stacked(cls, parts: Sequence["GramSums"]) -> "GramSums":
        """The groups of all, one after another."""
        moments = torch.cat([part.moments for part in parts])
        return cls(moments, torch.cat([part.windows for part in parts]))

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
        return GramSums.stacked([self, GramSums(empty, self.windows.new_zeros(missing))])

    def with_columns(self, positions: list[int]) -> "GramSums":
        """Sums of a subset of the columns: a sub-block, no new pass over the data."""
        last = self.moments.shape[-1] - 1
        if positions == list(range(last)):
            return self
        return replace(self, moments=sub_block(self.moments, positions))

    def coarsen(self, coarse: Int[Tensor, " cell"], number: int) -> "GramSums":
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

    def shared_over_leads(self, lead_groups: int) -> "GramSums":
        """Sums without groups of lead time."""
        return replace(self, moments=self.moments.unflatten(2, (-1, lead_groups)).sum(3))


def sub_block(
    moments: Float[Tensor, "*rest size size"], positions: Sequence[int]
) -> Float[Tensor, "*rest fewer fewer"]:
    """Moments of some columns, and of the target, which comes last."""
    kept = torch.tensor([*positions, moments.shape[-1] - 1], device=moments.device)
    return moments.index_select(-2, kept).index_select(-1, kept)


class StreamBlocks:
    """At most eight running sums over contiguous blocks of equal length.

    Windows overlap, so halves must be contiguous blocks with a gap (never shuffled). When windows
    come as a bare stream, neither their number nor their trajectories are known beforehand: they
    are cut into blocks whose length doubles whenever they run out, a function of the number of
    windows alone, hence independent of batching.
    """

    def __init__(self) -> None:
        self._length = 1
        self._sums: list[GramSums] = []
        self._seen = 0

    def assign(self, windows: int) -> Iterator[tuple[int, Tensor]]:
        """Part the next ``windows`` windows: for each block, 0 for its windows, -1 for others."""
        position = 0
        while position < windows:
            if self._seen == self._length * _MOST_BLOCKS:
                self._halve()
            block = self._seen // self._length
            take = min(windows - position, (block + 1) * self._length - self._seen)
            group = torch.full((windows,), -1)
            group[position : position + take] = 0
            yield block, group
            self._seen += take
            position += take

    def add(self, part: GramSums, block: int) -> None:
        """Add the sums of some windows to their block."""
        if block == len(self._sums):
            self._sums.append(part)
        else:
            self._sums[block] = self._sums[block] + part

    def _halve(self) -> None:
        self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
        self._length *= 2

    def finish(self) -> tuple[GramSums, tuple[Fold, ...]]:
        """Collapse to three groups (first part, gap, last part) and the folds between the parts.

        The gap is one block, at least an eighth of the windows. Fewer than three blocks leave
        nothing to hold out: everything is in the first group and there are no folds.
        """
        if not self._sums:
            raise EmptySplitError(
                "`batches` held no windows, so there is nothing to fit. Give at least one."
            )
        number = len(self._sums)
        gap = number // 2
        folds: tuple[Fold, ...] = (((0,), (2,)), ((2,), (0,)))
        parts = [range(0, gap), range(gap, gap + 1), range(gap + 1, number)]
        if number < 3:
            parts, folds = [range(number), range(0), range(0)], ()
        together = GramSums.stacked(self._sums)
        return GramSums.stacked([together.total(tuple(part)) for part in parts]), folds
