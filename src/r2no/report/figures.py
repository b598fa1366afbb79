"""The page's charts and static pictures, one function each, and the colours that they share."""

import base64
import io
import math
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.image import imsave

from r2no.report.charts import Axes, Bar, Line, bar_chart, interval_chart, line_chart
from r2no.report.data import Evaluation, ReportData, unpack, unpack_numbers
from r2no.report.wording import ROLES, common_unit, counted, group_name, named, worth_in_words

_FORECASTS = ("source", "r2no")

#: Share of the errors within the colour scale; the rest, often outliers of measurement, is clipped.
_COVERED = 0.995

_STEPS = 128

#: What is drawn with which table (signed: orange below zero, purple above); all three can be read
#: with colour-vision deficiencies.
TABLES = {"field": "viridis", "signed": "PuOr", "amount": "cividis"}

#: Of groups of columns, in order; those beyond share the last. Told apart with colour-vision
#: deficiencies (after Okabe and Ito).
_GROUPS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#56b4e9", "#d55e00", "#8a8a8a")

_STYLES = {"source": 0, "irno": 1, "r2no": 2, "target": 5}


def charts(data: ReportData) -> dict[str, Markup]:
    """Every chart by its name; empty where there is no evaluation."""
    evaluation = data.evaluation
    found = {
        "interval": interval(data.verdict),
        "depth": depth_bands(data.depth_change if evaluation is None else evaluation.depth_change),
        "helped": contributions(data.contributions),
        "budget": budget(data.budget),
        "learning": learning(data.learning),
        "spectra": Markup(),
        "relative": Markup(),
        "lead": Markup(),
    }
    if evaluation is not None:
        found["spectra"] = spectra(evaluation)
        found["relative"] = relative_spectra(evaluation)
        found["lead"] = lead_time(
            evaluation,
            data.fields["time_step"],
            data.fields.get("time_units", ""),
            common_unit(data.fields),
        )
    return found


def interval(verdict: dict[str, Any] | None) -> Markup:
    """The estimated gains over the source, and over the best of what needs no adaptation.

    Each with its interval; nothing if there is none.
    """
    if verdict is None:
        return Markup()
    found = [("source", verdict["gain"], verdict["interval"])]
    if verdict["best"] != "source":
        found.append((verdict["best"], verdict["gain_over_best"], verdict["interval_over_best"]))
    return Markup().join(_interval(name, (gain, *bounds)) for name, gain, bounds in found)


def _interval(name: str, ends: tuple[float | None, ...]) -> Markup:
    known = [100 * end for end in ends if end is not None and math.isfinite(end)]
    if len(known) < 3:
        return Markup()
    axes = Axes(
        f"Gain over {named(name)} with its 90 % interval",
        f"RMSE below that of {named(name)} (%)",
        "",
    )
    gain, low, high = known
    return interval_chart(gain, low, high, axes)


def contributions(parts: list[dict[str, Any]]) -> Markup:
    """By how much the held-out error rises when a group of columns is left out."""
    bars = [
        Bar(group_name(part["group"])[0], 100 * part["worth"], worth_in_words(part["worth"]))
        for part in parts
    ]
    axes = Axes(
        "What helped: rise of the held-out RMSE without each group of columns",
        "rise of the held-out RMSE without it (%)",
        "",
    )
    return bar_chart(bars, axes)


def depth_bands(change: list[list[float | None]]) -> Markup:
    """The paper's first figure: change of fRMSE by depth, each band's minimum marked (M10).

    Nothing without members, where there are no depths.
    """
    lines = []
    bands = len(change[0]) if change else 0
    for band in range(bands):
        values = [row[band] for row in change]
        known = [(value, depth) for depth, value in enumerate(values) if value is not None]
        if not known:
            continue
        end = {0: " (lowest wavenumbers)", bands - 1: " (highest)"}.get(band, "")
        label = f"band {band + 1}{end}"
        best = (min(known)[1],)
        lines.append(Line(label, range(len(values)), values, band, marks=best, plain=True))
    axes = Axes(
        "Change of the spectral error by depth of the repair loop, one curve per band",
        "depth of the repair loop",
        "change of fRMSE (%)",
        whole=True,
        level=0.0,
    )
    return line_chart(lines, axes)


def spectra(evaluation: Evaluation) -> Markup:
    """Root mean square error by radius, beside the size of the measured field itself."""
    found = evaluation.spectra
    lines = [
        Line(ROLES[role], found["radius"], found[role], _STYLES[role]) for role in evaluation.roles
    ]
    measured = Line("measured field", found["radius"], found["target"], 5, plain=True)
    axes = Axes(
        "Error spectra: root mean square error by radius of the wavenumber",
        "radius (1 = Nyquist)",
        "RMS error by wavenumber",
        log=True,
    )
    return line_chart([*lines, measured], axes)


def relative_spectra(evaluation: Evaluation) -> Markup:
    """The same against the source, where small changes can be seen."""
    found = evaluation.spectra
    lines = [
        Line(
            ROLES[role],
            found["radius"],
            [
                None if after is None or not before else 100 * (after / before - 1)
                for after, before in zip(found[role], found["source"], strict=True)
            ],
            _STYLES[role],
        )
        for role in evaluation.roles
        if role != "source"
    ]
    axes = Axes(
        "Change of the error against the source by radius of the wavenumber",
        "radius (1 = Nyquist)",
        "change of the error (%)",
        level=0.0,
    )
    return line_chart(lines, axes)


def lead_time(evaluation: Evaluation, time_step: float, units: str, rmse_units: str) -> Markup:
    """RMSE by forecast frame; ``units`` are those of time."""
    lines = [
        Line(
            ROLES[role],
            [round((frame + 1) * time_step, 9) for frame in range(len(values))],
            values,
            _STYLES[role],
        )
        for role, values in evaluation.lead.items()
    ]
    label = "lead time (frames)" if time_step == 1 and not units else "lead time"
    label = f"{label} ({units})" if units else label
    rmse = f"RMSE ({rmse_units})" if rmse_units else "RMSE"
    return line_chart(lines, Axes("RMSE by lead time", label, rmse))


def budget(points: list[dict[str, Any]]) -> Markup:
    """Held-out error against evaluations, a curve for each number of members; none without."""
    lines = []
    if not any(point["evaluations"] for point in points):
        return Markup()
    for style, members in enumerate(sorted({point["members"] for point in points})):
        mine = [point for point in points if point["members"] == members]
        lines.append(
            Line(
                counted(members, "member", "members") if members else "no repair module",
                [point["evaluations"] for point in mine],
                [_hundred(point["error"]) for point in mine],
                style % 6,
            )
        )
    axes = Axes(
        "Held-out error against evaluations of the repair module",
        "evaluations of the repair module",
        "RMSE (% of the source's)",
        whole=True,
        level=100.0,
    )
    return line_chart(lines, axes)


def learning(points: list[dict[str, Any]]) -> Markup:
    """Held-out error against the number of windows fitted on."""
    line = Line(
        "mean of the draws, one standard deviation around it",
        [point["windows"] for point in points],
        [_hundred(point["error"]) for point in points],
        2,
        spread=[_hundred(point["spread"]) for point in points],
    )
    axes = Axes(
        "Held-out error against the number of windows fitted on",
        "windows fitted on",
        "RMSE (% of the source's)",
        whole=True,
        level=100.0,
    )
    return line_chart([line], axes)


def _hundred(share: float | None) -> float | None:
    return None if share is None else 100 * share


def retention_pictures(data: ReportData) -> list[dict[str, Any]]:
    """The map of each channel as a picture, for pages without script."""
    found = data.retention
    plane = unpack_numbers(found["plane"])
    reach = gain_reach(found)
    return [
        {
            "channel": name,
            "gain": picture(_floats(gain)[plane], "signed", -reach, reach),
            "groups": group_picture(_floats(leading)[plane]),
        }
        for name, gain, leading in zip(
            found["channels"], found["gain"][0], found["leading"][0], strict=True
        )
    ]


def group_legend(data: ReportData) -> list[dict[str, Any]]:
    """Colour and words of every group of columns, as the map shows them."""
    return [
        {**{key: group[key] for key in ("title", "note")}, "colour": group_colour(number)}
        for number, group in enumerate(data.retention["groups"])
    ]


def gain_reach(found: dict[str, Any]) -> float:
    """Half-width of the colour scale of the gains: what covers 98 % of the cells."""
    values = np.abs(_floats([v for lead in found["gain"] for row in lead for v in row]))
    known = values[np.isfinite(values)]
    return max(0.02, float(f"{np.quantile(known, 0.98):.2g}")) if known.size else 1.0


def example_pictures(evaluation: Evaluation) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """First channel, last frame as pictures by name; and the scales of every channel."""
    scales = []
    for channel in evaluation.example["channels"]:
        fields = {name: unpack(packed) for name, packed in channel["fields"].items()}
        low = min(float(np.nanmin(values, initial=np.inf)) for values in fields.values())
        high = max(float(np.nanmax(values, initial=-np.inf)) for values in fields.values())
        errors = np.stack([np.abs(fields[name] - fields["target"]) for name in _FORECASTS])
        known = errors[np.isfinite(errors)]
        reach = (float(np.quantile(known, _COVERED)) if known.size else 0.0) or 1.0
        scales.append({"low": low, "high": high, "reach": reach})
    first, scale = evaluation.example["channels"][0]["fields"], scales[0]
    last = {name: unpack(packed)[-1] for name, packed in first.items()}
    shown: dict[str, Any] = {}
    for name in ("target", *_FORECASTS):
        shown[name] = picture(last[name], "field", scale["low"], scale["high"])
        if name != "target":
            error = last[name] - last["target"]
            shown[f"{name}_error"] = picture(error, "signed", -scale["reach"], scale["reach"])
    return shown, scales


def _floats(values: list[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values])


def group_colour(number: int) -> str:
    """Colour of a group of columns by its number."""
    return _GROUPS[min(number, len(_GROUPS) - 1)]


def group_picture(numbers: np.ndarray) -> str:
    """As :func:`picture`, of numbers of groups."""
    finite = np.isfinite(numbers)
    colours = np.array([list(bytes.fromhex(colour[1:])) for colour in _GROUPS], dtype=np.uint8)
    codes = np.clip(np.where(finite, numbers, 0).astype(int), 0, len(_GROUPS) - 1)
    return _png(np.dstack([colours[codes], np.where(finite, 255, 0).astype(np.uint8)]))


def table(name: str) -> np.ndarray:
    """128 colours as bytes, (step, RGB)."""
    return colormaps[TABLES[name]](np.linspace(0, 1, _STEPS), bytes=True)[:, :3]


def table_text(name: str) -> str:
    """The table as hexadecimal digits, six a colour."""
    return table(name).tobytes().hex()


def picture(values: np.ndarray, name: str, low: float, high: float) -> str:
    """A PNG as a data address, one pixel a value; missing values are transparent."""
    finite = np.isfinite(values)
    place = (np.where(finite, values, low) - low) / ((high - low) or 1.0)
    codes = np.clip((place * _STEPS).astype(int), 0, _STEPS - 1)
    alpha = np.where(finite, 255, 0).astype(np.uint8)
    return _png(np.dstack([table(name)[codes], alpha]))


def _png(pixels: np.ndarray) -> str:
    """Pixels as a data address."""
    buffer = io.BytesIO()
    imsave(buffer, pixels, format="png", metadata={"Software": "r2no"})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def ramp(name: str) -> str:
    """The table as a PNG one pixel high, for a colour bar."""
    return picture(np.linspace(0, 1, _STEPS)[None], name, 0.0, 1.0)
