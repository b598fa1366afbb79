"""FitBatch: what a fit reads, and the checks of it."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from r2no import checks
from r2no._repr import brief_repr
from r2no._types import Field
from r2no.errors import EmptySplitError, ShapeError
from r2no.spectral import FourierCells


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
