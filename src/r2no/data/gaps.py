"""The rule that fills gaps of a history (see :class:`r2no.data.ArrayWindows`)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

#: How often missing values are replaced by the mean of their neighbours; holes wider than twice
#: this many points keep the value from another time at their centre.
SWEEPS = 8


def fill_gaps(
    values: Float[Tensor, "time *space channel"], valid: Bool[Tensor, "time *space channel"]
) -> Float[Tensor, "time *space channel"]:
    """Fill missing values: first from other times, then smoothly from their surroundings.

    The second step approaches the solution of Laplace's equation in the gaps with the valid values
    around them as boundary values (Jacobi sweeps, edges of the grid insulated). A field moves
    between two frames by more than it bends between two points, so the neighbours know better.
    """
    if bool(valid.all()):
        return values
    filled = _fill_in_time(values, valid)
    for _ in range(SWEEPS):
        filled = torch.where(valid, filled, _neighbour_mean(filled))
    return filled


def _fill_in_time(values: Tensor, valid: Tensor) -> Tensor:
    """The last valid value before, else the next one after, else the channel's mean, else zero."""
    frames = values.shape[0]
    known = torch.where(valid, values, torch.zeros((), dtype=values.dtype))
    frame = torch.arange(frames).reshape(-1, *[1] * (values.ndim - 1))
    before = torch.where(valid, frame, -1).cummax(0).values
    after = torch.where(valid, frame, frames).flip(0).cummin(0).values.flip(0)
    source = torch.where(before >= 0, before, after)
    filled = known.gather(0, source.clamp(max=frames - 1))
    axes = tuple(range(values.ndim - 1))
    count = valid.sum(axes).clamp(min=1)
    mean = (known.double().sum(axes) / count).to(values.dtype)
    return torch.where(source < frames, filled, mean)


def _neighbour_mean(values: Tensor) -> Tensor:
    """Mean of the two neighbours along each spatial axis; an edge is its own neighbour outside."""
    total = torch.zeros_like(values)
    for axis in range(1, values.ndim - 1):
        size = values.shape[axis]
        before = torch.arange(-1, size - 1).clamp(min=0)
        after = torch.arange(1, size + 1).clamp(max=size - 1)
        total += values.index_select(axis, before) + values.index_select(axis, after)
    return total / (2 * (values.ndim - 2))
