import io

import pytest
from rich.console import Console

from r2no import progress
from r2no.progress import Reporter


def test_reporter_says_brackets_and_long_lines_as_they_are() -> None:
    """Units such as [m/s] are no markup; a path must stay in one piece to be copied."""
    stream = io.StringIO()
    text = "channels u [m/s] " + "x" * 200
    Reporter(Console(file=stream, width=80)).say(text)
    assert stream.getvalue() == text + "\n"


def test_parts_of_a_whole_are_said_in_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", 0.0)
    written = io.StringIO()
    with progress.Reporter(Console(file=written)).step("solving", 1.0) as step:
        step.advance(0.375)
    with progress.Reporter(Console(file=written)).step("reading", 8) as step:
        step.advance(3)
    assert written.getvalue().splitlines()[::2] == ["solving: 38 %", "reading: 3/8"]
