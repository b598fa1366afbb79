"""Prediction: a forecast with bounds, and how much its window looks like those of the fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from r2no import checks
from r2no._repr import brief_repr
from r2no._types import Number
from r2no.ensemble.bands import checked_coverage
from r2no.errors import ConfigError

COVERAGE = "coverage"


@dataclass(frozen=True, eq=False)
class Prediction:
    """What :meth:`AdaptedModel.predict` returns if asked for a coverage.

    Attributes:
        forecast: As without a coverage.
        lower: Lower bounds, of the same kind; for several coverages along a first axis, of an
            xarray object along the dimension ``coverage``. NaN in channels without measurements.
        upper: Upper bounds.
        coverage: What was asked for, each a probability.
        familiar: p-value of each window; below 0.1, say, no window of the fit looks like it, and
            the bounds may not hold.
    """

    forecast: Any
    lower: Any
    upper: Any
    coverage: tuple[float, ...]
    familiar: np.ndarray

    __repr__ = brief_repr


def coverages(coverage: Number | Sequence[Number]) -> tuple[float, ...]:
    """One or several coverages, checked."""
    given = [coverage] if np.ndim(coverage) == 0 else checks.listed(COVERAGE, coverage)
    if not given:
        raise ConfigError("`coverage` must lie between 0 and 1, such as 0.9, but names no number.")
    return tuple(checked_coverage(one) for one in given)


def prediction(
    forecast: Tensor,
    half_widths: Tensor,
    familiar: Tensor,
    restore: Callable[[Tensor], Any],
    coverage: Any,
) -> Prediction:
    """Bounds around a forecast, all as the kind of thing that the history was."""
    asked, single = coverages(coverage), np.ndim(coverage) == 0
    lower, upper = (
        _together([restore(forecast + sign * half) for half in half_widths], asked, single)
        for sign in (-1, 1)
    )
    return Prediction(restore(forecast), lower, upper, asked, familiar.numpy())


def _together(parts: list[Any], asked: Sequence[float], single: bool) -> Any:
    """Bounds of several coverages as one; of a single one as it is."""
    first = parts[0]
    if isinstance(first, list):
        columns = zip(*parts, strict=True)
        return [_together(list(column), asked, single) for column in columns]
    if isinstance(first, (xr.DataArray, xr.Dataset)):
        named = [part.assign_coords({COVERAGE: p}) for part, p in zip(parts, asked, strict=True)]
        return named[0] if single else xr.concat(named, COVERAGE, coords="minimal")
    if single:
        return first
    return torch.stack(parts) if isinstance(first, Tensor) else np.stack(parts)
