"""Curves of a study and fields at a few frames, one function each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from torch import Tensor

from r2no import ranks, storage
from r2no._repr import brief_repr
from r2no._types import PathLike

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class Curve:
    """A line with a label; ``level`` is a dotted horizontal, ``stars`` are (x, y, note)."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    level: float | None = None
    stars: Sequence[tuple[float, float, str]] = ()

    __repr__ = brief_repr


class Labels(NamedTuple):
    """What the axes and the figure are called."""

    x: str
    y: str
    title: str = ""


def plot_curves(
    curves: Sequence[Curve],
    path: PathLike,
    labels: Labels,
    *,
    log_x: bool = False,
) -> Path:
    """Lines over one axis, as a PNG."""
    figure = Figure(figsize=(6.2, 4.0), layout="constrained")
    axis = figure.subplots()
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        line = "--" if curve.dashed else "-"
        axis.plot(curve.x, curve.y, line, marker="o", markersize=4, color=colour, label=curve.label)
        if curve.level is not None:
            axis.axhline(curve.level, linestyle=":", color=colour)
        for x, y, note in curve.stars:
            axis.plot(x, y, "*", markersize=14, color=colour)
            axis.annotate(note, (x, y), textcoords="offset points", xytext=(7, 5), fontsize=8)
    if log_x:
        axis.set_xscale("log")
    axis.set_xlabel(labels.x)
    axis.set_ylabel(labels.y)
    axis.set_title(labels.title, fontsize=10)
    axis.legend(fontsize=8, frameon=False)
    return _write(figure, path)


def plot_frames(
    fields: Mapping[str, Tensor], path: PathLike, *, frames: Sequence[int], label: str = ""
) -> Path:
    """Rows of fields, (frame, height, width) each, at the same frames and on one colour scale.

    Args:
        fields: Name to fields; the first is the target, whose range sets the scale.
        path: PNG to write.
        frames: Numbers of the frames, from 0.
        label: Of the colour bar.
    """
    target = next(iter(fields.values()))
    low, high = float(target.min()), float(target.max())
    ratio = target.shape[1] / target.shape[2]
    size = (2.0 * len(frames) + 1.2, 2.0 * ratio * len(fields) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(fields), len(frames), squeeze=False)
    for row, (name, values) in enumerate(fields.items()):
        for column, frame in enumerate(frames):
            axis = axes[row, column]
            image = axis.imshow(values[column].numpy(), origin="lower", vmin=low, vmax=high)
            axis.set_xticks([])
            axis.set_yticks([])
            if row == 0:
                axis.set_title(f"frame {frame + 1}", fontsize=9)
        axes[row, 0].set_ylabel(name, fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.7, label=label)
    return _write(figure, path)


def plot_channels(fields: Mapping[str, Tensor], path: PathLike, *, title: str = "") -> Path:
    """Fields (height, width) beneath each other, each on a colour scale of its own.

    Args:
        fields: Name to field.
        path: PNG to write.
        title: Of the figure.
    """
    first = next(iter(fields.values()))
    size = (5.6, (4.2 * first.shape[0] / first.shape[1] + 0.4) * len(fields) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(fields), 1, squeeze=False)
    for axis, (name, values) in zip(axes[:, 0], fields.items(), strict=True):
        image = axis.imshow(values.numpy(), origin="lower")
        axis.set_xticks([])
        axis.set_yticks([])
        figure.colorbar(image, ax=axis, shrink=0.9, label=name)
    figure.suptitle(title, fontsize=10)
    return _write(figure, path)


@ranks.by_main
def _write(figure: Figure, path: PathLike) -> Path:
    with storage.atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130, facecolor="white")
    return Path(path)
