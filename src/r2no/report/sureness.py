"""What a report says about bands and alarm: gathered during the scoring pass, then drawn."""

from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from r2no.adaptation import AdaptedModel
from r2no.data.window import Window
from r2no.errors import EmptySplitError
from r2no.metrics import BandScores
from r2no.report.charts import Axes, Line, line_chart
from r2no.report.figures import picture
from r2no.report.packing import pack, rounded, unpack

_COVERAGES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
_SHOWN = 0.9
_ALARM_BINS = 10


class BandWatch:
    """Scores of a model's bands, and how familiar its windows are, over a split."""

    def __init__(self, model: AdaptedModel) -> None:
        self._model, self._measured = model, list(model.fields.measured)
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
        for scores, half in ((sums["scores"], self._widths), (sums["even"], even)):
            scores.update(middle - half, middle + half, target, mask)
        p_values = self._model.familiar(window.history)
        bins = (p_values * _ALARM_BINS).ceil().long().clamp(1, _ALARM_BINS) - 1
        sums["alarms"] += torch.bincount(bins, minlength=_ALARM_BINS)

    def json(self, sums: dict[str, Any], kept: dict[str, Tensor]) -> dict[str, Any]:
        """All of it, JSON-able; ``kept`` are the fields of the example over measured channels."""
        found, even, alarms = sums["scores"].compute(), sums["even"].compute(), sums["alarms"]
        row = _shown(self._coverages)
        half = self._widths[row, 0]
        point = tuple(size // 2 for size in half.shape[1:-1])
        place: tuple[slice | int, ...] = (slice(None), *point, 0)
        series = {"target": kept["target"], "forecast": kept["r2no"], "half_width": half}
        fields = self._model.fields
        return {
            **found,
            "even": [each["interval_score"] for each in even["rows"]],
            "alarms": (alarms / alarms.sum()).tolist(),
            "shown": self._coverages[row],
            "channels": [fields.channels[channel] for channel in self._measured],
            "point": list(point),
            "series": {name: rounded(values[place]) for name, values in series.items()},
            "half_width": pack(half[-1:, ..., 0].flip(1)) if half.ndim == 4 else None,
        }


def _shown(coverages: list[float]) -> int:
    """The place of the band that is drawn: 0.9, or the widest one below."""
    return max(n for n, coverage in enumerate(coverages) if coverage <= _SHOWN)


def charts(bands: dict[str, Any]) -> dict[str, Any]:
    """Reliability, coverage by lead time, a point over time, p-values, and half-widths as picture.

    Nothing without bands.
    """
    if not bands:
        return {}
    rows, series = bands["rows"], bands["series"]
    nominal, held = ([100 * row[name] for row in rows] for name in ("nominal", "coverage"))
    frames = range(1, len(series["target"]) + 1)
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
        "series": line_chart(
            [
                Line("target", frames, series["target"], 5),
                Line(
                    f"R2NO, {percent}", frames, series["forecast"], 2, spread=series["half_width"]
                ),
            ],
            Axes("Forecast with its band at the middle of the grid", "frame", bands["channels"][0]),
        ),
        "alarms": line_chart(
            [Line("windows", ends, [100 * share for share in bands["alarms"]], 2)],
            Axes("How familiar the windows look", "p-value up to (%)", "windows (%)", level=10.0),
        ),
        "picture": _picture(bands["half_width"]),
    }


def _picture(packed: dict[str, Any] | None) -> Markup:
    """Half-widths of the last frame, from zero to the largest."""
    if packed is None:
        return Markup()
    values = unpack(packed)[0]
    address = picture(values, "field", 0.0, float(np.nanmax(values)))
    return Markup('<img src="{}" alt="Half-width of the band, last frame">').format(address)
