"""The picture of docs/architecture.md: layers of the import contract, a window's way on them."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from validation.trace_adapt import GROUND, heights, layers, road, traces

#: A part of r2no belongs to one of these, which have a colour each.
COLOURS = {"cli": "#d9d2e9", "guests": "#fde2c8", "library": "#d5e5f5", "ground": "#e8e8e8"}
GUESTS = ("realpdebench", "wake")
WIDTH = 9.0  # of the boxes, in steps of the road
STEP, LINE = 0.9, "#3b6ea5"


def draw(path: Path) -> None:
    """Trace a small run, and draw."""
    way = road(traces()["predict"])
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    axes = figure.add_subplot()
    for height, layer in enumerate(layers()):
        _boxes(axes, height, layer)
    _way(axes, way)
    axes.set_xlim(-WIDTH - 0.2, len(way) + 0.6)
    axes.set_ylim(len(layers()) - 0.4, -0.9)
    axes.set_axis_off()
    axes.text(-WIDTH, -0.65, "layers: imports go downwards only", weight="bold")
    axes.text(
        0.3, -0.65, "the way of a window, from file to forecast (r2no predict)", weight="bold"
    )
    figure.savefig(path, dpi=130)


def _boxes(axes: Axes, height: int, layer: list[str]) -> None:
    width = WIDTH / len(layer)
    for place, name in enumerate(layer):
        corner = (-WIDTH + place * width, height - 0.4)
        colour = COLOURS[_kind(name, height)]
        axes.add_artist(_box(corner, width - 0.08, colour))
        middle = (corner[0] + width / 2, height)
        axes.text(*middle, name, ha="center", va="center", fontsize=7)
    axes.axhline(height + 0.5, color="#dddddd", linewidth=0.6, zorder=0)


def _box(corner: tuple[float, float], width: float, colour: str) -> Rectangle:
    return Rectangle(corner, width, 0.8, facecolor=colour, edgecolor="#777777", linewidth=0.7)


def _kind(name: str, height: int) -> str:
    if name in GUESTS:
        return "guests"
    if name in ("cli", "__main__"):
        return "cli"
    return "ground" if height >= heights()[GROUND] else "library"


def _way(axes: Axes, way: list[str]) -> None:
    """A point for every module; the name where it is met first."""
    down = [heights()[module.split(".")[0]] for module in way]
    axes.plot(
        [n + STEP for n in range(len(way))], down, "o-", color=LINE, linewidth=1, markersize=3.5
    )
    for number, module in enumerate(way):
        if module in way[:number]:
            continue
        axes.annotate(
            module.replace(".", "\n").replace("forecast_", "forecast_\n"),
            (number + STEP, down[number]),
            (0, 5 if _is_peak(down, number) else -5),
            textcoords="offset points",
            ha="center",
            va="bottom" if _is_peak(down, number) else "top",
            fontsize=6.5,
            linespacing=0.95,
        )


def _is_peak(down: list[int], number: int) -> bool:
    """Whether the line stays below this point, so that its name has room above."""
    near = down[max(number - 1, 0) : number + 2]
    return down[number] <= min(near)
