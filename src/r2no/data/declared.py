"""What every reader of data files needs: refuse what declares too much, name what is damaged.

Opening and inspecting cost what a file is worth, in time and memory: each format checks what its
files declare before it believes them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from r2no._repr import first_line
from r2no.errors import DataError, R2NOError
from r2no.reading import RATIO, SMALL, check_declared

LINE = 2 * 2**20  # bytes that a list of coordinates may declare: these are read in full
SPARSE_REMEDY = (
    "It is damaged, hostile, or sparse: never written, or full of one value. If that is meant, "
    "pass `allow_sparse=True` (`allow_sparse: true` in a config, `--allow-sparse`)."
)


def check_filled(
    where: str, declared: int, held: int, *, small: int = SMALL, ratio: int = RATIO
) -> None:
    """Refuse what declares far more bytes than are there, see :func:`r2no.reading.check_declared`.

    Raises:
        FileDamagedError: saying how to allow it.
    """
    check_declared(where, declared, held, SPARSE_REMEDY, small=small, ratio=ratio)


@contextmanager
def reading_file(path: Path, kind: str) -> Iterator[None]:
    """Name the file in whatever its reader raises."""
    try:
        yield
    except R2NOError:
        raise
    except Exception as error:  # readers raise anything for what is no such file, or damaged
        raise unreadable(path, kind, error) from error


def unreadable(path: Path, kind: str, error: Exception) -> DataError:
    """That a file could not be read, with the reader's own words."""
    return DataError(
        f"Could not read `{path}` as {kind}: {first_line(error)}. It is damaged, still being "
        "written, or of another format than its name says."
    )
