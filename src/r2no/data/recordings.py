"""Recording: one trajectory of a data set with its names, coordinates, gaps and constants."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import xarray as xr

from r2no.checks import did_you_mean
from r2no.data.coordinates import Axis, read_axis
from r2no.data.flags import Flags, Validity
from r2no.data.lazy import LazyTrajectory, Part
from r2no.data.names import (
    SPACE,
    check_given,
    find_roles,
    kind_beside,
    single_points,
    superseded,
)
from r2no.data.unnamed import LEFT_OUT
from r2no.errors import DataError, GridMismatchError, UnknownNameError

_FEW = 2000  # trajectories of any size
_SLIGHT = 1024  # bytes that each holds at least where there are more


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
    chosen, ignored = _choose(data, variables, dims, mask, where)
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


def _choose(
    data: xr.Dataset,
    variables: Sequence[str] | None,
    dims: Mapping[str, str],
    mask: Flags | None,
    where: str,
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The roles of every chosen variable, and why others were left out."""
    names, ignored = _candidates(data, variables, mask, where)
    chosen: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    for name in names:
        try:
            chosen[name] = find_roles(data, name, dims, where)
        except DataError as error:
            if variables is not None:
                raise
            ignored[name] = "no field over time and space"
            problems.append(str(error))
    if not chosen:
        reasons = " ".join(problems) or "It holds no numbers with two or more dimensions."
        raise DataError(f"No variable of {where} is a field over time and space. {reasons}")
    grids = {
        name: tuple(d for r, d in found.items() if r != "channel") for name, found in chosen.items()
    }
    if len(set(grids.values())) > 1:
        raise GridMismatchError(
            f"Variables of {where} must share one grid, but have {grids}. Interpolate them to one "
            "grid (`data.interp`), or choose those of one grid with `variables`."
        )
    return chosen, ignored


def _candidates(
    data: xr.Dataset, variables: Sequence[str] | None, mask: Flags | None, where: str
) -> tuple[list[str], dict[str, str]]:
    """Variables that may be channels, and those that were left out, with the reason."""
    fields = [
        str(name)
        for name, values in data.data_vars.items()
        if values.dtype.kind in "fiu"
        and values.ndim >= 2
        and (mask is None or name != mask.variable)
    ]
    if variables is None:
        return _usual_channels(data, fields, mask)
    unknown = [name for name in variables if name not in data.variables]
    if not unknown:
        return list(variables), _flags_beside(data, variables, mask)
    labelled = [name for name in fields if set(variables) <= set(_labels(data, name))]
    if labelled:
        return labelled[:1], {}
    known = fields + [label for name in fields for label in _labels(data, name)]
    raise UnknownNameError(
        f"`variables` names {unknown[0]!r}, but {where} has no such variable. "
        + did_you_mean(unknown[0], known)
    )


def _usual_channels(
    data: xr.Dataset, fields: list[str], mask: Flags | None
) -> tuple[list[str], dict[str, str]]:
    """Floating-point fields that are neither flags nor measures of quality nor superseded."""
    beside = {name: kind for name in fields if (kind := kind_beside(name)) is not None}
    older = superseded(fields)
    names = [name for name in fields if name not in beside and name not in older]
    names = [name for name in names if data[name].dtype.kind == "f"] or names or fields
    ignored = _flags_beside(data, names, mask)
    for name in fields:
        if name in names or name in ignored:
            continue
        ignored[name] = "whole numbers"
        if name in older:
            ignored[name] = f"{older[name]} is taken"
        elif name in beside:
            ignored[name] = "a measure of quality; name it in `variables` if it is a channel"
    return names, ignored


def _flags_beside(data: xr.Dataset, names: Sequence[str], mask: Flags | None) -> dict[str, str]:
    """Variables that look like valid flags and are not used as such."""
    return {
        str(name): f"flags; if they mark valid values, mask={name!r} or "
        f'mask={{"variable": {name!r}, "valid": [1]}}'
        for name, values in data.data_vars.items()
        if (kind_beside(str(name)) == "flags" or values.dtype.kind == "b")
        and values.ndim >= 2
        and name not in names
        and (mask is None or name != mask.variable)
    }


def _labels(data: xr.Dataset, name: str) -> list[str]:
    """Labels along the channel dimension of a variable, if it has one with text labels."""
    return [
        str(label)
        for dim in data[name].dims
        if dim in data.coords and data[dim].dtype.kind in "UOST"
        for label in data[dim].values
    ]


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
        variable = variable.set_dims({**{dims[0]: data.sizes[dims[0]]}, **variable.sizes})
    missing = {dim: data.sizes[dim] for dim in dims if dim not in variable.dims}
    if missing:
        variable = variable.set_dims({**missing, **variable.sizes})
    return LazyTrajectory.of([Part(variable)], dims)


def _constant(data: xr.Dataset, name: str, where: str) -> float:
    """A number that holds for the whole recording: a scalar variable or an attribute."""
    value: Any = data.attrs.get(name)
    if name in data.variables and data[name].ndim == 0:
        value = data[name].item()
    if value is None:
        scalars = [str(n) for n, found in data.variables.items() if found.ndim == 0]
        raise UnknownNameError(
            f"`conditioning` names {name!r}, but {where} has no such scalar variable or attribute. "
            + did_you_mean(name, [*scalars, *map(str, data.attrs)])
        )
    return float(value)
