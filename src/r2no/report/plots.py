"""Figures as PNG files, one function each; each writes atomically and returns its path."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from r2no import ranks, storage
from r2no._repr import brief_repr
from r2no._types import PathLike
from r2no.ensemble import DepthErrors, FittedEnsemble, SpectralEnsemble, on_plane
from r2no.report.cells import effects
from r2no.spectral import FourierCells

_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7")  # of bands
_LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # of curves


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


@ranks.by_main
def _write(figure: Figure, path: PathLike) -> Path:
    with storage.atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130, facecolor="white")
    return Path(path)


def _label(axis: Axes, labels: Labels) -> None:
    axis.set_xlabel(labels.x)
    axis.set_ylabel(labels.y)
    axis.set_title(labels.title, fontsize=10)


def _without_ticks(axes: np.ndarray) -> None:
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])


def plot_fields(
    fields: Mapping[str, Tensor],
    path: PathLike,
    *,
    channel: int,
    frames: Sequence[int],
    channel_name: str = "",
) -> Path:
    """Target and forecasts of one window at a few frames, with their errors beside, one scale each.

    Args:
        fields: Name to (time, height, width, channel); the first is the target.
        path: PNG to write.
        channel: Channel to show.
        frames: Forecast frames to show, from 0.
        channel_name: For the title.
    """
    names = list(fields)
    target = fields[names[0]][..., channel]
    shown = torch.stack([fields[name][..., channel][list(frames)] for name in names])
    errors = shown - target[list(frames)]
    low, high = float(shown.min()), float(shown.max())
    reach = float(errors.abs().max()) or 1.0
    columns = 2 * len(frames)
    figure = Figure(figsize=(1.9 * columns + 1.4, 0.9 * len(names) + 0.6), layout="constrained")
    axes = figure.subplots(len(names), columns, squeeze=False)
    for row, name in enumerate(names):
        for column, frame in enumerate(frames):
            left, right = axes[row, column], axes[row, column + len(frames)]
            field = left.imshow(shown[row, column].numpy(), origin="lower", vmin=low, vmax=high)
            if row:
                error = right.imshow(
                    errors[row, column].numpy(),
                    origin="lower",
                    cmap="RdBu_r",
                    vmin=-reach,
                    vmax=reach,
                )
            else:
                right.axis("off")
            if row == 0:
                left.set_title(f"frame {frame + 1}", fontsize=9)
            if row == 1:
                right.set_title(f"error, frame {frame + 1}", fontsize=9)
        axes[row, 0].set_ylabel(name, fontsize=9)
    _without_ticks(axes)
    figure.colorbar(field, ax=axes[:, : len(frames)], shrink=0.7, label=channel_name)
    if len(names) > 1:
        figure.colorbar(error, ax=axes[:, len(frames) :], shrink=0.7, label="error")
    return _write(figure, path)


def plot_depth_bands(errors: DepthErrors, path: PathLike, *, title: str = "") -> Path:
    """Change of the regional fRMSE along the loop (M10), each band's minimum marked."""
    change = errors.change()[0]
    bands = change.shape[1]
    figure = Figure(figsize=(6.2, 4.0), layout="constrained")
    axis = figure.subplots()
    for band in range(bands):
        curve = change[:, band].numpy()
        if np.isnan(curve).all():
            continue
        colour = _COLOURS[band % len(_COLOURS)]
        axis.plot(curve, color=colour, label=_band_name(band, bands))
        best = int(np.nanargmin(curve))
        axis.plot(best, curve[best], "o", color=colour, markersize=7)
    axis.axhline(0, color="0.6", linewidth=0.8)
    change_label = "change of fRMSE against the source (%)"
    _label(axis, Labels("depth of the repair loop", change_label, title))
    axis.legend(fontsize=8, frameon=False)
    return _write(figure, path)


def plot_regions(cells: FourierCells, path: PathLike, *, title: str = "") -> Path:
    """Which band each wavenumber lies in (M10), in the colours of :func:`plot_depth_bands`."""
    plane = on_plane(torch.arange(cells.num_cells).double(), cells).numpy()
    figure = Figure(figsize=(6.2, 4.0), layout="constrained")
    axis = figure.subplots()
    colours = [_COLOURS[band % len(_COLOURS)] for band in range(cells.num_cells)]
    axis.imshow(
        plane,
        origin="lower",
        extent=_extent(cells.grid),
        cmap=ListedColormap(colours),
        vmin=-0.5,
        vmax=cells.num_cells - 0.5,
        aspect="auto",
    )
    for band, colour in enumerate(colours):
        axis.plot([], [], "s", color=colour, label=_band_name(band, cells.num_cells))
    _label(axis, Labels("horizontal wavenumber", "vertical wavenumber", title))
    figure.legend(fontsize=8, frameon=False, loc="outside right upper")
    return _write(figure, path)


def _band_name(band: int, bands: int) -> str:
    ends = {0: " (lowest)", bands - 1: " (highest)"}
    return f"band {band + 1}{ends.get(band, '')}"


def _extent(grid: tuple[int, ...]) -> tuple[float, float, float, float]:
    """Edges of the centred Fourier plane of a 2-D grid."""
    height, width = grid
    return (
        -(width // 2) - 0.5,
        (width - 1) // 2 + 0.5,
        -(height // 2) - 0.5,
        (height - 1) // 2 + 0.5,
    )


def plot_retention(
    ensemble: FittedEnsemble | SpectralEnsemble,
    path: PathLike,
    *,
    channel_names: Sequence[str] = (),
) -> Path:
    """The retention map: size of the repair and share of the error it removes, by cell.

    Weights by lead time are shown together, over all forecast frames.
    """
    if isinstance(ensemble, SpectralEnsemble):
        ensemble = ensemble.fitted_
    ensemble.needed_sums()
    found = {name: v[0] for name, v in effects(ensemble, ensemble.plan.lead_groups).items()}
    channels = len(found["gain"])
    extent = _extent(ensemble.cells.grid)
    figure = Figure(figsize=(9.6, 2.9 * channels + 0.6), layout="constrained")
    axes = figure.subplots(channels, 2, squeeze=False)
    reach = max(0.05, float(found["gain"].nan_to_num(0.0).abs().max()))
    panels = (
        (
            found["change"],
            "size of the repair / source (0 keeps the source)",
            "viridis",
            (0.0, 1.0),
        ),
        (found["gain"], "share of the source's squared error removed", "PuOr", (-reach, reach)),
    )
    for row in range(channels):
        for column, (values, title, colours, (low, high)) in enumerate(panels):
            axis = axes[row, column]
            plane = on_plane(values[row].nan_to_num(0.0), ensemble)
            image = axis.imshow(
                plane.numpy(), origin="lower", extent=extent, cmap=colours, vmin=low, vmax=high
            )
            name = channel_names[row] if row < len(channel_names) else f"channel {row}"
            axis.set_title(f"{name}: {title}", fontsize=9)
            axis.set_xlabel("horizontal wavenumber", fontsize=8)
            axis.set_ylabel("vertical wavenumber", fontsize=8)
            figure.colorbar(image, ax=axis, shrink=0.8, extend="max" if column == 0 else "neither")
    return _write(figure, path)


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
        colour = _LINES[number % len(_LINES)]
        line = "--" if curve.dashed else "-"
        axis.plot(curve.x, curve.y, line, marker="o", markersize=4, color=colour, label=curve.label)
        if curve.level is not None:
            axis.axhline(curve.level, linestyle=":", color=colour)
        for x, y, note in curve.stars:
            axis.plot(x, y, "*", markersize=14, color=colour)
            axis.annotate(note, (x, y), textcoords="offset points", xytext=(7, 5), fontsize=8)
    if log_x:
        axis.set_xscale("log")
    _label(axis, labels)
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
            if row == 0:
                axis.set_title(f"frame {frame + 1}", fontsize=9)
        axes[row, 0].set_ylabel(name, fontsize=9)
    _without_ticks(axes)
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
        figure.colorbar(image, ax=axis, shrink=0.9, label=name)
    _without_ticks(axes)
    figure.suptitle(title, fontsize=10)
    return _write(figure, path)
