"""What a batch of windows must be to be scored."""

from collections.abc import Iterable

import torch
from torch import Tensor

from r2no import checks
from r2no._types import Grid
from r2no.errors import EmptySplitError, GridMismatchError, NonFiniteError, ShapeError

Measured = int | tuple[int, ...]


def channel_indices(measured: Measured) -> tuple[int, ...]:
    """The scored channels one by one."""
    if isinstance(measured, Iterable):
        return tuple(checks.whole("measured", one, least=None) for one in measured)
    return tuple(range(checks.whole("measured", measured, least=None)))


def channel_slice(measured: Measured, channels: int) -> slice | list[int]:
    """The measured channels as a slice where they lead, so that selecting them copies nothing."""
    indices = channel_indices(measured)
    if not indices or len(set(indices)) < len(indices) or not set(indices) <= set(range(channels)):
        raise ShapeError(
            f"`measured` must name some of the {channels} channels, each once, but got {measured}. "
            "Give a number of leading channels or a tuple of indices."
        )
    if indices == tuple(range(len(indices))):
        return slice(0, len(indices))
    return list(indices)


def check_shapes(
    prediction: Tensor, target: Tensor, mask: Tensor | None, window: tuple[int, ...] | None
) -> None:
    """Refuse windows that do not fit each other, or ``window`` = (time, *space, channel)."""
    for name, values in (("prediction", prediction), ("target", target)):
        if checks.instance(name, values, Tensor).is_complex():
            raise ShapeError(f"`{name}` must hold real numbers, but is {values.dtype}.")
    if mask is not None:
        checks.instance("mask", mask, Tensor)
    if target.ndim not in (4, 5, 6):
        raise ShapeError(
            "`target` must have axes (batch, time, *space, channel) with one to three axes of "
            f"space, but got shape {tuple(target.shape)}."
        )
    check_window(tuple(prediction.shape[1:]), tuple(target.shape[1:]), "prediction")
    if window is not None:
        check_window(tuple(target.shape[1:]), window, "target")
    if len(prediction) != len(target) or (mask is not None and mask.shape != target.shape):
        raise ShapeError(
            f"`prediction` and `mask` must have the shape of `target`, {tuple(target.shape)}, but "
            f"have {tuple(prediction.shape)} and {mask if mask is None else tuple(mask.shape)}."
        )
    if mask is not None and mask.dtype != torch.bool:
        raise ShapeError(f"`mask` must be boolean, True where measured, but is {mask.dtype}.")
    if target.numel() == 0:
        raise EmptySplitError(
            f"`target` holds no values: shape {tuple(target.shape)}. Give at least one window."
        )


def check_window(got: tuple[int, ...], expected: tuple[int, ...], name: str) -> None:
    """Refuse windows of another (time, *space, channel)."""
    grid: Grid = expected[1:-1]
    if len(got) == len(expected) and got[1:-1] != grid:
        raise GridMismatchError(
            f"`{name}` must live on the grid {grid}, but lives on {got[1:-1]}. "
            "Resample it with `r2no.spectral.resample` first."
        )
    if got != expected:
        raise ShapeError(
            f"windows of `{name}` must have (time, *space, channel) = {expected}, but have {got}."
        )


def check_finite(prediction: Tensor, target: Tensor, mask: Tensor | None) -> None:
    """Refuse NaN and infinity where the mask is True."""
    for name, values in (("target", target), ("prediction", prediction)):
        bad = ~values.isfinite() if mask is None else ~values.isfinite() & mask
        if bad.any():
            raise NonFiniteError(
                f"`{name}` must be finite where measured, but {int(bad.sum())} of {bad.numel()} "
                "values are NaN or infinite. Pass a `mask` that is False there if they are gaps "
                "of the measurement; otherwise find out why the model diverged."
            )
