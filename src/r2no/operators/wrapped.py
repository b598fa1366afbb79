"""wrap(): a network in any layout and units becomes an operator in r2no's convention.

:class:`Layout` says how the network orders its axes, and is the way there and back.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from r2no import checks, devices
from r2no._repr import first_line
from r2no._types import Field, Grid, History
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields
from r2no.errors import ConfigError, LayoutError, ShapeError
from r2no.operators.opening import check_finite
from r2no.training.operator import Normalised

#: What networks raise when a shape does not suit them.
_COMPLAINTS = (RuntimeError, ValueError, IndexError, AssertionError, TypeError)
#: Names of the spatial axes by their number, and what else they may be called.
_SPACE = {1: ("W",), 2: ("H", "W"), 3: ("D", "H", "W")}
_ALIASES = {"X": "W", "Y": "H", "Z": "D"}

#: What is tried when the declared layout does not fit; H W stands for the spatial axes.
_USUAL = ("B T {s} C", "B C T {s}", "B T C {s}", "B (T C) {s}", "B (C T) {s}", "B {s} (T C)")


@dataclass(frozen=True)
class Layout:
    """An order of axes, such as ``"B C T H W"``; brackets join axes, the first varies slowest.

    B is the batch, T the frames, C the channels; H and W (or Y and X, with D or Z for depth) the
    grid. ``"B (T C) H W"`` holds all channels of the first frame, then those of the second.

    Attributes:
        groups: Axes by name, those joined in brackets together.
        dimensions: Number of spatial axes.
    """

    groups: tuple[tuple[str, ...], ...]
    dimensions: int

    @classmethod
    def parse(cls, text: str, dimensions: int = 2) -> "Layout":
        """Read a layout for a grid of so many axes.

        Raises:
            ConfigError: if an axis is unknown, missing or named twice.
        """
        parts = re.findall(r"\(([^()]*)\)|(\w+)", text)
        groups = tuple(
            tuple(_ALIASES.get(name, name) for name in (inside or alone).upper().split())
            for inside, alone in parts
        )
        found = [name for group in groups for name in group]
        expected = ["B", "T", "C", *_SPACE[dimensions]]
        if sorted(found) != sorted(expected) or groups[0] != ("B",):
            usual = ", ".join(map(repr, usual_layouts(dimensions)))
            raise ConfigError(
                f"`layout` must begin with B and name each of {' '.join(expected)} once, but got "
                f"{text!r}. For these fields it can be {usual}."
            )
        return cls(groups, dimensions)

    def __str__(self) -> str:
        return " ".join(
            group[0] if len(group) == 1 else f"({' '.join(group)})" for group in self.groups
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of r2no's own order, the channels last."""
        return ("B", "T", *_SPACE[self.dimensions], "C")

    def pack(self, field: Tensor) -> Tensor:
        """(batch, time, *space, channel) to this layout, as a copy: networks may write into it."""
        order = [self.axes.index(name) for group in self.groups for name in group]
        values = field.permute(order)
        for position, group in enumerate(self.groups):  # axes before are already joined
            if len(group) > 1:
                values = values.flatten(position, position + len(group) - 1)
        return values.contiguous().clone()  # networks may call `view`

    def unpack(self, values: Tensor, grid: Grid, channels: int) -> Tensor:
        """This layout to (batch, time, *space, channel); the frames follow from the shape.

        Raises:
            LayoutError: if the shape is not that of a field with this grid and these channels.
        """
        sizes = {"C": channels, **dict(zip(self.axes[2:-1], grid, strict=True))}
        frames = self._frames(values, sizes)
        sizes |= {"T": frames}
        flat = [name for group in self.groups for name in group]
        shape = [values.shape[0] if name == "B" else sizes[name] for name in flat]
        return values.reshape(shape).permute([flat.index(name) for name in self.axes])

    def shape(self, frames: int, grid: Grid, channels: int) -> str:
        """What a tensor of this layout looks like, for messages."""
        sizes = {"T": frames, "C": channels, **dict(zip(self.axes[2:-1], grid, strict=True))}
        parts = [str(math.prod(sizes[name] for name in group)) for group in self.groups[1:]]
        return f"({', '.join(['batch', *parts])})"

    def _frames(self, values: Tensor, sizes: dict[str, int]) -> int:
        if values.ndim != len(self.groups):
            raise LayoutError(f"{values.ndim} axes where {self} has {len(self.groups)}")
        frames = 0
        for group, size in zip(self.groups, values.shape, strict=True):
            known = math.prod(sizes[name] for name in group if name in sizes)
            if "T" in group:
                frames = size // known
            if group != ("B",) and (size % known if "T" in group else size != known):
                raise LayoutError(f"{size} entries on {'·'.join(group)}, which is {known} here")
        return frames


def usual_layouts(dimensions: int) -> tuple[str, ...]:
    """Layouts that networks commonly use on a grid of so many axes."""
    return tuple(text.format(s=" ".join(_SPACE[dimensions])) for text in _USUAL)


class WrappedOperator(Normalised):
    """A network with its layout, units and time stepping; made by :func:`wrap`."""

    def __init__(
        self,
        network: Callable[[Tensor], Tensor],
        layout: Layout,
        fields: Fields,
        *,
        one_step: bool,
        frames: int,
        normaliser: tuple[Normaliser, Normaliser] | None,
        conditioning: bool,
    ) -> None:
        super().__init__()
        self.network = network
        self.layout, self.fields, self.one_step = layout, fields, one_step
        self.frames, self.conditioning = frames, conditioning
        self._normalised = normaliser is not None
        if normaliser is not None:
            self.keep(*normaliser)

    def __repr__(self) -> str:
        steps = ", one step at a time" if self.one_step else ""
        kind = getattr(self.network, "__name__", type(self.network).__name__)
        return f"WrappedOperator({kind}, layout '{self.layout}'{steps}, {self.fields.describe()})"

    @property
    def normaliser(self) -> tuple[Normaliser, Normaliser] | None:
        """Of history and target, if the network works in normalised units."""
        return self.normalisers if self._normalised else None

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of :func:`wrap` beside network, layout and fields: to wrap it so again."""
        return {
            "one_step": self.one_step,
            "frames": self.frames,
            "conditioning": self.conditioning,
            "normaliser": self.normaliser,
        }

    def forward(self, history: History) -> Field:
        """The forecast for a history, both in physical units."""
        self._check_history(history)
        horizon, known = self.fields.horizon_frames, history[:, -self.frames :]
        if not self.one_step:
            forecast = self._call(known)
            if forecast.shape[1] != horizon:
                raise self._wrong_frames(forecast.shape[1])
            return forecast
        constants, pieces, done = history[:, -1:, ..., len(self.fields.channels) :], [], 0
        while done < horizon:
            piece = self._call(known)
            if piece.shape[1] == 0:
                raise self._wrong_frames(0)
            pieces.append(piece)
            done += piece.shape[1]
            extra = constants.expand(-1, piece.shape[1], *[-1] * (history.ndim - 2))
            known = torch.cat([known, torch.cat([piece, extra], -1)], 1)[:, -self.frames :]
        return torch.cat(pieces, 1)[:, :horizon]

    def _call(self, known: Tensor) -> Tensor:
        """One call of the network, physical units in and out."""
        channels = len(self.fields.channels)
        values = known if self.conditioning else known[..., :channels]
        normaliser = self.normaliser
        if normaliser is not None:
            values = normaliser[0](values)
        packed = self.layout.pack(values)
        try:
            answer = self.network(packed)
        except _COMPLAINTS as error:
            if devices.ran_out_of_memory(error):
                raise
            raise self._refused(packed, error) from error
        forecast = self._unpacked(answer)
        return forecast if normaliser is None else normaliser[1].inverse(forecast)

    def _unpacked(self, answer: Any) -> Tensor:
        """The network's answer in r2no's axes; one of another layout is refused with advice."""
        if not isinstance(answer, Tensor):
            raise ShapeError(
                f"`network` must return one tensor, but returned a `{type(answer).__name__}`. "
                "Wrap it in a function that picks the forecast."
            )
        try:
            return self.layout.unpack(answer, self.fields.grid, len(self.fields.channels))
        except LayoutError as reason:
            frames = "1" if self.one_step else str(self.fields.horizon_frames)
            expected = self.layout.shape(int(frames), self.fields.grid, len(self.fields.channels))
            raise LayoutError(
                f"`network` must answer in layout {str(self.layout)!r} with {expected} for "
                f"{frames} frame(s) of channels {self.fields.channels}, but gave shape "
                f"{tuple(answer.shape)}: {reason}. {self._advice()}"
            ) from None

    def _refused(self, packed: Tensor, error: Exception) -> LayoutError:
        return LayoutError(
            f"`network` failed on an input of shape {tuple(packed.shape)}, which is layout "
            f"{str(self.layout)!r} of {self.frames} frame(s) of channels "
            f"{self._input_channels()}: {first_line(error)}. {self._advice()}"
        )

    def _wrong_frames(self, frames: int) -> ShapeError:
        horizon = self.fields.horizon_frames
        remedy = (
            "Set `one_step=True` to roll it forward"
            if 0 < frames < horizon
            else "Shorten the network's output or lengthen the horizon"
        )
        return ShapeError(
            f"`network` must forecast the {horizon} frames of the horizon, but gave {frames}. "
            f"{remedy}."
        )

    def _advice(self) -> str:
        fitting = fitting_layouts(self)
        if fitting:
            return f"Declare {' or '.join(f'layout={name!r}' for name in fitting)}, which fits."
        return (
            "No usual layout fits: check frames (`frames=` for networks that see fewer than the "
            "history), channels, grid and whether it takes conditioning channels "
            "(`conditioning=False` leaves them out)."
        )

    def _input_channels(self) -> tuple[str, ...]:
        return self.fields.history_channels if self.conditioning else self.fields.channels

    def _check_history(self, history: Tensor) -> None:
        fields = self.fields
        expected = fields.history_shape
        if tuple(history.shape[1:]) != expected:
            raise ShapeError(
                f"`history` must be (batch, {', '.join(map(str, expected))}) with channels "
                f"{fields.history_channels}, but got shape {tuple(history.shape)}. Cut the window "
                "or wrap the network for these fields."
            )


def wrap(
    network: Callable[[Tensor], Tensor],
    layout: str,
    fields: Fields,
    *,
    one_step: bool = False,
    frames: int | None = None,
    normaliser: tuple[Normaliser, Normaliser] | None = None,
    conditioning: bool = True,
) -> WrappedOperator:
    """Bring a network into r2no's convention: physical (batch, time, *space, channel) in and out.

    Args:
        network: A module or callable that takes and returns one tensor.
        layout: Order of its axes: ``"B T H W C"``, ``"B C T H W"``, ``"B (T C) H W"``, ... (see
            :class:`Layout`).
        fields: Of the windows it will forecast, ``windows.fields``.
        one_step: Whether it gives fewer frames than the horizon and is rolled forward: its
            frames are appended to the history, with the conditioning channels of the last known
            frame, until the horizon is reached.
        frames: Frames of history that it sees; default all.
        normaliser: Of history and target, for a network that works in normalised units; ``None``
            for one that normalises inside or works in physical units.
        conditioning: Whether it takes the conditioning channels of the history.

    Raises:
        ConfigError: if the layout is not one, there are fewer frames of history, ``fields`` are not
            those of windows, or ``normaliser`` is no pair.
        NonFiniteError: if a weight is NaN or infinite.
    """
    checks.instance("fields", fields, Fields)
    if normaliser is not None and len(checks.listed("normaliser", normaliser)) != 2:
        raise ConfigError(
            f"`normaliser` must be two, of history and of target, but got {len(normaliser)}."
        )
    frames = fields.history_frames if frames is None else frames
    if not 1 <= frames <= fields.history_frames:
        raise ConfigError(
            f"`frames` must be between 1 and the {fields.history_frames} of the history, but got "
            f"{frames}."
        )
    if isinstance(network, nn.Module):
        check_finite(network)
    operator = WrappedOperator(
        network,
        Layout.parse(layout, len(fields.grid)),
        fields,
        one_step=one_step,
        frames=frames,
        normaliser=normaliser,
        conditioning=conditioning,
    )
    return operator.eval()


@torch.no_grad()
def fitting_layouts(operator: WrappedOperator) -> list[str]:
    """The usual layouts in which the network takes these fields and answers in their shape.

    Only shapes are compared, so several can fit; which one the network was trained with shows in
    its error.
    """
    fields, fitting = operator.fields, []
    channels = len(operator._input_channels())
    device = next((tensor.device for tensor in operator.parameters()), None)
    probe = torch.zeros(2, operator.frames, *fields.grid, channels, device=device)
    for name in usual_layouts(len(fields.grid)):
        layout = Layout.parse(name, len(fields.grid))
        try:
            answer = operator.network(layout.pack(probe))
            found = layout.unpack(answer, fields.grid, len(fields.channels)).shape[1]
        except (*_COMPLAINTS, AttributeError):  # a trial: it does not fit, which is the answer
            continue
        if 0 < found <= fields.horizon_frames and (
            operator.one_step or found == fields.horizon_frames
        ):
            fitting.append(name)
    return fitting
