"""Measurements: files, arrays or xarray objects as trajectories that windows are cut from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from r2no._repr import bytes_in_words, html_table, named_units
from r2no._types import Number
from r2no.checks import did_you_mean
from r2no.data.arrays import ArrayWindows
from r2no.data.coordinates import Axis
from r2no.data.gaps import Mask, gaps_in_words
from r2no.data.recordings import Recording, check_length, missing_shares
from r2no.data.splits import By, Splits, places, plan_split
from r2no.data.window import Fields
from r2no.errors import ConfigError, EmptySplitError, UnknownNameError
from r2no.storage import content_sha256, fingerprint

CHEAP = 2**28  # bytes that are looked at without being asked


@dataclass(frozen=True, eq=False)
class Measurements:
    """Trajectories on one regular grid, with names, units and coordinates. Made by :func:`open`.

    ``print`` shows how the data were understood. Values are read window by window.

    Attributes:
        recordings: The trajectories.
        mask: "auto": NaN and infinity are gaps if there are any; "nan": without looking first;
            None: they are errors; or the name of a variable that is true where values are valid,
            or {"variable": name, "valid": values of it that mean so}. Values that are flagged
            valid but NaN or infinite are gaps as well.
        conditioning: Names of constants that are appended to the history.
    """

    recordings: tuple[Recording, ...]
    mask: Mask = "auto"
    conditioning: tuple[str, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels."""
        return self.recordings[0].channels

    @property
    def units(self) -> tuple[str, ...]:
        """Of the channels; "" where the data say nothing."""
        return self.recordings[0].units

    @property
    def grid(self) -> tuple[int, ...]:
        """Points along each spatial axis."""
        return tuple(axis.size for axis in self.space)

    @property
    def space(self) -> tuple[Axis, ...]:
        """The spatial axes."""
        return self.recordings[0].space

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axis of time, then those of space."""
        return (self.recordings[0].time, *self.space)

    @property
    def time_step(self) -> float:
        """Between two frames; in seconds for dates."""
        return self.recordings[0].time.step

    @property
    def frames(self) -> tuple[int, ...]:
        """How many frames each trajectory has."""
        return tuple(len(recording.values) for recording in self.recordings)

    @property
    def nbytes(self) -> int:
        """Size if everything were in memory."""
        return sum(recording.values.nbytes for recording in self.recordings)

    def __len__(self) -> int:
        return len(self.recordings)

    def __str__(self) -> str:
        return self.describe()

    @property
    def _span(self) -> str:
        """How many frames its trajectories have."""
        low, high = min(self.frames), max(self.frames)
        return f"{low}" if low == high else f"{low} to {high}"

    def __repr__(self) -> str:
        return (
            f"Measurements({len(self)} recording(s) of {self._span} frames of "
            f"{named_units(self.channels, self.units)} on {' x '.join(map(str, self.grid))}, "
            f"{bytes_in_words(self.nbytes)})"
        )

    def _repr_html_(self) -> str:
        """The same as :meth:`describe`, as a table."""
        first, *lines = self.describe().splitlines()
        return html_table(first, [(line[:13].strip(), line[13:].strip()) for line in lines])

    @cached_property
    def missing(self) -> tuple[float, ...]:
        """Share of missing values by channel; reads everything once, in pieces."""
        return missing_shares(self.recordings)

    @cached_property
    def has_gaps(self) -> bool:
        """Whether any value is NaN or infinite, or a mask is given; stops at the first one."""
        if self.mask not in ("auto", "nan"):
            return self.mask is not None
        floats = (r.values for r in self.recordings if r.values.dtype.kind == "f")
        return any(not np.isfinite(piece).all() for values in floats for piece in values.pieces())

    @property
    def identity(self) -> str:
        """A hash of the content: of files their bytes, of data in memory their values.

        Dates and folders do not count, so copies are the same data. ``windows().fingerprint`` is
        the hash of the values of certain windows.
        """
        files = {recording.file for recording in self.recordings if Path(recording.file).exists()}
        hashes = {file: content_sha256(file) for file in files}
        named = [self.channels, self.units, self.mask, [axis.step for axis in self.space]]
        return fingerprint(named, [r.identity(hashes.get(r.file)) for r in self.recordings])

    def describe(self, *, count: bool | None = None) -> str:
        """How the data were understood, in a few lines.

        Args:
            count: Whether to count missing values, which reads everything; default if it is cheap.
        """
        first = self.recordings[0]
        roles = ", ".join(f"{role} = {dim}" for role, dim in first.roles.items())
        step = f"{self.time_step:.6g} {first.time.units}".rstrip()
        counted = self.nbytes <= CHEAP if count is None else count
        gaps = gaps_in_words(
            self.mask, dict(zip(self.channels, self.missing, strict=True)) if counted else None
        )
        number = "1 trajectory" if len(self) == 1 else f"{len(self)} trajectories"
        lines = [
            f"Measurements: {number} of {self._span} frames, {bytes_in_words(self.nbytes)}",
            f"  channels    {named_units(self.channels, self.units)}",
            f"  dimensions  {roles}",
            f"  grid        {', '.join(map(str, self.space))}",
            f"  time step   {step if first.time.variable is not None else '1 (no coordinate)'}",
            f"  gaps        {gaps}",
        ]
        if self.conditioning:
            lines.append(f"  constants   {', '.join(self.conditioning)}")
        for place, (name, reason) in enumerate(first.ignored.items()):
            lines.append(f"  {'' if place else 'left out':11} {name}: {reason}")
        return "\n".join(lines)

    def select(self, channels: Sequence[str]) -> "Measurements":
        """The same data with these channels, in this order.

        Raises:
            UnknownNameError: if there is no such channel; the message gives the nearest.
            ConfigError: if none is named, or one twice.
        """
        if isinstance(channels, str) or not channels or len(set(channels)) < len(channels):
            raise ConfigError(
                "`channels` must name at least one channel and none twice, but got "
                f"{channels!r}. There are {', '.join(map(repr, self.channels))}."
            )
        for name in channels:
            if name not in self.channels:
                raise UnknownNameError(
                    f"There is no channel {name!r} in `{self.recordings[0].name}`. "
                    + did_you_mean(name, self.channels)
                    + " Rename it with `data.rename`, or choose with `variables`."
                )
        order = [self.channels.index(name) for name in channels]
        units = tuple(self.units[number] for number in order)
        return self._with(
            replace(r, values=r.values.select(order), channels=tuple(channels), units=units)
            for r in self.recordings
        )

    def completed(self, fields: Fields) -> "Measurements":
        """The same with time step and spacing of ``fields`` where the data have no coordinates.

        So data without coordinates can follow data that had some; units of axes and their
        direction come along.
        """
        count = len(self.space)
        steps = zip(
            fields.spacing or (1.0,) * count,
            fields.axis_units or ("",) * count,
            fields.falling or (False,) * count,
            strict=False,
        )
        space = tuple(axis.completed(*one) for axis, one in zip(self.space, steps, strict=False))
        if len(space) != count:
            return self  # of another kind of grid, which is refused elsewhere
        return self._with(
            r.on_axes(r.time.completed(fields.time_step, fields.time_units), space)
            for r in self.recordings
        )

    def _with(self, recordings: Iterable[Recording]) -> "Measurements":
        return replace(self, recordings=tuple(recordings))

    def subset(self, trajectories: Sequence[int]) -> "Measurements":
        """The same data with these trajectories, in this order."""
        return self._with(self._chosen(trajectories))

    def load(self) -> "Measurements":
        """The same data in memory: training reads every window many times."""
        return self._with(
            replace(r, values=r.values.load(), flags=r.flags and r.flags.load())
            for r in self.recordings
        )

    def windows(
        self,
        history: int,
        horizon: int,
        *,
        stride: int = 1,
        measured: Sequence[int | str] | None = None,
        trajectories: Sequence[int] | None = None,
        frames: slice | Sequence[slice] | None = None,
        beyond: bool = False,
    ) -> ArrayWindows:
        """Windows over the data, with units, spacing and time step in their ``fields``.

        Args:
            history: Frames that are given.
            horizon: Frames that are asked for.
            stride: Frames between the starts of two windows.
            measured: Channels that are scored, by name or index; default all.
            trajectories: Numbers of the trajectories to use; default all.
            frames: Which frames to use, of every trajectory or one slice for each.
            beyond: Also the windows whose target lies after the end, as a forecast needs them.
        """
        chosen = self._chosen(trajectories)
        frames = slice(None) if frames is None else frames
        spans = [frames] * len(chosen) if isinstance(frames, slice) else list(frames)
        if len(spans) != len(chosen):
            raise ConfigError(
                f"`frames` must be one slice, or one for each of {len(chosen)} trajectories, but "
                f"got {len(spans)}."
            )
        values = [r.values.part(span) for r, span in zip(chosen, spans, strict=True)]
        masks = [r.valid.part(span) for r, span in zip(chosen, spans, strict=True) if r.valid]
        check_length(chosen, values, history if beyond else history + horizon)
        nan = self.mask == "nan" or (self.mask == "auto" and (beyond or self.has_gaps))
        windows = ArrayWindows(
            values,
            history,
            horizon,
            stride=stride,
            channels=self.channels,
            measured=None if measured is None else self._indices(measured),
            conditioning=[r.constants for r in chosen] if self.conditioning else None,
            conditioning_names=self.conditioning or None,
            mask=masks or ("nan" if nan else None),
            units=self.units if any(self.units) else (),
            spacing=tuple(axis.step for axis in self.space),
            time_step=self.time_step,
            trajectory_names=[_named(r, span) for r, span in zip(chosen, spans, strict=True)],
            beyond=beyond,
        )
        known = all(axis.variable is not None for axis in self.space)
        windows.fields = replace(
            windows.fields,
            axes=tuple(axis.name for axis in self.space),
            axis_units=tuple(axis.units for axis in self.space),
            falling=tuple(axis.falls for axis in self.space) if known else (),
            time_units=self.recordings[0].time.units,
        )
        return windows

    def split(
        self,
        history: int,
        horizon: int,
        *,
        train: Number | None = None,
        fit: Number | None = None,
        test: Number | None = None,
        by: By = "auto",
        stride: int = 1,
        measured: Sequence[int | str] | None = None,
        seed: int | None = None,
    ) -> Splits:
        """Windows for training, fitting and testing that share no frame.

        By trajectory: whole trajectories, in their order or, with ``seed``, in a drawn one. By
        time: each trajectory is cut into contiguous blocks, train first, with a gap of one horizon
        between them. "auto" goes by trajectory if there are three or more.

        Shares that are given count in proportion (train 0.6, fit 0.2 and test 0.2 where only some
        are). Without any, fit gets four trajectories where there are eight or more and test a
        fifth; in time, fit gets eight horizons, but at most two fifths.

        Args:
            history: Frames that are given.
            horizon: Frames that are asked for.
            train: Share of the data to train repair modules on.
            fit: Share to fit the ensemble on.
            test: Share to test on.
            by: "trajectory", "time" or "auto".
            stride: Frames between the starts of two windows.
            measured: Channels that are scored, by name or index; default all.
            seed: Draws the order of the trajectories.

        Raises:
            EmptySplitError: if there are too few trajectories or frames.
        """
        shares = {"train": train, "fit": fit, "test": test}
        chosen, spans = plan_split(self.frames, history, horizon, shares, by=by, seed=seed)
        parts = [
            self.windows(
                history, horizon, stride=stride, measured=measured, trajectories=own, frames=frames
            )
            for own, frames in zip(chosen, spans, strict=True)
        ]
        origins = [part.origins for part in parts]
        return Splits(parts[0], parts[1], parts[2], places(origins, chosen, spans))

    def _chosen(self, trajectories: Sequence[int] | None) -> list[Recording]:
        if trajectories is None:
            return list(self.recordings)
        if not trajectories or not set(trajectories) <= set(range(len(self))):
            raise EmptySplitError(
                f"`trajectories` must hold numbers below {len(self)}, at least one, but got "
                f"{list(trajectories)}."
            )
        return [self.recordings[number] for number in trajectories]

    def _indices(self, measured: Sequence[int | str]) -> list[int]:
        for name in measured:
            if isinstance(name, str) and name not in self.channels:
                raise UnknownNameError(
                    f"`measured` names {name!r}, which is no channel. "
                    + did_you_mean(name, self.channels)
                )
        return [self.channels.index(m) if isinstance(m, str) else m for m in measured]


def _named(recording: Recording, frames: slice) -> str:
    """What messages call the recording, of which these frames are used."""
    first, *_ = frames.indices(len(recording.values))
    return f"`{recording.name}`{f', used from frame {first} on,' if first else ''}"
