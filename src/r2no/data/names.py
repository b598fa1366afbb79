"""Which dimension is time, which space, which variables are channels: by attributes and names."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import xarray as xr

from r2no.checks import did_you_mean
from r2no.errors import ConfigError, DataError, GridMismatchError, UnknownNameError

#: What a dimension can be; space in the order of a field's axes.
SPACE = ("depth", "height", "width")
ROLES = ("trajectory", "time", *SPACE, "channel")

_USUAL = {
    "trajectory": "trajectory traj trajectories run runs case cases ensemble member realization "
    "realisation sample samples simulation sim experiment episode batch",
    "time": "time t times frame frames snapshot snapshots step steps timestep valid_time",
    "depth": "z depth lev level levels plev altitude zc nz",
    "height": "y height lat latitude yc ny rlat northing rows row",
    "width": "x width lon longitude xc nx rlon easting cols col columns column",
    "channel": "channel channels component components variable var c",
}
_BY_NAME = {name: role for role, names in _USUAL.items() for name in names.split()}
_BY_AXIS = {"T": "time", "Z": "depth", "Y": "height", "X": "width", "E": "trajectory"}
_BY_STANDARD_NAME = {
    "time": "time",
    "latitude": "height",
    "grid_latitude": "height",
    "projection_y_coordinate": "height",
    "longitude": "width",
    "grid_longitude": "width",
    "projection_x_coordinate": "width",
    "altitude": "depth",
    "depth": "depth",
    "air_pressure": "depth",
    "realization": "trajectory",
}


def role_of_name(name: str) -> str | None:
    """What a dimension of this name usually is."""
    return _BY_NAME.get(name.lower().rsplit("/", 1)[-1])


#: Names of variables beside a field that say how good it is, or which values are valid.
_QUALITY = (
    "corr correlation corr_coef correlation_coefficient correlation_map correlation_value "
    "peak_ratio peakratio ppr snr s2n sig2noise signal_to_noise uncertainty quality"
)
_FLAGS = (
    "typevector isvalid is_valid valid valid_mask flag flags mask enabled vectortype vector_type "
    "status choice choicecode"
)
#: Steps of processing, the one to take first.
_STAGES = ("filtered", "original", "raw", "smoothed")


def _kind_beside(name: str) -> str | None:
    """What a variable of this name is beside a field: "quality", "flags", or None."""
    plain = name.lower().rsplit("/", 1)[-1]
    stem, _, stage = plain.rpartition("_")
    names = {plain, stem if stage in _STAGES else plain}
    if names & set(_FLAGS.split()):
        return "flags"
    quality = names & set(_QUALITY.split()) or plain.startswith("uncertainty")
    return "quality" if quality else None


def _superseded(names: Iterable[str]) -> dict[str, str]:
    """Fields that exist in another step of processing, with the one to take instead."""
    found = list(names)
    better = {}
    for name in found:
        stem, _, stage = name.rpartition("_")
        if stage in _STAGES[1:]:
            earlier = [f"{stem}_{one}" for one in _STAGES[: _STAGES.index(stage)]]
            taken = next((one for one in earlier if one in found), None)
            if taken is not None:
                better[name] = taken
    return better


def check_given(
    dims: Iterable[Hashable],
    given: Mapping[str, str],
    where: str,
    *,
    roles: tuple[str, ...] = ROLES,
) -> None:
    """Refuse ``given`` that names no role, or none of the ``dims`` that there are."""
    known = [str(dim) for dim in dims]
    for role, name in given.items():
        if role not in roles:
            raise ConfigError(f"`dims` must map {', '.join(roles)} to names, but got {role!r}.")
        if name not in known:
            raise UnknownNameError(
                f"`dims` says {role!r} is {name!r}, but there is no such dimension in {where}. "
                + did_you_mean(name, known)
            )


def find_roles(
    data: xr.Dataset, variable: str, given: Mapping[str, str], where: str
) -> dict[str, str]:
    """Role to dimension of a field; ``given`` wins over what names and attributes suggest.

    Raises:
        DataError: if a dimension is of no known kind, two are of the same, or time or space is
            missing.
    """
    roles = assign_roles(
        data[variable].dims,
        given,
        lambda dim: dim_role(data, dim),
        f"variable {variable!r} in {where}",
        ROLES,
    )
    if "time" not in roles or not any(role in roles for role in SPACE):
        raise DataError(
            f"Variable {variable!r} in {where} needs a time and at least one spatial dimension, "
            f"but has {data[variable].dims}, read as {roles}. Say what they are with `dims`."
        )
    return {role: roles[role] for role in ROLES if role in roles}


def assign_roles(
    dims: Iterable[Hashable],
    given: Mapping[str, str],
    guess: Callable[[str], str | None],
    what: str,
    known: tuple[str, ...],
) -> dict[str, str]:
    """Role to dimension, each once: as ``given``, else as guessed.

    Raises:
        DataError: if a dimension of ``what`` is of none of the ``known`` roles, or two are of one.
    """
    by_dim = {name: role for role, name in given.items()}
    roles: dict[str, str] = {}
    for dim in map(str, dims):
        role = by_dim.get(dim) or guess(dim)
        if role is None or (role in given and dim not in by_dim):
            raise DataError(
                f"Dimension {dim!r} of {what} is of no known kind. Say what it is, as in "
                f"dims={{{known[-2]!r}: {dim!r}}} (one of {', '.join(known)}), or drop it with "
                f"`data.isel({dim}=0)`."
            )
        if role in roles:
            raise DataError(
                f"Dimensions {roles[role]!r} and {dim!r} of {what} both look like {role}. Say "
                "which is which with `dims`."
            )
        roles[role] = dim
    return roles


def single_points(data: xr.Dataset, given: Mapping[str, str]) -> list[str]:
    """Dimensions of size one that mean nothing for a field, such as a single level."""
    return [
        str(name)
        for name, size in data.sizes.items()
        if size == 1 and name not in given.values() and dim_role(data, str(name)) in (None, "depth")
    ]


def dim_role(data: xr.Dataset, name: str) -> str | None:
    """What a dimension of a data set is, by its coordinate's attributes or its name."""
    if name in data.variables:
        coordinate = data.variables[name]
        if (role := _BY_AXIS.get(str(coordinate.attrs.get("axis", "")).upper())) is not None:
            return role
        role = _BY_STANDARD_NAME.get(str(coordinate.attrs.get("standard_name", "")))
        if role is not None:
            return role
        if coordinate.dtype.kind == "M" or " since " in str(coordinate.attrs.get("units", "")):
            return "time"
        by_unit = {"degrees_north": "height", "degrees_east": "width"}
        if (role := by_unit.get(str(coordinate.attrs.get("units", "")))) is not None:
            return role
    return role_of_name(str(name))


def find_constant(data: xr.Dataset, name: str) -> float | None:
    """A number that holds for the whole data set: a scalar variable, a coordinate, an attribute."""
    value: Any = data.attrs.get(name)
    if name in data.variables and data[name].ndim == 0:
        value = data[name].item()
    return None if value is None else float(value)


def choose_variables(
    data: xr.Dataset,
    variables: Sequence[str] | None,
    dims: Mapping[str, str],
    mask: str | None,
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
    data: xr.Dataset, variables: Sequence[str] | None, mask: str | None, where: str
) -> tuple[list[str], dict[str, str]]:
    """Variables that may be channels, and those that were left out, with the reason."""
    fields = [
        str(name)
        for name, values in data.data_vars.items()
        if values.dtype.kind in "fiu" and values.ndim >= 2 and (mask is None or name != mask)
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
    data: xr.Dataset, fields: list[str], mask: str | None
) -> tuple[list[str], dict[str, str]]:
    """Floating-point fields that are neither flags nor measures of quality nor superseded."""
    beside = {name: kind for name in fields if (kind := _kind_beside(name)) is not None}
    older = _superseded(fields)
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


def _flags_beside(data: xr.Dataset, names: Sequence[str], mask: str | None) -> dict[str, str]:
    """Variables that look like valid flags and are not used as such."""
    return {
        str(name): f"flags; if they mark valid values, mask={name!r} or "
        f'mask={{"variable": {name!r}, "valid": [1]}}'
        for name, values in data.data_vars.items()
        if (_kind_beside(str(name)) == "flags" or values.dtype.kind == "b")
        and values.ndim >= 2
        and name not in names
        and (mask is None or name != mask)
    }


def _labels(data: xr.Dataset, name: str) -> list[str]:
    """Labels along the channel dimension of a variable, if it has one with text labels."""
    return [
        str(label)
        for dim in data[name].dims
        if dim in data.coords and data[dim].dtype.kind in "UOST"
        for label in data[dim].values
    ]
