"""The report's words: names of readouts, metrics and groups of columns."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from r2no._types import Number

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
    if forecast in ("persistence", "recall:1"):
        return "persistence"
    group, _, which = forecast.partition(":")
    if group == "recall":
        return f"the last frame but {int(which) - 1}"
    known = {"mean": "mean field", "pretrained": "pretrained operator"}
    return f"the {known.get(forecast, forecast)}"


def counted(number: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else many}"
