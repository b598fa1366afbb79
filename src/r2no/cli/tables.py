"""Tables that several commands print."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from r2no.report.wording import contribution_rows


def what_helped(contributions: Iterable[Mapping[str, Any]]) -> Table:
    """What each group of columns is worth, the most useful first."""
    table = Table(
        title="What helped? Held-out RMSE, 100 % is the source's",
        padding=(0, 0, 0, 1),
        title_justify="left",
    )
    table.add_column("group", no_wrap=True)
    for name in ("worth", "without it", "it alone", "all groups"):
        table.add_column(name, justify="left" if name == "worth" else "right")
    for row in contribution_rows(contributions):
        words = (row[key] for key in ("group", "worth", "without", "alone", "together"))
        table.add_row(*(text.replace("\u00a0", " ") for text in words))
    return table
