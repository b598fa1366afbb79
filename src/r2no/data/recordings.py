"""Recording: one trajectory of a data set with its names, coordinates, gaps and constants."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from r2no.checks import did_you_mean
from r2no.data.coordinates import Axis, read_axis
from r2no.data.gaps import Flags, Validity
from r2no.data.lazy import LazyTrajectory, Part
from r2no.data.names import SPACE, check_given, choose_variables, find_constant, single_points
from r2no.data.unnamed import LEFT_OUT
from r2no.errors import DataError, EmptySplitError, UnknownNameError

_FEW = 2000  # trajectories of any size
_SLIGHT = 1024  # bytes that each holds at least where there are more
_BUDGET = 2**26  # bytes that are read at most for a look
_FRAMES = 256  # that are read at most where not all are
_BLOCKS = 16  # of each recording


@dataclass(frozen=True, eq=False)
class Recording:
    """One trajectory. Nothing but coordinates has been read.

    Attributes:
        name: The file, and the place along the trajectory dimension.
        file: The file, if it is one.
        values: The frames.
        flags: The mask variable, if there is one.
        chosen: Which of its values mean valid.
        channels: Names of the channels.
        units: Of the channels.
        roles: Role to dimension.
        time: The time axis.
        space: The spatial axes.
        coordinates: Whatever depends on space only, by name.
        constants: Values of the conditioning names.
        ignored: Variables that were left out, with the reason.
        stated_units: Of the fields, if a text beside them says so.
    """

    name: str
    file: str
    values: LazyTrajectory
    flags: LazyTrajectory | None
    chosen: Flags | None
    channels: tuple[str, ...]
    units: tuple[str, ...]
    roles: Mapping[str, str]
    time: Axis
    space: tuple[Axis, ...]
    coordinates: Mapping[str, xr.Variable]
    constants: tuple[float, ...]
    ignored: Mapping[str, str]
    stated_units: str = ""

    @property
    def valid(self) -> Validity | None:
        """Where values are valid: flagged so, and finite."""
        if self.flags is None or self.chosen is None:
            return None
        return Validity(self.values, self.flags, self.chosen, f"`{self.name}`")

    def valid_pieces(self) -> Iterator[np.ndarray]:
        """Where values are valid, all frames in order, a bounded number of bytes at a time."""
        if (valid := self.valid) is not None:
            return valid.pieces()
        return map(np.isfinite, self.values.pieces())

    def on_axes(self, time: Axis, space: tuple[Axis, ...]) -> "Recording":
        """The same on other axes, whose coordinates it takes."""
        made = {axis.name: axis.variable for axis in space if axis.variable is not None}
        return replace(self, time=time, space=space, coordinates={**self.coordinates, **made})

    def part(self, frames: slice) -> "Recording":
        """The same with fewer frames, to look at; its time axis stays that of the whole."""
        flags = self.flags and self.flags.part(frames)
        return replace(self, values=self.values.part(frames), flags=flags)

    def identity(self, file_hash: str | None) -> list[Any]:
        """What tells its content from another's, wherever it lies and whenever it was copied.

        ``file_hash`` is of its file's bytes; its first and last frame as they are read then tell
        how the file was understood. Without one all values are read.
        """
        times = None if self.time.variable is None else self.time.variable.values.astype(str)
        content: Any = [self.values, self.flags]
        if file_hash is not None:
            last = self.values.shape[0] - 1
            content = [file_hash, self.values[:1], self.values[last : last + 1]]
        place = self.name.removeprefix(self.file)  # along the trajectory dimension
        return [place, dict(self.roles), list(self.values.shape), times, content, self.constants]


def read_recordings(
    name: str,
    data: xr.Dataset,
    *,
    variables: Sequence[str] | None,
    dims: Mapping[str, str],
    mask: Flags | None,
    conditioning: Sequence[str],
) -> list[Recording]:
    """The recordings of one data set: itself, or one for each place along its trajectory dim."""
    where = f"`{name}`"
    check_given(data.sizes, dims, where)
    left_out = data.encoding.get(LEFT_OUT, {})
    data = data.squeeze(single_points(data, dims))
    if mask is not None and mask.variable not in data.variables:
        raise UnknownNameError(
            f"`mask` names {mask.variable!r}, but {where} has no such variable. "
            + did_you_mean(mask.variable, map(str, data.variables))
        )
    chosen, ignored = choose_variables(
        data, variables, dims, None if mask is None else mask.variable, where
    )
    roles = next(iter(chosen.values()))
    read = partial(
        _recording,
        file=name,
        variables=variables,
        ignored={**ignored, **left_out},
        mask=mask,
        conditioning=conditioning,
    )
    if "trajectory" not in roles:
        return [read(name, data, chosen)]
    along = roles["trajectory"]
    _check_number(data, along, name)
    labels = data[along].values.tolist()  # numbers from zero without a coordinate
    inner = {
        n: {r: d for r, d in found.items() if r != "trajectory"} for n, found in chosen.items()
    }
    return [
        replace(read(f"{name}[{along}={label}]", data.isel({along: number}), inner), roles=roles)
        for number, label in enumerate(labels)
    ]


def _check_number(data: xr.Dataset, along: str, name: str) -> None:
    """Refuse a file of very many, very small trajectories: each costs its share of a second."""
    number = data.sizes[along]
    if number > max(_FEW, data.nbytes // _SLIGHT) and Path(name).exists():
        raise DataError(
            f"`{name}` has {number} trajectories along {along!r}, of {data.nbytes // number} bytes "
            f"each. If {along!r} is something else, say so with `dims`; if not, open the file with "
            "xarray and pass the data set."
        )


def _recording(
    name: str,
    data: xr.Dataset,
    chosen: Mapping[str, Mapping[str, str]],
    *,
    file: str,
    variables: Sequence[str] | None,
    ignored: Mapping[str, str],
    mask: Flags | None,
    conditioning: Sequence[str],
) -> Recording:
    """One trajectory with its channels, mask, axes and constants, as the roles say."""
    where = f"`{name}`"
    roles = next(iter(chosen.values()))
    space = [roles[role] for role in SPACE if role in roles]
    dims = [roles["time"], *space]
    parts, channels, units = _channels(data, chosen)
    values = LazyTrajectory.of(parts, dims)
    if variables is not None and not set(variables) <= set(chosen):  # labels were meant
        order = [channels.index(label) for label in variables]
        values = values.select(order)
        channels, units = [channels[n] for n in order], [units[n] for n in order]
    return Recording(
        name,
        file,
        values,
        None if mask is None else _mask(data, mask.variable, dims, where),
        mask,
        tuple(channels),
        tuple(units),
        roles,
        read_axis(data, roles["time"], increasing=True, where=where),
        tuple(read_axis(data, dim, increasing=False, where=where) for dim in space),
        {
            str(label): found.variable.load()
            for label, found in data.coords.items()
            if found.ndim and set(found.dims) <= set(space)
        },
        tuple(_constant(data, label, where) for label in conditioning),
        ignored,
        _stated_units(data),
    )


def _stated_units(data: xr.Dataset) -> str:
    """Units that a text beside the data gives; PIVlab gives those of the grid first."""
    text = str(data.attrs.get("units", "")).strip()
    both = re.fullmatch(r"\[(.+?)\] respectively \[(.+?)\]", text)
    return both[2] if both else text


def _channels(
    data: xr.Dataset, chosen: Mapping[str, Mapping[str, str]]
) -> tuple[list[Part], list[str], list[str]]:
    """The channels of the chosen variables: one each, or one per label of a channel axis."""
    parts, channels, units = [], [], []
    for name, roles in chosen.items():
        variable, along = data[name].variable, roles.get("channel")
        labels = [name]
        if along is None:
            parts.append(Part(variable))
        else:
            parts.append(Part(variable, along, tuple(range(variable.sizes[along]))))
            labels = [str(label) for label in data[along].values.tolist()]
            if len(chosen) > 1:
                labels = [f"{name}_{label}" for label in labels]
        channels += labels
        units += [str(variable.attrs.get("units", ""))] * len(labels)
    return parts, channels, units


def _mask(data: xr.Dataset, name: str, dims: Sequence[str], where: str) -> LazyTrajectory:
    """The mask variable over all frames; one without time holds for each of them."""
    variable = data[name].variable
    if extra := set(map(str, variable.dims)) - set(dims):
        raise DataError(
            f"`mask` {name!r} of {where} must have dimensions among {tuple(dims)}, but also has "
            f"{tuple(sorted(extra))}. One mask serves all channels."
        )
    if dims[0] not in variable.dims:
        variable = variable.set_dims({dims[0]: data.sizes[dims[0]], **variable.sizes})
    missing = {dim: data.sizes[dim] for dim in dims if dim not in variable.dims}
    if missing:
        variable = variable.set_dims({**missing, **variable.sizes})
    return LazyTrajectory.of([Part(variable)], dims)


def _constant(data: xr.Dataset, name: str, where: str) -> float:
    """A number that holds for the whole recording, or an error that names what there is."""
    value = find_constant(data, name)
    if value is None:
        scalars = [str(n) for n, found in data.variables.items() if found.ndim == 0]
        raise UnknownNameError(
            f"`conditioning` names {name!r}, but {where} has no such scalar variable or attribute. "
            + did_you_mean(name, [*scalars, *map(str, data.attrs)])
        )
    return value


def check_length(
    recordings: Sequence[Recording], values: Sequence[LazyTrajectory], needed: int
) -> None:
    """Refuse recordings of which too few frames are left for a window."""
    for recording, part in zip(recordings, values, strict=True):
        if len(part) < needed:
            raise EmptySplitError(
                f"`{recording.name}` gives {len(part)} frames, but a window needs {needed}. "
                "Shorten `history` or `horizon`, or leave this trajectory out with `trajectories`."
            )


def missing_shares(recordings: Sequence[Recording]) -> tuple[float, ...]:
    """Share of missing values by channel; reads everything once, in pieces."""
    lost, total = np.zeros(len(recordings[0].channels)), 0
    for recording in recordings:
        for valid in recording.valid_pieces():
            flat = valid.reshape(-1, valid.shape[-1])
            lost += (~flat).sum(0)
            total += len(flat)
    return tuple((lost / total).tolist())


def look_for_gaps(recordings: Sequence[Recording]) -> tuple[dict[str, float] | None, int]:
    """Share of missing values by channel, and the number of frames that it was counted in.

    All frames if that is cheap, else blocks of them at equal distances, of recordings at equal
    distances; None if a single frame is too much to read.
    """
    seen = list(recordings)
    if sum(recording.values.nbytes for recording in recordings) > _BUDGET:
        cost = max(_frame_cost(recording) for recording in recordings)
        affordable = min(_BUDGET // max(cost, 1), _FRAMES)
        if not affordable:
            return None, 0
        chosen = recordings[:: -(-len(recordings) // affordable)]
        each = affordable // len(chosen)
        seen = [part for recording in chosen for part in _blocks(recording, each)]
    shares = dict(zip(recordings[0].channels, missing_shares(seen), strict=True))
    return shares, sum(len(recording.values) for recording in seen)


def _blocks(recording: Recording, frames: int) -> list[Recording]:
    """Blocks of neighbours, which every format reads fast."""
    total = len(recording.values)
    if frames >= total:
        return [recording]
    blocks = min(frames, _BLOCKS)
    length = frames // blocks
    starts = [place * (total - length) // max(blocks - 1, 1) for place in range(blocks)]
    return [recording.part(slice(start, start + length)) for start in starts]


def _frame_cost(recording: Recording) -> int:
    """Bytes that reading one frame unpacks: chunks are read as a whole."""
    time = recording.values.dims[0]
    return sum(_part_cost(part, time) for part in recording.values.parts)


def _part_cost(part: Part, time: str) -> int:
    variable: Any = part.variable
    frame = variable.dtype.itemsize * prod(n for dim, n in variable.sizes.items() if dim != time)
    chunk = variable.encoding.get("chunksizes") or variable.encoding.get("chunks") or (1,)
    known = len(chunk) == variable.ndim
    frames = chunk[variable.dims.index(time)] if known else max(chunk)
    return int(max(frame * frames, variable.dtype.itemsize * prod(chunk)))
