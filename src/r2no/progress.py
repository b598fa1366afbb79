"""Progress of long steps: a bar on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from r2no import ranks
from r2no._types import Number

_PLAIN_SECONDS = 15.0


@runtime_checkable
class Step(Protocol):
    """A step while it runs: whoever does the work says how far it got."""

    def advance(self, amount: Number = 1, note: str = "") -> None:
        """Report progress and, if given, a short note such as the current loss."""
        ...


class Reporter:
    """Shows steps on a console; with ``quiet=True``, or on ranks other than 0, shows nothing."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self.console = console or Console(file=sys.stderr)
        self.quiet = quiet or not ranks.is_main()
        self._lock = threading.Lock()
        self._bars: Progress | None = None
        self._running = 0

    def __repr__(self) -> str:
        return f"Reporter({'quiet' if self.quiet else 'shows steps'})"

    @classmethod
    def default(cls) -> "Reporter":
        """Shows steps where someone watches: on a terminal or in a notebook."""
        console = Console(file=sys.stderr)
        return cls(console, quiet=not (console.is_terminal or console.is_jupyter))

    def say(self, text: str) -> None:
        """Print one line."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str, total: Number) -> Iterator[Step]:
        """Show a step of ``total`` units while the block runs."""
        if self.quiet:
            yield _Silent()
        elif self.console.is_terminal:
            with self._shared_bars() as progress:
                yield _Bar(progress, title, total)
        else:
            plain = _Plain(self, title, total)
            yield plain
            plain.finish()

    @contextmanager
    def _shared_bars(self) -> Iterator[Progress]:
        """One live display for all steps that run at the same time."""
        with self._lock:
            if self._bars is None:
                self._bars = _bars(self.console)
                self._bars.start()
            self._running += 1
            bars = self._bars
        try:
            yield bars
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    bars.stop()
                    self._bars = None


class _Silent:
    """A step that nobody watches."""

    def advance(self, amount: Number = 1, note: str = "") -> None:
        return


#: Shows nothing; what library functions report to unless they are given another.
SILENT = Reporter(quiet=True)


class _Bar:
    """A step as one bar of the live display."""

    def __init__(self, progress: Progress, title: str, total: Number) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=total, note="")

    def advance(self, amount: Number = 1, note: str = "") -> None:
        self._progress.advance(self._task, amount)
        if note:
            self._progress.update(self._task, note=note)


class _Plain:
    """A line at the start, every few seconds and at the end."""

    def __init__(self, reporter: Reporter, title: str, total: Number) -> None:
        self._reporter, self._title, self._total = reporter, title, total
        self._done, self._note = 0.0, ""
        self._start = self._last = time.monotonic()

    def advance(self, amount: Number = 1, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        now = time.monotonic()
        if now - self._last >= _PLAIN_SECONDS:
            self._last = now
            share = f"{100 * self._done / self._total:.0f} %"
            counted = f"{self._done:g}/{self._total:g}"
            self._line(counted if float(self._done).is_integer() else share)

    def finish(self) -> None:
        self._line(f"done in {time.monotonic() - self._start:.1f} s")

    def _line(self, state: str) -> None:
        note = f", {self._note}" if self._note else ""
        self._reporter.say(f"{self._title}: {state}{note}")


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
