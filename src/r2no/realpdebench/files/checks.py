"""Checks of arguments and of data, each with a named error that says what to do."""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from r2no.errors import ConfigError, DataError, GridMismatchError, NonFiniteError
from r2no.realpdebench.files.splits import WindowStart
from r2no.realpdebench.files.trajectories import Trajectories
from r2no.realpdebench.systems import KINDS, Number, System


def positive(argument: str, value: int) -> int:
    """Refuse a count below one."""
    if value < 1:
        raise ConfigError(f"`{argument}` must be at least 1, but got {value}.")
    return value


def not_negative(argument: str, value: Number) -> Number:
    """Refuse a negative or non-finite scale."""
    if not 0 <= value < float("inf"):
        raise ConfigError(f"`{argument}` must be finite and not negative, but got {value}.")
    return value


def plain_seed(seed: int | torch.Generator) -> int:
    """A seed as a number; a generator gives the next draw of its stream."""
    if isinstance(seed, torch.Generator):
        return int(torch.randint(2**62, (), generator=seed))
    if seed < 0:
        raise ConfigError(f"`seed` must not be negative, but got {seed}.")
    return seed


def override(system: System, *, kind: str, **settings: Any) -> System:
    """Replace the settings that are not None, checking each."""
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given.keys() - {"mask_prob"}:
        positive(name, given[name])
    if not 0 <= given.get("mask_prob", 0) <= 1:
        raise ConfigError(f"`mask_prob` must lie in [0, 1], but got {given['mask_prob']}.")
    if "stride" in given:
        both = list(system.stride)
        both[KINDS.index(kind)] = given["stride"]
        given["stride"] = tuple(both)
    return replace(system, **given)


def complete(
    pairs: Sequence[WindowStart], trajectories: Trajectories, length: int, *, skip: bool
) -> list[WindowStart]:
    """The windows whose frames are all there; others raise, or are left out with a warning."""
    there = set(trajectories.names)
    missing = sorted({name for name, _ in pairs} - there)
    frames = {name: trajectories.shape(name)[0] for name, _ in pairs if name in there}
    stored = [pair for pair in pairs if pair[0] in there]
    kept = [(name, start) for name, start in stored if 0 <= start <= frames[name] - length]
    if len(kept) == len(pairs):
        return kept
    short = sorted(set(stored) - set(kept))
    message = _missing_message(missing, trajectories) + _short_message(short, frames, length)
    if not skip:
        raise DataError(message + "Or pass `incomplete='skip'` to leave these windows out.")
    warnings.warn(f"{message}{len(pairs) - len(kept)} windows were left out.", stacklevel=3)
    return kept


def _missing_message(missing: Collection[str], trajectories: Trajectories) -> str:
    if not missing:
        return ""
    absent = getattr(trajectories, "missing_files", ())
    where = f"These files are absent: {_some(absent)}. " if absent else ""
    return (
        f"The window list names {len(missing)} trajectories that are not there: {_some(missing)}. "
        f"{where}Fetch them with `r2no bench fetch`. "
    )


def _short_message(short: Sequence[WindowStart], frames: dict[str, int], length: int) -> str:
    if not short:
        return ""
    name, start = short[0]
    return (
        f"{len(short)} windows of {length} frames do not fit their trajectory, such as "
        f"`{name}` at frame {start}, which has {frames[name]} frames. Lower `horizon_frames` "
        "or `autoregressive`. "
    )


def _some(items: Collection[str], most: int = 5) -> str:
    shown = ", ".join(list(items)[:most])
    return shown + (f" and {len(items) - most} more" if len(items) > most else "")


def common_grid(trajectories: Trajectories, names: Sequence[str]) -> tuple[int, int]:
    """Height and width that all ``names`` share."""
    grids = {name: trajectories.shape(name)[1:] for name in names}
    first = names[0]
    for name, grid in grids.items():
        if grid != grids[first]:
            raise GridMismatchError(
                f"All trajectories must share one grid, but `{first}` has {grids[first]} and "
                f"`{name}` has {grid}. Leave one out with `exclude`."
            )
    return grids[first]


def finite(
    values: Float[Tensor, "time height width channel"], system: System, name: str, start: int
) -> None:
    """Refuse NaN and infinity, naming trajectory, frame and channel.

    The sum is finite when all values are; only otherwise is every value looked at.
    """
    if torch.isfinite(values.sum()):
        return
    bad = ~torch.isfinite(values)
    if not bad.any():
        return
    frames = bad.any(dim=(1, 2, 3)).nonzero().flatten() + start
    channels = bad.any(dim=(0, 1, 2)).nonzero().flatten().tolist()
    raise NonFiniteError(
        f"`{name}` holds NaN or infinity in {len(frames)} frames of this window, first in frame "
        f"{int(frames[0])}, in {', '.join(system.channels[c] for c in channels)}. "
        f"Repair the file, or leave the trajectory out with `exclude=('{name}',)`."
    )
