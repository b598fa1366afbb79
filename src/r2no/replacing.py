"""Names on the disk that change hands: a file or folder takes another's place, whole at any moment.

Folders are swapped in one step where the system can do that. What a kill between two steps leaves
is settled by the next writer.
"""

import contextlib
import ctypes
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from r2no._types import PathLike
from r2no.errors import StorageError


def check_replaceable(path: Path) -> None:
    """Refuse folders that no sibling can replace, or whose users would stand in a removed one."""
    working: Path | None = None
    with contextlib.suppress(FileNotFoundError):  # it may have been removed
        working = Path.cwd()
    if working is not None and working.is_relative_to(path):
        reason = "the working folder, or holds it"
    elif os.path.ismount(path):
        reason = "where a file system is mounted"
    else:
        return
    raise StorageError(
        f"Could not write `{path}`: it is {reason}, so that it cannot be replaced as a whole. "
        "Choose a folder inside it."
    )


def remove(path: Path) -> None:
    """Remove a file, or a folder with all it holds, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link_content(old: Path, new: Path, dropped: Collection[str]) -> None:
    """Hard links of files, which cost nothing; copies where the file system knows no links."""
    if not old.is_dir():
        raise NotADirectoryError(f"`{old}` is a file, not a folder")
    for entry in sorted(old.iterdir()):
        if entry.name in dropped or entry.name.endswith((".tmp", ".lock")):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, new / entry.name, symlinks=True, copy_function=_link)
        else:
            _link(entry, new / entry.name)


def _link(old: PathLike, new: PathLike) -> None:
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        shutil.copy2(old, new, follow_symlinks=False)


def take_place(new: Path, old: Path) -> None:
    """Put a file or folder in another's place, which is whole, old or new, at any moment.

    Folders are swapped in one step where the system can do that, and the old one then removed.
    """
    if old.is_symlink() or not old.is_dir():
        os.replace(new, old)
    elif _exchange(new, old):
        remove(new)
    else:
        os.replace(old, _aside(old))
        os.replace(new, old)
        remove(_aside(old))


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def settle(path: Path) -> None:
    """Undo a swap in two steps that was killed between them, or finish one killed after them."""
    if _aside(path).exists():
        if path.exists():
            remove(_aside(path))
        else:
            os.replace(_aside(path), path)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step (Linux's renameat2, macOS's renamex_np); False if that fails."""
    library = ctypes.CDLL(None, use_errno=True)
    names = [os.fsencode(first), os.fsencode(second)]
    if hasattr(library, "renameat2"):
        at_working_folder, exchange = -100, 2
        code = library.renameat2(at_working_folder, names[0], at_working_folder, names[1], exchange)
    elif hasattr(library, "renamex_np"):
        swap = 2
        code = library.renamex_np(*names, swap)
    else:
        return False
    return bool(code == 0)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
