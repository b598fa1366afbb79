"""What trajectories and their constants must be like before windows are cut from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from r2no import checks
from r2no.checks import did_you_mean
from r2no.data.lazy import LazyTrajectory
from r2no.errors import (
    ConfigError,
    DataError,
    EmptySplitError,
    GridMismatchError,
    NonFiniteError,
    ShapeError,
)

Array = np.ndarray | Tensor | LazyTrajectory


def as_plain(name: str, array: Any) -> np.ndarray:
    """A NumPy array of real numbers in the machine's byte order; the mask of a masked one is lost.

    Raises:
        DataError: for complex numbers, text and objects.
    """
    found = np.ma.getdata(np.asanyarray(array))
    if found.dtype.kind not in "biuf":
        raise DataError(
            f"`{name}` must hold real numbers, but is of type {found.dtype}. "
            + (
                "Give real and imaginary part, or the modulus, as channels."
                if found.dtype.kind == "c"
                else "Convert it with `numpy.asarray(..., dtype=float)`."
            )
        )
    if found.dtype.itemsize > 8:  # long doubles, which PyTorch does not have
        found = found.astype(np.float64)
    return np.ascontiguousarray(found, dtype=found.dtype.newbyteorder("="))


def check_shapes(trajectories: Sequence[Any], window: int) -> None:
    """Refuse trajectories that differ in grid or channels, or are shorter than ``window``."""
    if not trajectories:
        raise EmptySplitError("`trajectories` is empty. Give at least one array.")
    for number, trajectory in enumerate(trajectories):
        _check_kind(number, trajectory)
    first = tuple(trajectories[0].shape)
    for number, trajectory in enumerate(trajectories):
        shape = tuple(trajectory.shape)
        if not 3 <= len(shape) <= 5:
            raise ShapeError(
                "A trajectory must have axes (time, space..., channel) with one to three spatial "
                f"axes, but number {number} has shape {shape}. Add the missing axes with reshape."
            )
        if len(shape) != len(first) or shape[1:-1] != first[1:-1]:
            raise GridMismatchError(
                f"Trajectories must share one grid, but number 0 has {first[1:-1]} and number "
                f"{number} has {shape[1:-1]}. Resample them, or make one data set per grid."
            )
        if shape[-1] != first[-1]:
            raise ShapeError(
                f"Trajectories must share their channels, but number 0 has {first[-1]} and number "
                f"{number} has {shape[-1]} on the last axis."
            )
        if 0 in shape[1:]:
            raise GridMismatchError(
                f"Trajectory {number} has shape {shape}: an axis without points holds no field."
            )
        if shape[0] < window:
            raise EmptySplitError(
                f"Trajectory {number} has {shape[0]} frames, fewer than the {window} of a window. "
                "Shorten `history` or `horizon`, or leave the trajectory out."
            )


def _check_kind(number: int, trajectory: Any) -> None:
    """Refuse what is no array of real numbers."""
    kind = getattr(trajectory, "dtype", None)
    if kind is None or not hasattr(trajectory, "shape"):
        raise ShapeError(
            f"A trajectory must be an array or a tensor, but number {number} is a "
            f"`{type(trajectory).__name__}`."
        )
    real = not kind.is_complex if isinstance(kind, torch.dtype) else kind.kind in "biuf"
    if not real:
        raise DataError(
            f"A trajectory must hold real numbers, but number {number} is of type {kind}. Give "
            "real and imaginary part as channels, or convert it to float."
        )


def read_constants(
    conditioning: Sequence[Sequence[float]] | None, trajectories: int
) -> list[tuple[float, ...]]:
    """The constants of each trajectory, checked."""
    if conditioning is None:
        return [()] * trajectories
    constants = [
        tuple(
            checks.real("conditioning", value, finite=False)
            for value in checks.listed("conditioning", values)
        )
        for values in checks.listed("conditioning", conditioning)
    ]
    if len(constants) != trajectories or len({len(values) for values in constants}) > 1:
        raise ShapeError(
            f"`conditioning` must hold one tuple of the same length for each of {trajectories} "
            f"trajectories, but got {constants}."
        )
    if not all(np.isfinite(values).all() for values in constants):
        raise NonFiniteError(f"`conditioning` must be finite, but got {constants}.")
    return constants


def constant_names(
    constants: list[tuple[float, ...]], names: Sequence[str] | None
) -> tuple[str, ...]:
    """Names of the constants, as many as there are."""
    count = len(constants[0])
    found = tuple(f"constant {n}" for n in range(count)) if names is None else tuple(names)
    if len(found) != count:
        raise ShapeError(f"`conditioning_names` must hold {count} names, but got {found}.")
    return found


def list_arrays(name: str, arrays: Sequence[Array] | Array) -> list[Array]:
    """A list of arrays; a bare one would be taken apart along its first axis."""
    if hasattr(arrays, "shape") or isinstance(arrays, (str, dict)):
        shape = getattr(arrays, "shape", None)
        found = type(arrays).__name__ if shape is None else f"one array of shape {tuple(shape)}"
        raise ShapeError(
            f"`{name}` must be a list with one array per recording, but got {found}. Put it into a "
            "list, or several recordings of one array with `list(array)`."
        )
    return list(checks.listed(name, arrays))


def list_masks(mask: str | Sequence[Array] | Array | None) -> list[Array] | None:
    """The masks of the trajectories; None where there is none or NaN decides."""
    if isinstance(mask, str) and mask != "nan":
        raise ConfigError(
            f"`mask` must be 'nan', a list of arrays or None, but got {mask!r}. "
            + did_you_mean(mask, ["nan"])
        )
    return None if mask is None or isinstance(mask, str) else list_arrays("mask", mask)


def check_masks(trajectories: Sequence[Any], masks: Sequence[Any]) -> None:
    """Refuse masks that are not one per trajectory and of its shape."""
    shapes = [tuple(trajectory.shape) for trajectory in trajectories]
    found = [tuple(mask.shape) for mask in masks]
    fits = [
        mask in (shape, shape[:-1], (*shape[:-1], 1))
        for mask, shape in zip(found, shapes, strict=False)
    ]
    if len(found) != len(shapes) or not all(fits):
        raise ShapeError(
            "`mask` must hold one array per trajectory with its shape, or that without the "
            f"channel axis. Trajectories have {shapes}, masks {found}."
        )
