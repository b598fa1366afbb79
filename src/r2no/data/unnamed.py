"""Arrays with names but without dimensions (npz, plain HDF5, MATLAB): which axis is what."""

from collections.abc import Collection, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import xarray as xr

from r2no.data.lazy import lazily
from r2no.data.names import SPACE, role_of_name
from r2no.data.piv import Plane, find_plane, short_name
from r2no.errors import DataError, GridMismatchError, ShapeError

SPACE_NAMES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}
#: Where a data set keeps what was left out of it, with the reason.
LEFT_OUT = "r2no_left_out"
_FEW = 8  # a last axis this short is taken for channels
_TIME, _CHANNEL = "time", "channel"
Dims = tuple[str, ...]


def from_named(
    arrays: Mapping[str, Any],
    axes: Sequence[str] | None,
    where: str,
    *,
    wanted: Sequence[str] | None = None,
    unsure: Collection[str] = (),
) -> xr.Dataset:
    """Arrays with names as a data set: coordinates, meshgrids, fields, static fields and notes.

    Args:
        arrays: By name; those that are not numbers become notes or are left out.
        axes: Of the fields, if the user named them.
        where: The file or object, for messages.
        wanted: The variables that were asked for; others may not fit.
        unsure: Names of arrays for which (time, space...) is not the usual order.
    """
    numbers = {name: lazily(a) for name, a in arrays.items() if a.dtype.kind in "biufM"}
    lengths = {
        short_name(name): array.shape[0]
        for name, array in numbers.items()
        if array.ndim == 1 and role_of_name(name) is not None
    }
    plane = find_plane(numbers)
    names = _Names(axes, lengths, plane, where, unsure)
    grids = () if plane is None else plane.names
    fields = {name: a for name, a in numbers.items() if a.ndim > 1 and name not in grids}
    main = _main(fields, wanted, axes)
    if not main:
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        raise DataError(
            f"No array of {where} is a field: `axes` is {axes} and the arrays have shapes {shapes}."
        )
    dims = {name: names.of(name, tuple(fields[name].shape)) for name in main}
    sizes = _shared_sizes(dims, fields, where)
    left_out = _fit_others(fields, dims, dims[main[0]], sizes)
    variables: dict[str, Any] = {
        name: (dims[name], fields[name]) for name in fields if name in dims
    }
    for name, array in numbers.items():
        if array.ndim == 0:
            variables[name] = ((), array)
        elif array.ndim == 1 and (dim := _same_kind(short_name(name), sizes)) is not None:
            if array.shape[0] != sizes[dim]:
                known = {dim: array.shape[0]}
                raise _misfit(main[0], tuple(fields[main[0]].shape), dims[main[0]], known, where)
            variables[dim] = ((dim,), array)
    for name, values in () if plane is None else plane.coordinates.items():
        dim = _same_kind(name, sizes)
        if dim is not None and dim not in variables and sizes[dim] == len(values):
            variables[dim] = ((dim,), values)
    data = xr.Dataset(variables, attrs=_notes(arrays))
    data.encoding[LEFT_OUT] = left_out
    return data


def _fit_others(
    fields: Mapping[str, Any],
    dims: dict[str, tuple[str, ...]],
    main: tuple[str, ...],
    sizes: dict[str, int],
) -> dict[str, str]:
    """Add the dimensions of fields that fit the main one's; returns why others are left out."""
    left_out: dict[str, str] = {}
    for name in (name for name in fields if name not in dims):
        shape = tuple(fields[name].shape)
        found = _fitting(shape, main, sizes)
        if found is None:
            left_out[name] = f"of another shape, {shape}"
        else:
            dims[name] = found
    return left_out


class _Names:
    """How axes are named: by the user, by lengths of coordinates, by meshgrids, or as usual."""

    def __init__(
        self,
        axes: Sequence[str] | None,
        lengths: Mapping[str, int],
        plane: Plane | None,
        where: str,
        unsure: Collection[str],
    ) -> None:
        self.axes = None if axes is None else tuple(axes)
        self.lengths, self.where, self.unsure = dict(lengths), where, unsure
        by_role = {role_of_name(name): name for name in lengths}
        self.by_role = by_role
        self.time = by_role.get(_TIME, _TIME)
        space = [by_role[role] for role in SPACE if role in by_role]
        self.plane: Dims | None = tuple(space) if len(space) > 1 else None
        if plane is not None:
            self.plane, self.lengths = tuple(plane.sizes), {**self.lengths, **plane.sizes}

    def of(self, name: str, shape: tuple[int, ...]) -> Dims:
        """Names of the axes of a field.

        Raises:
            DataError: if nothing says what they are, or what is said does not fit.
            ShapeError: if ``axes`` names another number of them.
        """
        if self.axes is not None:
            if len(self.axes) != len(shape):
                raise ShapeError(
                    f"`axes` must name the {len(shape)} axes of {name!r} in {self.where}, shape "
                    f"{shape}, but got {self.axes}."
                )
            return self.axes
        matches = [[n for n, length in self.lengths.items() if length == size] for size in shape]
        if all(len(found) == 1 for found in matches):
            named = [found[0] for found in matches]
            if len(set(named)) == len(named):
                return tuple(named)
        orders = self._orders(name, shape)
        fitting = [order for order in orders if self._fits(order, shape)]
        if not fitting:
            raise _misfit(name, shape, orders[0], self.lengths, self.where)
        return fitting[0]

    def _fits(self, order: Dims, shape: tuple[int, ...]) -> bool:
        return all(
            self.lengths.get(axis, size) == size for axis, size in zip(order, shape, strict=True)
        )

    def _orders(self, name: str, shape: tuple[int, ...]) -> list[Dims]:
        """Orders to try, the likeliest first."""
        if self.plane is not None:
            found = self._orders_of_plane(len(shape), self.plane)
            if found:
                return found
        usual = self._usual(name, shape)
        if self._fits(usual, shape) and name not in self.unsure:
            return [usual]
        others: list[Dims] = [order for order in permutations(usual) if self._fits(order, shape)]
        if len(others) > 1:
            raise self._unclear(name, shape)
        return others or [usual]

    def _orders_of_plane(self, ndim: int, plane: Dims) -> list[Dims]:
        both: list[Dims] = [plane, plane[::-1]] if len(plane) == 2 else [plane]
        if ndim == len(plane):
            return both
        if ndim == len(plane) + 1:
            return [order for p in both for order in ((self.time, *p), (*p, self.time))]
        if ndim == len(plane) + 2:
            return [(self.time, *p, _CHANNEL) for p in both]
        return []

    def _usual(self, name: str, shape: tuple[int, ...]) -> Dims:
        if len(shape) == 4 and shape[-1] <= _FEW:
            usual: Dims = (_TIME, *SPACE_NAMES[2], _CHANNEL)
        elif len(shape) in (2, 3):
            usual = (_TIME, *SPACE_NAMES[len(shape) - 1])
        else:
            raise self._unclear(name, shape)
        return tuple(self.by_role.get(role_of_name(one), one) for one in usual)

    def _unclear(self, name: str, shape: tuple[int, ...]) -> DataError:
        example = '("y", "x", "time")' if len(shape) == 3 else '("run", "time", "y", "x")'
        return DataError(
            f"Array {name!r} of {self.where} has {len(shape)} axes, {shape}, and nothing says what "
            f"they are. Name them with `axes`, as in axes={example}."
        )


def _main(
    fields: Mapping[str, Any], wanted: Sequence[str] | None, axes: Sequence[str] | None
) -> list[str]:
    """The fields that decide: those asked for, else all floating-point ones with most axes."""
    asked = [name for name in fields if name in (wanted or ())]
    if asked:
        return asked
    floats = {n: a for n, a in fields.items() if a.dtype.kind == "f"} or dict(fields)
    if axes is not None:
        return [name for name, array in floats.items() if array.ndim == len(axes)]
    most = max((array.ndim for array in floats.values()), default=0)
    return [name for name, array in floats.items() if array.ndim == most]


def _shared_sizes(
    dims: Mapping[str, Dims], fields: Mapping[str, Any], where: str
) -> dict[str, int]:
    """The size of each dimension; arrays that disagree are refused by name."""
    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    for name, found in dims.items():
        for dim, size in zip(found, fields[name].shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise GridMismatchError(
                    f"Arrays of {where} must share one grid, but along {dim!r} "
                    f"{first[dim]!r} has {sizes[dim]} and {name!r} has {size} points: shapes "
                    f"{tuple(fields[first[dim]].shape)} and {tuple(fields[name].shape)}. Choose "
                    "those of one grid with `variables`, or name the axes with `axes`."
                )
            first.setdefault(dim, name)
    return sizes


def _fitting(shape: tuple[int, ...], main: Dims, sizes: Mapping[str, int]) -> Dims | None:
    """Dimensions of an array beside the fields: all of theirs, without channels, or in space."""
    plain = tuple(dim for dim in main if role_of_name(dim) != "channel")
    space = tuple(dim for dim in plain if role_of_name(dim) in SPACE)
    for found in (main, plain, space, space[::-1]):
        if shape == tuple(sizes[dim] for dim in found):
            return found
    return None


def _same_kind(name: str, sizes: Mapping[str, int]) -> str | None:
    """The dimension that a coordinate of this name belongs to."""
    role = role_of_name(name)
    if name in sizes or role is None:
        return name if name in sizes else None
    return next((dim for dim in sizes if role_of_name(dim) == role), None)


def _misfit(
    name: str, shape: tuple[int, ...], read: Dims, lengths: Mapping[str, int], where: str
) -> DataError:
    wrong = [
        f"coordinate {dim!r} of length {lengths[dim]}"
        for dim, size in zip(read, shape, strict=True)
        if lengths.get(dim, size) != size
    ]
    return DataError(
        f"Array {name!r} of {where} has shape {shape}, which read as {read} does not fit "
        f"{' and '.join(wrong)}. Name its axes with `axes`."
    )


def _notes(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Short texts beside the data, such as their units."""
    found = {}
    for name, array in arrays.items():
        if array.dtype.kind in "US" and array.size == 1:
            text = np.asarray(array).reshape(-1)[0]
            found[short_name(name)] = text.decode() if isinstance(text, bytes) else str(text)
    return found
