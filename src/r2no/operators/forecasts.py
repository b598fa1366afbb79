"""Forecasts: no network at all, but forecasts made before by a CFD code or a weather model."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from r2no import storage
from r2no.data.window import Windows
from r2no.errors import DataError, ShapeError
from r2no.operators.forecast_reading import Stored, Wanted, open_forecasts


class Forecasts:
    """Precomputed forecasts as a source, looked up by the history they belong to.

    A source is asked with a history alone, so each window of ``windows`` is known by a hash of
    its history's values: splits, subsets and other orders of the same windows find their forecast
    whatever their trajectories are numbered there. Limits: a history that is not among
    ``windows``, or that was changed (noise, other fill values, another precision), has no
    forecast and is refused; two windows with equal histories must have equal forecasts; making
    the index reads every window once.

    Args:
        windows: Every window that may be asked for, over whole trajectories.
        values: For each trajectory of ``windows`` either what a simulation that runs alongside
            gives at each of its frames, (frame, *space, channel); or forecasts issued one by one,
            (start, lead, *space, channel).
        starts: For issued forecasts and each trajectory, the first frame of the history each
            belongs to; default 0, 1, 2, ... A forecast made at frame t (the last one known) from
            ``history`` frames starts at t - history + 1.

    Raises:
        ShapeError: if the arrays are not of the windows' grid, channels, frames or horizon.
        DataError: if a window has no forecast, or equal histories have different ones.
    """

    def __init__(
        self,
        windows: Windows,
        values: Sequence[Any],
        *,
        starts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.fields = windows.fields
        self._values = list(values)
        self._issued = self._values[0].ndim == len(self.fields.grid) + 3 if self._values else False
        self._check(int(windows.origins[:, 0].max()) + 1)
        self._place = [
            {int(start): place for place, start in enumerate(own)} for own in self._starts(starts)
        ]
        self._index = self._make_index(windows)

    def __repr__(self) -> str:
        kind = "issued one by one" if self._issued else "of a run alongside"
        return (
            f"Forecasts({kind}, {len(self._values)} recording(s), for {len(self._index)} windows, "
            f"{self.fields.describe()})"
        )

    @classmethod
    def open(
        cls,
        path: Stored,
        windows: Windows,
        *,
        variables: Sequence[str] | None = None,
        dims: Mapping[str, str] | None = None,
        axes: Sequence[str] | None = None,
        like: Mapping[str, str] | None = None,
        allow_sparse: bool = False,
    ) -> "Forecasts":
        """Read forecasts from whatever :func:`r2no.data.open` reads, lazily where possible.

        Variables have axes ([trajectory], time, *space) for a simulation that runs alongside, or
        ([trajectory], start, lead, *space) for issued forecasts, where the coordinate ``start``
        holds the first frame of the history; or they are files of ``write_predictions``, with
        (origin, lead, *space). Dimensions are recognised as in data. Grid and direction of the
        axes must be those of the windows. npy and npz hold arrays with the channels last, npz one
        per trajectory, or one per variable under the names of ``variables``.

        Args:
            path: A file, folder, pattern or list; files are trajectories, in the data's order.
            windows: Every window that may be asked for.
            variables: Names of the variables; default the windows' channels.
            dims: What dimensions are, where the guess is wrong: "trajectory", "time", "start",
                "lead", "depth", "height", "width" to their names.
            axes: Names of the axes of arrays that come without.
            like: ``dims`` of the data, used for names that the forecasts have too.
            allow_sparse: As in :func:`r2no.data.open`.
        """
        wanted = Wanted(
            tuple(variables or windows.fields.channels),
            windows.fields,
            dims=dims or {},
            like=like or {},
            axes=axes,
            allow_sparse=allow_sparse,
        )
        values, starts = open_forecasts(path, wanted)
        return cls(windows, values, starts=starts)

    def __call__(self, history: Tensor) -> Tensor:
        """The stored forecasts of a batch of histories."""
        found = [self._forecast(*self._find(one)) for one in history]
        return torch.stack(found).to(history)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all stored forecasts; reads them once."""
        pieces = [
            storage.fingerprint(_one(own, number))
            for own in self._values
            for number in range(own.shape[0])
        ]
        return storage.fingerprint(pieces, [sorted(place) for place in self._place])

    def _find(self, history: Tensor) -> tuple[int, int]:
        origin = self._index.get(_key(history))
        if origin is None:
            raise DataError(
                "No forecast is stored for this history. Give `Forecasts` windows that contain "
                "it, cut from the same data with the same history and gap filling; stored "
                "forecasts cannot answer new measurements."
            )
        return origin

    def _forecast(self, trajectory: int, start: int) -> Tensor:
        own, frames = self._values[trajectory], self.fields.history_frames
        if self._issued:
            values = _one(own, self._place[trajectory][start])[: self.fields.horizon_frames]
        else:
            first = start + frames
            values = own[first : first + self.fields.horizon_frames]
        return torch.as_tensor(np.array(values), dtype=torch.float32)

    def _starts(self, starts: Sequence[Sequence[int]] | None) -> Sequence[Sequence[int]]:
        if starts is None:
            return [range(own.shape[0]) for own in self._values]
        if [len(own) for own in starts] != [own.shape[0] for own in self._values]:
            raise ShapeError(
                "`starts` must give one frame per issued forecast of each trajectory, "
                f"{[own.shape[0] for own in self._values]}, but has {[len(s) for s in starts]}."
            )
        return starts

    def _check(self, trajectories: int) -> None:
        """Refuse too few arrays, or arrays of another shape than the windows'."""
        if len(self._values) < trajectories:
            raise ShapeError(
                f"`values` must hold one array for each of the {trajectories} trajectories of "
                f"`windows`, but holds {len(self._values)}."
            )
        fields = self.fields
        tail = (*fields.grid, len(fields.channels))
        lead = fields.horizon_frames if self._issued else 0
        for number, own in enumerate(self._values):
            shape = tuple(own.shape)
            axes = len(tail) + (2 if self._issued else 1)
            if len(shape) != axes or shape[-len(tail) :] != tail or shape[1] < lead:
                raise ShapeError(
                    f"`values[{number}]` must be (frame, {', '.join(map(str, tail))}) or (start, "
                    f"{fields.horizon_frames} or more, {', '.join(map(str, tail))}) for channels "
                    f"{fields.channels}, but has shape {shape}. Reorder or resample it."
                )

    def _make_index(self, windows: Windows) -> dict[bytes, tuple[int, int]]:
        """Place of each window by its history, since that is all a source is shown."""
        index: dict[bytes, tuple[int, int]] = {}
        for number, (trajectory, start) in enumerate(windows.origins.tolist()):
            self._check_origin(trajectory, start)
            key = _key(windows[number].history)
            before = index.setdefault(key, (trajectory, start))
            if before != (trajectory, start) and not torch.equal(
                self._forecast(*before), self._forecast(trajectory, start)
            ):
                raise DataError(
                    f"The windows at (trajectory, frame) {before} and {(trajectory, start)} have "
                    "equal histories but different forecasts, so they cannot be told apart. Leave "
                    "out the frames in which nothing happens yet."
                )
        return index

    def _check_origin(self, trajectory: int, start: int) -> None:
        if self._issued:
            found = start in self._place[trajectory]
        else:
            length = self.fields.history_frames + self.fields.horizon_frames
            found = start + length <= self._values[trajectory].shape[0]
        if not found:
            raise DataError(
                f"There is no forecast for the window of trajectory {trajectory} that starts at "
                f"frame {start}. Give forecasts for all windows, or fewer windows."
            )


def _one(values: Any, number: int) -> np.ndarray:
    """One frame, or one issued forecast, of arrays that may only know slices."""
    found: np.ndarray = np.asarray(values[number : number + 1])[0]
    return found


def _key(history: Tensor) -> bytes:
    values = history.detach().to("cpu", torch.float32).contiguous()
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=16).digest()
