"""What a report says about bands and alarm: gathered during the scoring pass, then drawn."""

from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from r2no.adaptation import AdaptedModel
from r2no.data.window import Window
from r2no.ensemble.bands import Bands
from r2no.errors import EmptySplitError
from r2no.metrics import BandScores
from r2no.report.charts import Axes, Line, line_chart
from r2no.report.data import pack, rounded, unpack
from r2no.report.figures import picture

_COVERAGES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
_SHOWN = 0.9
_ALARM_BINS = 10
#: Channels whose points can be chosen; each takes three charts.
_MOST_CHANNELS = 3


class BandWatch:
    """Scores of a model's bands, and how familiar its windows are, over a split."""

    def __init__(self, model: AdaptedModel, bands: Bands) -> None:
        self._model, self._measured = model, list(model.fields.measured)
        self._bands = bands
        self._coverages, widths = [], []
        for coverage in _COVERAGES:
            try:
                widths.append(model.half_widths(coverage)[0][..., self._measured])
            except EmptySplitError:  # too few blocks for this one and all wider ones
                break
            self._coverages.append(coverage)
        self._widths = torch.stack(widths)[:, None]

    def empty(self) -> dict[str, Any]:
        """Sums of no windows: scores of the bands, of bands as wide everywhere, and p-values."""
        scores, even = (BandScores(self._coverages) for _ in range(2))
        return {"scores": scores, "even": even, "alarms": torch.zeros(_ALARM_BINS)}

    def add(self, sums: dict[str, Any], window: Window, forecast: Tensor) -> None:
        """Score the bands around a batch of forecasts, on the CPU."""
        window, forecast = window.to(torch.device("cpu")), forecast.cpu()
        middle, target = forecast[..., self._measured], window.target[..., self._measured]
        mask = None if window.mask is None else window.mask[..., self._measured]
        even = self._widths.mean((2, 3, 4), keepdim=True).expand_as(self._widths)
        own = self._widths * self._bands.follow(middle)
        for scores, half in ((sums["scores"], own), (sums["even"], even)):
            scores.update(middle - half, middle + half, target, mask)
        p_values = self._model.familiar(window.history)
        bins = (p_values * _ALARM_BINS).ceil().long().clamp(1, _ALARM_BINS) - 1
        sums["alarms"] += torch.bincount(bins, minlength=_ALARM_BINS)

    def json(self, sums: dict[str, Any], kept: dict[str, Tensor]) -> dict[str, Any]:
        """All of it, JSON-able; ``kept`` are the fields of the example over measured channels."""
        found, even, alarms = sums["scores"].compute(), sums["even"].compute(), sums["alarms"]
        row = _shown(self._coverages)
        half = (self._widths[row] * self._bands.follow(kept["r2no"][None]))[0]
        series = {"target": kept["target"], "forecast": kept["r2no"], "half_width": half}
        fields = self._model.fields
        return {
            **found,
            "even": [each["interval_score"] for each in even["rows"]],
            "alarms": (alarms / alarms.sum()).tolist(),
            "shown": self._coverages[row],
            "channels": [fields.channels[channel] for channel in self._measured],
            "points": [
                {
                    "name": name,
                    "place": list(place),
                    "series": {key: rounded(_at(each, place)) for key, each in series.items()},
                }
                for name, place in _points(kept["target"], half).items()
            ],
            "half_width": pack(half[-1:, ..., 0].flip(1)) if half.ndim == 4 else None,
        }


def _at(values: Tensor, place: tuple[int, ...]) -> Tensor:
    """Values at a place of the grid, (channel, time)."""
    where: tuple[slice | int, ...] = (slice(None), *place)
    return values[where].T


def _points(target: Tensor, half: Tensor) -> dict[str, tuple[int, ...]]:
    """Places worth looking at by what they are; all channels count, each in its own unit."""
    grid = target.shape[1:-1]
    known = target.isfinite()
    mean = target.nan_to_num(0.0).sum(0) / known.sum(0).clamp_min(1)
    change = torch.where(known, target - mean, 0.0).square().sum(0)
    most = {"where the target changes most": change, "where the band is widest": half.mean(0)}
    found = {"at the middle of the grid": tuple(size // 2 for size in grid)}
    for name, values in most.items():
        unit = values.flatten(0, -2).mean(0).clamp_min(torch.finfo(values.dtype).tiny)
        place = np.unravel_index(int((values / unit).sum(-1).argmax()), grid)
        found[name] = tuple(int(part) for part in place)
    return found


def _shown(coverages: list[float]) -> int:
    """The place of the band that is drawn: 0.9, or the widest one below."""
    return max(n for n, coverage in enumerate(coverages) if coverage <= _SHOWN)


def charts(bands: dict[str, Any]) -> dict[str, Any]:
    """Reliability, coverage by lead time, a point over time, p-values, and half-widths as picture.

    Nothing without bands.
    """
    if not bands:
        return {}
    rows = bands["rows"]
    nominal, held = ([100 * row[name] for row in rows] for name in ("nominal", "coverage"))
    frames = range(1, len(bands["by_lead"]) + 1)
    shown = [row["nominal"] for row in rows].index(bands["shown"])
    by_lead = [100 * lead[shown] for lead in bands["by_lead"]]
    percent = f"{100 * bands['shown']:g} %"
    ends = range(_ALARM_BINS, 100 + _ALARM_BINS, _ALARM_BINS)
    return {
        "reliability": line_chart(
            [Line("promised", nominal, nominal, 5, plain=True), Line("held", nominal, held, 2)],
            Axes("Reliability of the bands", "promised coverage (%)", "values inside (%)"),
        ),
        "lead": line_chart(
            [Line(f"band of {percent}", frames, by_lead, 2)],
            Axes("Coverage by lead time", "frame", "values inside (%)", level=100 * bands["shown"]),
        ),
        "points": _point_charts(bands, percent),
        "alarms": line_chart(
            [Line("windows", ends, [100 * share for share in bands["alarms"]], 2)],
            Axes("How familiar the windows look", "p-value up to (%)", "windows (%)", level=10.0),
        ),
        "picture": _picture(bands["half_width"], [point["place"] for point in bands["points"]]),
    }


def _point_charts(bands: dict[str, Any], percent: str) -> list[dict[str, Any]]:
    """Forecast and band over time, by place and channel, with words for the choice."""
    found = []
    known = min(len(point["series"]["target"]) for point in bands["points"])
    for channel, of_channel in enumerate(bands["channels"][: min(known, _MOST_CHANNELS)]):
        for number, point in enumerate(bands["points"], 1):
            series = {name: each[channel] for name, each in point["series"].items()}
            frames = range(1, len(series["target"]) + 1)
            held = Line(
                f"R2NO, {percent}", frames, series["forecast"], 2, spread=series["half_width"]
            )
            name = f"{of_channel} {point['name']}"
            axes = Axes(f"Forecast with its band, {name}", "frame", of_channel)
            chart = line_chart([Line("target", frames, series["target"], 5), held], axes)
            found.append({"name": f"{name} ({number})", "chart": chart})
    return found


def _picture(packed: dict[str, Any] | None, places: list[list[int]]) -> Markup:
    """Half-widths of the last frame, from zero to the largest, and where the points lie."""
    if packed is None:
        return Markup()
    values = unpack(packed)[0]
    height, width = values.shape
    address = picture(values, "field", 0.0, float(np.nanmax(values)))
    size = max(height, width) / 400
    mark = Markup(
        '<g class="point" transform="translate({} {}) scale({:.3g})"><circle r="9"/>'
        '<text dy="0.36em">{}</text></g>'
    )
    marks = Markup().join(
        mark.format(column + 0.5, height - row - 0.5, size, number)
        for number, (row, column) in enumerate(places, 1)
    )
    return Markup(
        '<svg viewBox="0 0 {width} {height}" role="img" aria-label="Half-width of the band, last '
        'frame, with the points that can be chosen"><image href="{address}" width="{width}" '
        'height="{height}"/>{marks}</svg>'
    ).format(width=width, height=height, address=address, marks=marks)
