"""``r2no``: the parser, and how errors are shown."""

import errno
import io
import multiprocessing
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.text import Text

from r2no.cli import artifact, demo, own  # noqa: F401  (each registers itself)
from r2no.cli.app import MovedError, app, shown
from r2no.errors import R2NOError

__all__ = ["app", "main"]

#: Commands that keep their work, so that the same command goes on.
_GO_ON = ("adapt", "bench", "demo", "predict")

_PLACE = "Check that you may read and write it, and the folders above it."
_SPACE = "Free some space, then run the same command again."
#: What the system may refuse without a defect of this package, and what to do.
_REFUSED = {
    errno.EACCES: _PLACE,
    errno.EPERM: _PLACE,
    errno.EROFS: "Choose a folder that can be written to.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
}


def _interrupted(*_: object) -> None:
    """Say, once, that a stopped run can be taken up again."""
    if multiprocessing.parent_process() is None and set(_GO_ON) & set(sys.argv[1:2]):
        note = "Stopped. Run the same command again to go on where it was."
        Console(stderr=True).print(note, soft_wrap=True)
    raise KeyboardInterrupt


def _of_torchrun() -> bool:
    return "WORLD_SIZE" in os.environ


def _group() -> AbstractContextManager[None]:
    """The processes that ``torchrun`` started, as one; without them PyTorch is not needed yet."""
    if not _of_torchrun():
        return nullcontext()
    from r2no import ranks

    return ranks.group()


def main() -> None:
    """Entry point: named errors become one clear line and exit code 1, or 2 for what moved."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names that its encoding lacks are spelled out
        sys.stdout.reconfigure(errors="backslashreplace")
    before = signal.signal(signal.SIGINT, _interrupted)
    try:
        with _group():
            app()
    except (R2NOError, OSError) as error:
        said = str(error)
        if not isinstance(error, R2NOError):
            if error.errno not in _REFUSED:
                raise
            said = f"{said}. {_REFUSED[error.errno]}"
        line = Text.assemble((type(error).__name__, "bold red"), ": ", shown(said))
        Console(stderr=True).print(line, soft_wrap=True)
        if _of_torchrun():
            from r2no import ranks

            ranks.ends_at_once()
        sys.exit(2 if isinstance(error, MovedError) else 1)
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    main()
