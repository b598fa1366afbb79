"""Sheet: a table of text cells, written as Markdown, LaTeX or CSV."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from r2no._repr import brief_repr
from r2no.checks import choice

FORMATS = ("md", "latex", "csv")
_LATEX = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"λ": r"$\lambda$"})


@dataclass(frozen=True)
class Cell:
    """A cell; ``mark`` (a dagger, a star) follows the text and is never bold."""

    text: str
    bold: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table; a header is (group, name), where neighbours of one group share its heading."""

    title: str
    header: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    __repr__ = brief_repr

    def render(self, form: str = "md") -> str:
        """The table as text in one of ``FORMATS``."""
        return _WRITERS[choice("format", form, FORMATS)](self)


def cells(*texts: object) -> tuple[Cell, ...]:
    """Cells without marks, of anything that can be printed."""
    return tuple(Cell(str(text)) for text in texts)


def _markdown(sheet: Sheet) -> str:
    names = [f"{group} {name}".strip() for group, name in sheet.header]
    lines = [f"**{sheet.title}**", "", _line(names), _line("---" for _ in names)]
    for row in sheet.rows:
        lines.append(_line((f"**{c.text}**" if c.bold else c.text) + c.mark for c in row))
    if sheet.notes:
        lines += ["", *(f"- {note}" for note in sheet.notes)]
    return "\n".join(lines) + "\n"


def _line(parts: Iterable[str]) -> str:
    return "| " + " | ".join(parts) + " |"


def _latex(sheet: Sheet) -> str:
    """The sheet as a LaTeX table, a rule between the blocks of its first column."""
    count = len(sheet.header)
    lines = [f"% {note}" for note in sheet.notes]
    lines += [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(sheet.title)}}}"]
    lines += [rf"\begin{{tabular}}{{@{{}}ll*{{{count - 2}}}{{c}}@{{}}}}", r"\toprule"]
    if any(group for group, _ in sheet.header):
        lines.append(" & ".join(_headings(sheet)) + r" \\")
    lines.append(" & ".join(_escaped(name) for _, name in sheet.header) + r" \\")
    for _, block in groupby(sheet.rows, key=lambda row: row[0].text):
        lines.append(r"\midrule")
        for number, row in enumerate(block):
            first = Cell("") if number else row[0]
            lines.append(" & ".join(_latex_cell(cell) for cell in (first, *row[1:])) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _headings(sheet: Sheet) -> Iterator[str]:
    for group, block in groupby(sheet.header, key=lambda item: item[0]):
        width = len(list(block))
        if group:
            yield rf"\multicolumn{{{width}}}{{c}}{{{_escaped(group)}}}"
        else:
            yield " & ".join([""] * width)


def _latex_cell(cell: Cell) -> str:
    marks = {"†": r"$^{\dagger}$", "★": r"$^{\star}$"}
    text = _escaped(cell.text)
    text = rf"\textbf{{{text}}}" if cell.bold else text
    return text + marks.get(cell.mark, _escaped(cell.mark))


def _escaped(text: str) -> str:
    return text.translate(_LATEX).replace("R2NO", r"R$^{2}$NO").replace("l*", r"$\ell^{\star}$")


def _csv(sheet: Sheet) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([f"{group} {name}".strip() for group, name in sheet.header])
    writer.writerows([cell.text for cell in row] for row in sheet.rows)
    return stream.getvalue()


_WRITERS: dict[str, Callable[[Sheet], str]] = {"md": _markdown, "latex": _latex, "csv": _csv}
