"""How a cell's weights are laid out: by group, and on demand by column, as labels say."""

from typing import Any

from r2no.ensemble import Columns
from r2no.ensemble.columns import BASE, PARTNER, REPAIR, group_of, repair_label
from r2no.report.wording import group_name, named

SHIFTED = "shifted ¼ wave"


def group_rows(columns: Columns) -> list[dict[str, Any]]:
    """Every group: its words, and the places of its columns and of their quadrature partners.

    A group ``replaces`` the source by as much as its weights say; repairs are the source, moved a
    little, so that large weights on them take nothing of it away.
    """
    rows = []
    for name, places in columns.groups().items():
        title, note = group_name(name)
        shifted = [place for place in places if columns.labels[place].startswith(PARTNER)]
        own = [place for place in places if place not in shifted]
        row = {"name": name, "title": title, "note": note, "own": own, "shifted": shifted}
        rows.append({**row, "replaces": name != REPAIR})
    return rows


def weight_tables(columns: Columns) -> list[dict[str, Any]]:
    """A table of places for each group: members by depths for repairs, a row per column else.

    A place that is None is an empty field.
    """
    tables = []
    for name in columns.groups():
        rows = _repair_rows(columns) if name == REPAIR else _rows(columns, name)
        heads = [f"depth {d}" for d in columns.depths] if name == REPAIR else ["weight", SHIFTED]
        if all(row["places"][-1] is None for row in rows):  # no partners
            heads = heads[:1]
            rows = [{**row, "places": row["places"][:1]} for row in rows]
        tables.append({"title": group_name(name)[0], "heads": heads, "rows": rows})
    return tables


def _repair_rows(columns: Columns) -> list[dict[str, Any]]:
    """A row per member, and one for its quadrature partners where it has some."""
    rows = []
    for member in range(columns.members):
        for before, words in (("", ""), (PARTNER, f", {SHIFTED}")):
            labels = [before + repair_label(member, depth) for depth in columns.depths]
            places = [columns.place(label) for label in labels]
            if any(place is not None for place in places):
                rows.append({"name": f"member {member + 1}{words}", "places": places})
    return rows


def _rows(columns: Columns, group: str) -> list[dict[str, Any]]:
    """A row per forecast: its column, and its partner's."""
    labels = [
        label
        for label in columns.labels
        if group_of(label) == group and not label.startswith(PARTNER)
    ]
    return [
        {"name": _column(label), "places": [columns.place(label), columns.place(PARTNER + label)]}
        for label in labels
    ]


def _column(label: str) -> str:
    """A column in words."""
    group, _, which = label.partition(":")
    if group == "recall":
        return "last frame" if which == "1" else named(label).removeprefix("the ")
    return "the source, taken away" if group == BASE else which or label
