import io

from rich.console import Console

from r2no.progress import Reporter


def test_reporter_says_brackets_and_long_lines_as_they_are() -> None:
    """Units such as [m/s] are no markup; a path must stay in one piece to be copied."""
    stream = io.StringIO()
    text = "channels u [m/s] " + "x" * 200
    Reporter(Console(file=stream, width=80)).say(text)
    assert stream.getvalue() == text + "\n"
