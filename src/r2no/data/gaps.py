"""The rule that fills gaps of a history (see :class:`r2no.data.ArrayWindows`)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def fill_gaps(
    values: Float[Tensor, "time *space channel"], valid: Bool[Tensor, "time *space channel"]
) -> Float[Tensor, "time *space channel"]:
    """Fill missing values in time, then with the channel's mean (see :class:`ArrayWindows`)."""
    if bool(valid.all()):
        return values
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
