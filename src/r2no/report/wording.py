"""The report's words: names of readouts and metrics, and the verdict as sentences."""

import re
from typing import Any, NamedTuple

from r2no.report.data import Evaluation, ReportData
from r2no.report.packing import minus

_READOUTS = {
    "persistence": ("Persistence", "the last measured frame, repeated"),
    "pretrained": ("Pretrained operator", "trained on simulation only"),
    "source": ("Source", "the frozen operator that is adapted"),
    "irno_final": ("IRNO, last depth", "repair loop of one member, run to its end"),
    "irno_selected": ("IRNO, best depth", "one member, the depth of lowest error on the fit split"),
    "mean_final": ("Mean of members", "last depth of every member, averaged"),
    "mean_all": ("Mean of iterates", "all depths of all members, averaged"),
    "global": ("One combination", "one weight vector for the whole spectrum"),
    "r2no_published": ("R2NO, published cells", "finest cells, one penalty, no shrinkage"),
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


def metrics_of(fields: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Columns of the score table, with the unit of those that have one."""
    unit = common_unit(fields)
    return [
        (key, f"{title} ({unit})" if unit and key in _PHYSICAL else title, words)
        for key, title, words in METRICS
    ]


def readout_name(name: str) -> tuple[str, str]:
    """Heading and explanation of a readout; an unknown one keeps its name."""
    members = re.fullmatch(r"r2no_m(\d+)", name)
    if members:
        number = int(members[1])
        return f"R2NO, {_count(number, 'member', 'members')}", "weights by Fourier cell"
    return _READOUTS.get(name, (name, ""))


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
    return Headline("keep", "Keep the source", sentences)


def _held_out(data: ReportData) -> list[str]:
    """What held-out blocks say about the gain, and how sure that is."""
    verdict = data.verdict
    if verdict is None:
        return [
            "The weights are those of a published fit, which chooses its penalty but holds no "
            "blocks back to judge the gain. Judge it by a test split."
        ]
    low, high = verdict["interval"]
    blocks = verdict["blocks"]
    words = f"On {_count(blocks, 'block', 'blocks')} of the fit data held out in turn "
    words += f"({_amount(data)}), the RMSE is {_change(verdict['gain'])} "
    words += "the source's"
    if _finite(low) and _finite(high):
        words += f"; the 90\u00a0% interval of the gain is {_percent(low)} to {_percent(high)}."
    else:
        words += "; too few blocks to give an interval."
    if verdict["decision"] == "deploy":
        sure = "Even the lower end of the interval is a gain."
        unsure = (
            "The gain is larger than half its scatter over the blocks, but the interval includes a "
            "loss: the blocks disagree. More fit data would settle it."
        )
        return [words, sure if low > 0 else unsure]
    return [
        words,
        "That is not enough (1\u00a0% of the squared error and half its scatter), so all weights "
        "are zero: the model answers exactly as its source does.",
    ]


def _amount(data: ReportData) -> str:
    """How much was held out, with the trajectories where the audit knows them."""
    words = f"{data.fit['held_out_windows']} of {data.fit['windows']} windows"
    for row in data.audit:
        if row["split"] == "fit" and row["trajectories"] is not None:
            return f"{words}, {_count(row['trajectories'], 'trajectory', 'trajectories')}"
    return words


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _tested(evaluation: Evaluation) -> str:
    source = evaluation.scores[evaluation.roles["source"]]["rmse"]
    adapted = evaluation.scores[evaluation.roles["r2no"]]["rmse"]
    where = (
        f"On the {evaluation.split} split ({evaluation.windows} windows of "
        f"{_count(evaluation.trajectories, 'trajectory', 'trajectories')})"
    )
    if source is None or adapted is None or source <= 0:
        return f"{where} the RMSE could not be compared."
    change = _change(1 - adapted / source)
    return f"{where} the RMSE is {change} the source's: {source:.4g} became {adapted:.4g}."


def _finite(value: Any) -> bool:
    return value is not None and abs(value) != float("inf") and value == value


def _percent(share: float) -> str:
    return minus(f"{100 * share:+.1f}\u00a0%")


def _change(gain: float | None) -> str:
    if gain is None or not _finite(gain):
        return "not comparable with"
    if abs(gain) < 5e-4:
        return "the same as"
    return f"{abs(100 * gain):.1f}\u00a0% {'below' if gain > 0 else 'above'}"
