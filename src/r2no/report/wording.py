"""The report's words: names of readouts, metrics and groups of columns; the verdict."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from r2no._types import Number
from r2no.ensemble.verdict import said
from r2no.report.data import Evaluation, Json, ReportData

#: Names and explanations of forecasts, in the order of the story: what needs no adaptation, what
#: is there at once, then repair.
_READOUTS = {
    "persistence": ("Persistence", "the last measured frame, repeated"),
    "mean": ("Mean field", "the mean of the train split, whatever the history"),
    "pretrained": ("Pretrained operator", "trained on simulation only"),
    "source": ("Source", "the frozen operator that is adapted"),
    "r2no_m0": ("R2NO, no module", "weights by Fourier cell of what costs nothing; no training"),
    "irno_final": ("IRNO, last depth", "repair loop of one member, run to its end"),
    "irno_selected": ("IRNO, best depth", "one member, the depth of lowest error on the fit split"),
    "mean_final": ("Mean of members", "last depth of every member, averaged"),
    "mean_all": ("Mean of iterates", "all depths of all members, averaged"),
    "global": ("One combination", "repairs only, one weight vector for the whole spectrum"),
    "r2no_published": ("R2NO as published", "repairs only, finest cells, one penalty"),
}

#: Groups of columns: name and what they are.
_GROUPS = {
    "repair": ("Repair", "iterates of the repair modules"),
    "recall": ("Recall", "last frames of the history"),
    "mean": ("Mean field", "mean of the train split"),
    "instant": ("Instant forecast", "what the columns that cost nothing give, where loops start"),
    "pretrained": ("Pretrained operator", "trained on simulation only"),
    "base": ("Damping", "the source itself, made smaller"),
}

#: Columns of the score table: key, heading, what it is.
METRICS = (
    ("rmse", "RMSE", "root mean square error, physical units"),
    ("rel_l2", "Relative L2", "error norm over target norm, mean of the windows"),
    ("r2", "R²", "explained variance; higher is better"),
    ("mae", "MAE", "mean absolute error"),
    ("ke_error", "KE error", "error of the fluctuating kinetic energy"),
    ("frmse_full_low", "fRMSE low", "error of the low third of wavenumbers"),
    ("frmse_full_mid", "fRMSE mid", "error of the middle third"),
    ("frmse_full_high", "fRMSE high", "error of the high third"),
)

#: Metrics in the units of the fields.
_PHYSICAL = ("rmse", "mae", "frmse_full_low", "frmse_full_mid", "frmse_full_high")

ROLES = {"source": "Source", "irno": "IRNO, best depth", "r2no": "R2NO"}


def common_unit(fields: dict[str, Any]) -> str:
    """The unit of the measured channels, if it is one for all; else nothing."""
    units = fields.get("units") or ()
    found = {units[channel] if channel < len(units) else "" for channel in fields["measured"]}
    return found.pop() if len(found) == 1 else ""


def mixed_units(fields: dict[str, Any]) -> str:
    """What errors over channels of several units mean; nothing where they share one."""
    units = fields.get("units") or ()
    found = [units[channel] for channel in fields["measured"] if channel < len(units)]
    several = list(dict.fromkeys(unit for unit in found if unit))
    if len(several) < 2:
        return ""
    return (
        f"Errors are taken over channels in {' and '.join(several)} together, as the verdict is, "
        "so those of large numbers weigh most; see Edges and interior for each channel."
    )


def metrics_of(fields: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Columns of the score table, with the unit of those that have one."""
    unit = common_unit(fields)
    return [
        (key, f"{title} ({unit})" if unit and key in _PHYSICAL else title, words)
        for key, title, words in METRICS
    ]


def readout_name(name: str) -> tuple[str, str]:
    """Heading and explanation of a readout; an unknown one keeps its name."""
    if name in _READOUTS:
        return _READOUTS[name]
    members = re.fullmatch(r"r2no_m(\d+)", name)
    if members:
        number = int(members[1])
        words = "weights by Fourier cell of repairs and what costs nothing"
        return f"R2NO, {counted(number, 'member', 'members')}", words
    return name, "a further forecast, as it is"


def in_order(names: Iterable[str]) -> list[str]:
    """Readouts as the story goes: no adaptation, at once, repair; further ones before the source.

    Example:
        >>> in_order(["r2no_m3", "irno_final", "r2no_m0", "source", "cno", "r2no_m1"])
        ['cno', 'source', 'r2no_m0', 'irno_final', 'r2no_m1', 'r2no_m3']
    """
    known = list(_READOUTS)

    def place(name: str) -> tuple[Number, int]:
        members = re.fullmatch(r"r2no_m(\d+)", name)
        if name in known:
            return known.index(name), 0
        return (len(known), int(members[1])) if members else (known.index("source") - 0.5, 0)

    return sorted(names, key=place)


def group_name(name: str) -> tuple[str, str]:
    """Heading and explanation of a group of columns; an unknown one keeps its name."""
    return _GROUPS.get(name, (name, "a further forecast"))


def worth_in_words(worth: float) -> str:
    r"""What leaving a group out would do, as in "31 % worse without it".

    Example:
        >>> worth_in_words(0.312), worth_in_words(0.0001), worth_in_words(-0.02)
        ('31\xa0% worse without it', 'no different without it', '2.0\xa0% better without it')
    """
    if abs(worth) < 5e-4:
        return "no different without it"
    digits = 0 if abs(worth) >= 0.1 else 1
    side = "worse" if worth > 0 else "better"
    return f"{abs(100 * worth):.{digits}f}\u00a0% {side} without it"


def contribution_rows(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What each group is worth, in words, for tables on pages and consoles."""
    rows = []
    for part in parts:
        title, note = group_name(part["group"])
        rows.append(
            {
                "group": title,
                "note": note,
                "columns": str(part["columns"]),
                "worth": worth_in_words(part["worth"]),
                "without": f"{100 * part['without']:.1f}\u00a0%",
                "alone": f"{100 * part['alone']:.1f}\u00a0%",
                "together": f"{100 * part['together']:.1f}\u00a0%",
            }
        )
    return rows


def named(forecast: str) -> str:
    """A forecast that needs no adaptation, within a sentence.

    Example:
        >>> named("recall:1"), named("recall:3"), named("mean"), named("cno")
        ('persistence', 'the last frame but 2', 'the mean field', 'the cno')
    """
    return "the pretrained operator" if forecast == "pretrained" else said(forecast)


def counted(number: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else many}"


class Headline(NamedTuple):
    """The verdict in words: kind ("deploy", "keep" or "none"), one line, and sentences."""

    kind: str
    line: str
    sentences: list[str]


def headline(data: ReportData) -> Headline:
    """What to do, how sure that is, and what an independent test says."""
    sentences = _held_out(data)
    if data.evaluation is not None:
        sentences.append(_tested(data.evaluation))
    if data.verdict is None:
        return Headline("none", "No verdict: nothing was held out", sentences)
    if data.verdict["decision"] == "deploy":
        return Headline("deploy", "Deploy the adapted model", sentences)
    return Headline("keep", f"Keep {named(data.verdict['kept'])}", sentences)


def _held_out(data: ReportData) -> list[str]:
    """What held-out blocks say about the gain, and how sure that is."""
    verdict = data.verdict
    if verdict is None:
        return [
            "The weights are those of a published fit, which chooses its penalty but holds no "
            "blocks back to judge the gain. Judge it by a test split."
        ]
    words = f"On {counted(verdict['blocks'], 'block', 'blocks')} of the fit data held out in turn "
    words += f"({_amount(data)}), the RMSE is {_change(verdict['gain'])} the source's"
    sentences = [f"{words}{_range(verdict['interval'])}.", *_over_best(data, verdict)]
    if verdict["within"]:
        sentences.append(
            "All blocks are of one recording, so this holds within this recording; another may "
            "differ."
        )
    return [*sentences, _rule(verdict)]


def _over_best(data: ReportData, verdict: Json) -> list[str]:
    """The gain over the best of what needs no adaptation, where that is not the source."""
    if verdict["best"] != "source":
        gain, bounds = verdict["gain_over_best"], verdict["interval_over_best"]
        return [
            f"The best forecast that needs no adaptation is {named(verdict['best'])}; the RMSE is "
            f"{_change(gain)} {_whose(verdict['best'])}{_range(bounds)}."
        ]
    others = [named(name) for name in data.fit["rivals"]]
    if not others:
        return []
    return [f"The source is the best forecast that needs no adaptation, before {_or(others)}."]


_UNSURE = ": recordings are too few to tell whether another forecast is better on further ones."


def _rule(verdict: Json) -> str:
    """Why it is deployed, or not."""
    best, kept = verdict["best"], verdict["kept"]
    ends = verdict["interval"] if best == "source" else verdict["interval_over_best"]
    if verdict["decision"] != "deploy":
        return (
            f"That is not enough. To be deployed, the squared error must be below {_whose(best)} "
            "by 1\u00a0%, and the lower 95\u00a0% bound of the mean over the blocks must be a "
            "gain. So the model answers "
            f"{'exactly ' if kept == 'source' else ''}as {named(kept)} does"
            f"{'.' if kept == best else _UNSURE}"
        )
    rule = f"Against {named(best)}, the squared error falls by more than 1\u00a0%, and the lower "
    rule += "95\u00a0% bound of the mean over the blocks is a gain"
    if _finite(ends[0]) and ends[0] > 0:
        return f"{rule}; on new blocks, even the lower end of the interval is a gain."
    return (
        f"{rule}; on as many new blocks, the interval includes a loss: the blocks differ. More fit "
        "data would settle it."
    )


def _whose(forecast: str) -> str:
    """The possessive of :func:`named`."""
    name = named(forecast)
    return f"that of {name}" if name.endswith("s") else f"{name}'s"


def _or(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _range(interval: Sequence[float]) -> str:
    """The interval of a gain in words that need no sign."""
    low, high = interval
    if not (_finite(low) and _finite(high)):
        return "; there are too few blocks to give an interval"
    ends = [f"{abs(100 * end):.1f}\u00a0%" for end in (low, high)]
    if low >= 0:
        return f" (90\u00a0% interval: {ends[0]} to {ends[1]} below)"
    if high <= 0:
        return f" (90\u00a0% interval: {ends[1]} to {ends[0]} above)"
    return f" (90\u00a0% interval: {ends[0]} above to {ends[1]} below)"


def _amount(data: ReportData) -> str:
    """How much was held out, with the trajectories where the audit knows them."""
    words = f"{data.fit['held_out_windows']} of {data.fit['windows']} windows"
    for row in data.audit:
        if row["split"] == "fit" and row["trajectories"] is not None:
            return f"{words}, {counted(row['trajectories'], 'trajectory', 'trajectories')}"
    return words


def _tested(evaluation: Evaluation) -> str:
    """What the scores of a split say, against the source and the best that needs no adaptation."""
    source = evaluation.scores[evaluation.roles["source"]]["rmse"]
    adapted = evaluation.scores[evaluation.roles["r2no"]]["rmse"]
    where = (
        f"On the {evaluation.split} split ({evaluation.windows} windows of "
        f"{counted(evaluation.trajectories, 'trajectory', 'trajectories')})"
    )
    if source is None or adapted is None or source <= 0:
        return f"{where} the RMSE could not be compared."
    change = _change(1 - adapted / source)
    words = f"{where} the RMSE is {change} the source's: {source:.4g} became {adapted:.4g}."
    rows = {name: row["rmse"] for name, row in evaluation.scores.items() if _unadapted(name)}
    others = {name: rmse for name, rmse in rows.items() if rmse is not None and rmse < source}
    if not others:
        return words
    best = min(others, key=lambda name: others[name])
    over = _change(1 - adapted / others[best])
    return f"{words} It is {over} {_whose(best)}, {others[best]:.4g}."


def _unadapted(name: str) -> bool:
    """Whether a readout is a forecast that needs no adaptation, other than the source."""
    return in_order([name, "source"])[-1] == "source" and name != "source"


def _finite(value: Any) -> bool:
    return value is not None and abs(value) != float("inf") and value == value


def _change(gain: float | None) -> str:
    if gain is None or not _finite(gain):
        return "not comparable with"
    if abs(gain) < 5e-4:
        return "the same as"
    return f"{abs(100 * gain):.1f}\u00a0% {'below' if gain > 0 else 'above'}"
