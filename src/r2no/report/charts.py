"""Line charts as inline SVG: drawn here, coloured by the page's style sheet, no script needed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from matplotlib.ticker import MaxNLocator

from r2no._types import Number
from r2no.report.data import minus

_WIDTH, _HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 46

Value = float | int | None


@dataclass(frozen=True)
class Line:
    """A curve; ``style`` is one of s0..s5 of the style sheet: a colour, a dash and a marker.

    Attributes:
        label: In the legend and in each point's tip.
        x: Places.
        y: Values; None or NaN leaves a gap.
        style: Number of the style.
        marks: Numbers of points that are drawn larger.
        spread: Half-height of a band around the curve.
        plain: Whether to leave out the ordinary points' markers.
    """

    label: str
    x: Sequence[Number]
    y: Sequence[Value]
    style: int = 0
    marks: Sequence[int] = ()
    spread: Sequence[Value] | None = None
    plain: bool = False


@dataclass(frozen=True)
class Axes:
    """Labels and scales of a chart; ``level`` draws a horizontal rule at a value."""

    name: str
    x: str
    y: str
    log: bool = False
    whole: bool = False
    level: float | None = None


def line_chart(lines: Sequence[Line], axes: Axes) -> Markup:
    """An SVG figure with a legend below; empty if no line has a finite point."""
    lines = [line for line in lines if any(_known(value, axes.log) for value in line.y)]
    if not lines:
        return Markup()
    xs = [float(x) for line in lines for x in line.x]
    x_ticks = _ticks(min(xs), max(xs), whole=axes.whole)
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = _reach(lines, axes)
    y_ticks = _log_ticks(y_low, y_high) if axes.log else _ticks(y_low, y_high)
    across = _scale(x_low, x_high, _LEFT, _WIDTH - _RIGHT, log=False)
    up = _scale(y_low, y_high, _HEIGHT - _BOTTOM, _TOP, log=axes.log)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(axes.name)}">',
        *_frame(x_ticks, y_ticks, across, up, axes),
    ]
    if axes.level is not None and y_low <= axes.level <= y_high:
        place = up(axes.level)
        parts.append(f'<path class="level" d="M{_LEFT} {place:.1f}H{_WIDTH - _RIGHT}"/>')
    for line in lines:
        parts += _curve(line, across, up, axes.log)
    legend = "".join(_legend(line) for line in lines)
    return Markup("".join(parts) + f'</svg><ul class="legend">{legend}</ul>')


def interval_chart(value: float, low: float, high: float, axes: Axes) -> Markup:
    """A value with its interval on one axis, zero marked."""
    reach = max(abs(low), abs(high), abs(value)) or 1.0
    left, right = min(low, 0.0) - 0.15 * reach, max(high, 0.0) + 0.15 * reach
    width = 340
    across = _scale(left, right, 10, width - 10, log=False)
    parts = [
        f'<svg viewBox="0 0 {width} 92" role="img" aria-label="{escape(axes.name)}">',
        f'<path class="axis" d="M10 48H{width - 10}"/>',
        f'<path class="level" d="M{across(0):.1f} 6V48"/>',
        f'<path class="line s2" d="M{across(low):.1f} 26H{across(high):.1f}'
        f'M{across(low):.1f} 18v16M{across(high):.1f} 18v16"/>',
        f'<path class="mark s2" d="{_marker(0, across(value), 26, 6)}"/>',
    ]
    for tick in _ticks(left, right):
        parts.append(f'<path class="axis" d="M{across(tick):.1f} 48v4"/>')
        parts.append(f'<text class="tick x" x="{across(tick):.1f}" y="66">{_tick(tick)}</text>')
    parts.append(f'<text class="label" x="{width / 2}" y="86">{escape(axes.x)}</text></svg>')
    return Markup("".join(parts))


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart: its label, its value, and the value in words."""

    label: str
    value: float
    words: str


def bar_chart(bars: Sequence[Bar], axes: Axes) -> Markup:
    """Horizontal bars from zero, each under its label, with the value in words at its side."""
    if not bars:
        return Markup()
    low = min(0.0, *(bar.value for bar in bars))
    high = max(0.0, *(bar.value for bar in bars)) or (1.0 if low == 0 else 0.0)
    bottom = 40 * len(bars) + 6
    across = _scale(low, high, 12, _WIDTH - 12, log=False)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {bottom + 40}" role="img" aria-label="{escape(axes.name)}">'
    ]
    for number, bar in enumerate(bars):
        top = 40 * number
        start, end = sorted((across(0), across(bar.value)))
        words = escape(f"{bar.label}: {bar.words}")
        parts.append(f'<text x="18" y="{top + 15}">{words}</text>')
        style = "s2" if bar.value >= 0 else "s1"
        parts.append(
            f'<path class="bar {style}" d="M{start:.1f} {top + 21}H{end:.1f}v14H{start:.1f}Z"/>'
        )
    parts.append(f'<path class="axis" d="M12 {bottom}H{_WIDTH - 12}M{across(0):.1f} 18V{bottom}"/>')
    for tick in _ticks(low, high):
        parts.append(f'<path class="axis" d="M{across(tick):.1f} {bottom}v4"/>')
        place = f'x="{across(tick):.1f}" y="{bottom + 17}"'
        parts.append(f'<text class="tick x" {place}>{_tick(tick)}</text>')
    middle = f'x="{_WIDTH / 2}" y="{bottom + 35}"'
    parts.append(f'<text class="label" {middle}>{escape(axes.x)}</text></svg>')
    return Markup("".join(parts))


def _known(value: Value, log: bool) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def _reach(lines: Sequence[Line], axes: Axes) -> tuple[float, float]:
    """Range of the values with the bands around them, a little widened."""
    values = []
    for line in lines:
        spread = line.spread or [0.0] * len(line.y)
        for value, around in zip(line.y, spread, strict=True):
            if value is not None and _known(value, axes.log):
                values += [value - (around or 0.0), value + (around or 0.0)]
    if axes.level is not None:
        values.append(axes.level)
    low, high = min(values), max(values)
    if axes.log:
        return low / 1.15, high * 1.15
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    if low == high:
        return [low]
    places = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], integer=whole).tick_values(low, high)
    slack = 1e-9 * (high - low)
    return [float(place) for place in places if low - slack <= place <= high + slack]


def _tick(value: float) -> str:
    return minus(f"{value:.6g}")


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1,) if last - first > 3 else (1, 2, 5)
    places = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [place for place in places if low <= place <= high]


def _scale(
    low: float, high: float, start: Number, end: Number, *, log: bool
) -> Callable[[Number], float]:
    def bend(value: Number) -> float:
        return math.log10(value) if log else float(value)

    width = bend(high) - bend(low) or 1.0
    return lambda value: start + (end - start) * (bend(value) - bend(low)) / width


def _frame(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    across: Callable[[Number], float],
    up: Callable[[Number], float],
    axes: Axes,
) -> list[str]:
    """Axes, ticks and labels of a chart."""
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for value in y_ticks:
        place = up(value)
        parts.append(f'<path class="rule" d="M{_LEFT} {place:.1f}H{right}"/>')
        parts.append(
            f'<text class="tick y" x="{_LEFT - 7}" y="{place + 4:.1f}">{_tick(value)}</text>'
        )
    for value in x_ticks:
        place = across(value)
        parts.append(f'<path class="axis" d="M{place:.1f} {bottom}v4"/>')
        parts.append(
            f'<text class="tick x" x="{place:.1f}" y="{bottom + 18}">{_tick(value)}</text>'
        )
    middle = (_LEFT + right) / 2
    height = (_TOP + bottom) / 2
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    parts.append(f'<text class="label" x="{middle}" y="{_HEIGHT - 8}">{escape(axes.x)}</text>')
    parts.append(
        f'<text class="label" x="13" y="{height}" transform="rotate(-90 13 {height})">'
        f"{escape(axes.y)}</text>"
    )
    return parts


def _curve(
    line: Line, across: Callable[[Number], float], up: Callable[[Number], float], log: bool
) -> list[str]:
    """A line with its band of spread and its markers, each with a tip."""
    points = [
        (number, float(x), float(y))
        for number, (x, y) in enumerate(zip(line.x, line.y, strict=True))
        if y is not None and _known(y, log)
    ]
    parts = []
    if line.spread is not None:
        around = [line.spread[number] or 0.0 for number, _, _ in points]
        banded = list(zip(points, around, strict=True))
        upper = [f"{across(x):.1f} {up(y + d):.1f}" for (_, x, y), d in banded]
        lower = [f"{across(x):.1f} {up(y - d):.1f}" for (_, x, y), d in banded]
        path = "L".join(upper + lower[::-1])
        parts.append(f'<path class="band s{line.style}" d="M{path}Z"/>')
    path = "L".join(f"{across(x):.1f} {up(y):.1f}" for _, x, y in points)
    parts.append(f'<path class="line s{line.style}" d="M{path}"/>')
    for number, x, y in points:
        big = number in line.marks
        if line.plain and not big:
            continue
        tip = escape(f"{line.label}: {minus(f'{y:.4g}')} at {x:.4g}")
        shape = _marker(line.style, across(x), up(y), 6.0 if big else 3.2)
        parts.append(f'<path class="mark s{line.style}" d="{shape}"><title>{tip}</title></path>')
    return parts


def _marker(style: int, x: Number, y: Number, r: Number) -> str:
    """Circle, square, triangle or diamond, so that curves differ by more than colour."""
    if style % 4 == 0:
        return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z"
    if style % 4 == 1:
        return f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}Z"
    if style % 4 == 2:
        return f"M{x:.1f} {y - 1.2 * r:.1f}l{1.2 * r:.1f} {2.2 * r:.1f}h{-2.4 * r:.1f}Z"
    d = round(1.3 * r, 1)
    return f"M{x:.1f} {y - d:.1f}l{d} {d}l{-d} {d}l{-d} {-d}Z"


def _legend(line: Line) -> str:
    swatch = f'<path class="line s{line.style}" d="M1 7H31"/>'
    if not line.plain or line.marks:
        swatch += f'<path class="mark s{line.style}" d="{_marker(line.style, 16, 7, 4)}"/>'
    return (
        f'<li><svg class="swatch" viewBox="0 0 32 14" aria-hidden="true">{swatch}</svg>'
        f"{escape(line.label)}</li>"
    )
