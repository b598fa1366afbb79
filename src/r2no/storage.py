"""Files that are either complete or not there: atomic writes, verified reads, fingerprints.

Tensors live in safetensors files, never in pickles, with a hash of their content that is checked
when they are read. Every write goes to a temporary file in the same folder, is flushed to the disk
and then renamed, so a killed process leaves the old file. Folders are written as a sibling that
then takes the old one's place. Temporary names are fixed and every output has one writer at a time,
so what a killed process left is removed by the next one.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as _serialise
from torch import Tensor

from r2no import checks, ranks
from r2no._types import PathLike
from r2no.errors import BusyError, FileDamagedError, R2NOError, StorageError
from r2no.locks import sole_writer
from r2no.reading import parse_json, regular_file
from r2no.reading import read_json as read_json
from r2no.replacing import check_replaceable, link_content, remove, settle, sync_folder, take_place

_METADATA_KEY = "r2no"  # of files without a hash, as earlier versions wrote them
_SEALED_KEY = "r2no.sealed"
_CHECK_KEY = "sha256 of all else"
_AGAIN = "Free some space or choose a writable folder, then run the same command again"
_UNTOUCHED = f"What was there before is untouched. {_AGAIN}."
#: What is promised of a file that is filled bit by bit.
GOES_ON = f"{_AGAIN}: it goes on where it stopped."


@contextlib.contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success flush it to disk and rename it there.

    Raises:
        StorageError: if the folder is not writable or the disk is full; ``path`` is untouched.
    """
    path = Path(path)
    temporary = _temporary(path)
    with sole_writer(path), writing(path):
        try:
            remove(temporary)
            yield temporary
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            remove(temporary)


@contextlib.contextmanager
def atomic_folder(path: PathLike, *, dropped: Collection[str] = ()) -> Iterator[Path]:
    """Yield a sibling of a folder to write into; on success it takes the folder's place.

    The sibling begins with everything that is in the folder but the names in ``dropped``. Write
    into it through :func:`atomic_path` and its users, which never change a file in place: what it
    begins with are links. The folder itself is whole, old or new, at any moment.

    Raises:
        StorageError: if the place is not writable or the disk is full; the folder is untouched.
    """
    path = Path(path).resolve()
    check_replaceable(path)
    with scratch_folder(path) as sibling:
        if path.exists():
            link_content(path, sibling, dropped)
        yield sibling
        sync_folder(sibling)
        take_place(sibling, path)
        sync_folder(path.parent)


@contextlib.contextmanager
def scratch_folder(path: PathLike) -> Iterator[Path]:
    """Yield an empty folder beside ``path`` as its only writer; it is removed at the end.

    Raises:
        StorageError: if the place is not writable or the disk is full.
    """
    path = Path(path)
    scratch = _temporary(path)
    with sole_writer(path), writing(path):
        try:
            settle(path)
            remove(scratch)
            scratch.mkdir(parents=True)
            yield scratch
        finally:
            remove(scratch)


def remove_temporaries(folder: PathLike, names: str = "*") -> None:
    """Remove what killed writers of the files ``names``, a pattern, left in a folder.

    What another process is writing at this moment stays.
    """
    if not ranks.is_main():
        return
    for ending in (".tmp", ".lock"):
        for leftover in sorted(Path(folder).glob(f".{names}{ending}")):
            output = leftover.with_name(leftover.name[1 : -len(ending)])
            with contextlib.suppress(BusyError), sole_writer(output, wait=False):
                remove(_temporary(output))


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


@contextlib.contextmanager
def writing(
    path: Path, promise: str = _UNTOUCHED, *, also: type[Exception] = OSError
) -> Iterator[None]:
    """Say which file could not be written, and what is not lost: ``promise``.

    ``also`` is what else a library raises when it cannot write.
    """
    try:
        yield
    except R2NOError:
        raise
    except (OSError, SafetensorError, also) as error:
        raise StorageError(f"Could not write `{path}`: {error}. {promise}") from error


def make_folder(path: PathLike) -> None:
    """Make a folder and those above it, if they are not there."""
    with writing(Path(path)):
        Path(path).mkdir(parents=True, exist_ok=True)


def check_space(path: Path, size: int) -> None:
    """Refuse at once a file of ``size`` bytes that will not fit, instead of after hours."""
    make_folder(path.parent)
    there = path.stat().st_size if path.exists() else 0
    free = shutil.disk_usage(path.parent).free
    if size - there > free:
        raise StorageError(
            f"`{path}` needs {(size - there) / 1e9:.3g} GB more, but only {free / 1e9:.3g} GB are "
            "free there. Free some space or choose another folder."
        )


def write_bytes(path: PathLike, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically; of several processes the first one does."""
    if not ranks.is_main():
        return
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: PathLike, text: str) -> None:
    """Write ``text`` as UTF-8, as :func:`write_bytes` does."""
    write_bytes(path, text.encode())


def write_json(path: PathLike, content: Any) -> None:
    """Write ``content`` as indented JSON, atomically; see :func:`strict_json` for infinity."""
    write_text(path, json_text(content))


def json_text(content: Any) -> str:
    """``content`` as every JSON file of ours is written."""
    return json.dumps(strict_json(content), indent=2, sort_keys=False, allow_nan=False) + "\n"


def save_tensors(
    path: PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write tensors and JSON-able ``metadata`` as one safetensors file, atomically.

    Tensors that share memory, such as tied weights, are written once per name.
    """
    plain: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        plain[name] = value.clone() if place in memory else value
        memory.add(place)
    notes = json.loads(json.dumps(strict_json(dict(metadata or {})), allow_nan=False))
    notes[_CHECK_KEY] = fingerprint(plain, notes)
    try:  # one key of metadata, because several are written in random order
        content = _serialise(plain, metadata={_SEALED_KEY: json.dumps(notes)})
    except KeyError as error:  # its table of types
        raise StorageError(
            f"Could not write `{path}`: safetensors files hold no tensors of type {error}. "
            "Cast them first."
        ) from error
    write_bytes(path, content)


def load_tensors(path: PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of :func:`save_tensors`; returns the tensors and the metadata.

    safetensors opens a file twice, by its name, for the header and for the values. If another
    process replaced it in between, it is read again.

    Raises:
        FileDamagedError: if the file is truncated or not a safetensors file.
    """
    while True:
        before = _version(path)
        try:
            return _load_tensors(path)
        except FileDamagedError:
            if _version(path) == before:
                raise


def _version(path: PathLike) -> tuple[int, ...]:
    """Tells a file from one that takes its place."""
    regular_file(checks.path("path", path))
    status = os.stat(path)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _load_tensors(path: PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One reading of a file, its hash checked."""
    try:
        with safe_open(str(path), framework="pt") as archive:
            header = archive.metadata() or {}
            text = header.get(_SEALED_KEY) or header.get(_METADATA_KEY, "{}")
            notes = parse_json(text, f"The metadata of `{path}`")
            tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
        if not isinstance(notes, dict):
            raise ValueError("its metadata are no object")
    except (SafetensorError, ValueError, MemoryError) as error:
        raise FileDamagedError(
            f"`{path}` is damaged or not a safetensors file ({error}). "
            "Restore it from a copy, or delete it to have it made again."
        ) from error
    metadata = dict(notes)
    expected = metadata.pop(_CHECK_KEY, None)  # files of earlier versions, and of others, have none
    sealed = _SEALED_KEY in header or any(_CHECK_KEY in text for text in header.values())
    if sealed and fingerprint(tensors, metadata) != expected:
        raise FileDamagedError(
            f"`{path}` was changed after it was written: its content does not have the hash it "
            "was written with. Restore it from a copy, or delete it to have it made again."
        )
    return tensors, metadata


def strict_json(value: Any) -> Any:
    """``value`` for JSON, which knows neither infinity nor NaN: such numbers as text.

    ``float`` reads them back: "inf", "-inf", "nan".
    """
    if isinstance(value, dict):
        return {key: strict_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def file_sha256(path: PathLike) -> str:
    """SHA-256 of a file's bytes, read in pieces."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_sha256(path: PathLike) -> str:
    """SHA-256 of a file, or of all files in a folder with their places in it; not of dates."""
    path = Path(path)
    if path.is_file():
        return file_sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return fingerprint([[str(file.relative_to(path)), file_sha256(file)] for file in files])


def fingerprint(*parts: Any) -> str:
    """A stable SHA-256 over tensors, arrays, mappings, strings, numbers and ``None``."""
    digest = hashlib.sha256()
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()


def _feed(digest: Any, part: Any) -> None:
    """Add a value to a hash by its kind; arrays by type, shape and bytes."""
    if isinstance(part, Mapping):
        for key in sorted(part, key=str):
            digest.update(f"<{key}>".encode())
            _feed(digest, part[key])
    elif isinstance(part, Tensor):
        plain = part.detach().cpu().contiguous()
        digest.update(f"tensor{tuple(plain.shape)}{plain.dtype}".encode())
        if plain.numel():
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    elif hasattr(part, "dtype") and hasattr(part, "tobytes"):  # a NumPy array or scalar
        digest.update(f"array{part.shape}{part.dtype}".encode())
        for piece in part.reshape(-1, *part.shape[-2:]) if part.ndim > 2 else [part]:
            digest.update(piece.tobytes())  # piecewise, so a memory-mapped array streams
    elif hasattr(part, "dtype") and hasattr(part, "pieces"):  # an array that is read in pieces
        digest.update(f"array{part.shape}{part.dtype}".encode())
        for piece in part.pieces():
            digest.update(piece.tobytes())
    elif isinstance(part, (list, tuple)):
        digest.update(f"list{len(part)}".encode())
        for item in part:
            _feed(digest, item)
    else:
        digest.update(json.dumps(part, default=str).encode())
