"""``r2no``: the parser, and how errors are shown."""

import io
import multiprocessing
import signal
import sys

from rich.console import Console
from rich.text import Text

from r2no import ranks
from r2no.cli import artifact, bench, demo, inspect, moved, own  # noqa: F401  (each registers itself)
from r2no.cli.app import app, shown
from r2no.errors import R2NOError

__all__ = ["app", "main"]

#: Commands that keep their work, so that the same command goes on.
_GO_ON = ("adapt", "bench", "demo", "predict")


def _interrupted(*_: object) -> None:
    """Say, once, that a stopped run can be taken up again."""
    if multiprocessing.parent_process() is None and set(_GO_ON) & set(sys.argv[1:2]):
        note = "Stopped. Run the same command again to go on where it was."
        Console(stderr=True).print(note, soft_wrap=True)
    raise KeyboardInterrupt


def main() -> None:
    """Entry point: named errors become one clear line and exit code 1, or 2 for what moved."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names that its encoding lacks are spelled out
        sys.stdout.reconfigure(errors="backslashreplace")
    before = signal.signal(signal.SIGINT, _interrupted)
    try:
        with ranks.group():
            app()
    except R2NOError as error:
        line = Text.assemble((type(error).__name__, "bold red"), ": ", shown(str(error)))
        Console(stderr=True).print(line, soft_wrap=True)
        ranks.ends_at_once()
        sys.exit(2 if isinstance(error, moved.MovedError) else 1)
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    main()
