"""The verdict as sentences: what to do, how sure that is, what an independent test says."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from r2no.report.data import Evaluation, Json, ReportData
from r2no.report.wording import counted, in_order, named


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
    return Headline("keep", f"Keep {named(data.verdict['best'])}", sentences)


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


def _rule(verdict: Json) -> str:
    """Why it is deployed, or not."""
    best = verdict["best"]
    ends = verdict["interval"] if best == "source" else verdict["interval_over_best"]
    if verdict["decision"] != "deploy":
        return (
            f"That is not enough. To be deployed, the squared error must be below {_whose(best)} "
            "by 1\u00a0% and by one standard error over the blocks. So the model answers "
            f"{'exactly ' if best == 'source' else ''}as {named(best)} does."
        )
    rule = f"Against {named(best)}, the squared error falls by more than 1\u00a0% and one "
    rule += "standard error over the blocks"
    if _finite(ends[0]) and ends[0] > 0:
        return f"{rule}, and even the lower end of the interval is a gain."
    return (
        f"{rule}, but the interval includes a loss: the blocks disagree. More fit data would "
        "settle it."
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
