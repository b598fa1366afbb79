"""Files that are either complete or not there: atomic writes, verified reads, fingerprints.

Tensors live in safetensors files, never in pickles. Every write goes to a temporary file in the
same folder, is flushed to the disk and then renamed, so a killed process leaves the old file.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as _serialise
from torch import Tensor

from r2no._types import PathLike
from r2no.errors import FileDamagedError, FileMissingError, StorageError

_METADATA_KEY = "r2no"

#: First bytes of files that are often saved in place of the one that was meant.
_MISTAKEN = {
    b"version https://git-lfs": "it is a pointer of Git LFS, not the file (`git lfs pull` gets it)",
    b"<": "it is a web page or XML, not the file",
}


@contextlib.contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success flush it to disk and rename it there.

    Raises:
        StorageError: if the folder is not writable or the disk is full; ``path`` is untouched.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"Could not write `{path}`: {error}. What was there before is untouched. "
            "Free some space or choose a writable folder, then run the same command again."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: PathLike, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: PathLike, content: Any) -> None:
    """Write ``content`` as indented JSON, atomically."""
    write_bytes(path, (json.dumps(content, indent=2, sort_keys=False) + "\n").encode())


def read_json(path: PathLike) -> Any:
    """Read a JSON file, naming it when it is damaged."""
    try:
        return json.loads(Path(path).read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileDamagedError(
            f"`{path}` is not valid JSON ({error}). It was cut short or edited; "
            "restore it from a copy, or delete it to have it made again."
        ) from error


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
    try:
        content = _serialise(plain, metadata={_METADATA_KEY: json.dumps(metadata or {})})
    except KeyError as error:  # its table of types
        raise StorageError(
            f"Could not write `{path}`: safetensors files hold no tensors of type {error}. "
            "Cast them first."
        ) from error
    write_bytes(path, content)


def load_tensors(path: PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of :func:`save_tensors`; returns the tensors and the metadata.

    Raises:
        FileDamagedError: if the file is truncated or not a safetensors file.
    """
    if not Path(path).is_file():
        raise FileMissingError(f"There is no file `{path}`.")
    try:
        with safe_open(str(path), framework="pt") as archive:
            metadata = json.loads((archive.metadata() or {}).get(_METADATA_KEY, "{}"))
            tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, ValueError) as error:
        raise FileDamagedError(
            f"`{path}` is damaged or not a safetensors file ({error}). "
            "Restore it from a copy, or delete it to have it made again."
        ) from error
    return tensors, metadata


def why_unreadable(path: Path, error: Exception) -> str:
    """Why PyTorch refused a file, in our words: its own advise to switch its safety off."""
    if found := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it asks for `{found[1]}`, and r2no runs no code from a file"
    with path.open("rb") as stream:
        head = stream.read(100).lstrip()
    if not head:
        return "it is empty"
    if mistaken := [reason for start, reason in _MISTAKEN.items() if head.startswith(start)]:
        return mistaken[0]
    return (
        f"it is damaged, or no PyTorch file that holds plain values only ({type(error).__name__})"
    )


def strict_json(value: Any) -> Any:
    """``value`` for JSON, which knows no infinity: such numbers as text."""
    if isinstance(value, dict):
        return {key: strict_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def file_sha256(path: PathLike) -> str:
    """SHA-256 of a file's bytes, read in pieces."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fingerprint(*parts: Any) -> str:
    """A stable SHA-256 over tensors, arrays, mappings, strings, numbers and ``None``."""
    digest = hashlib.sha256()
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()


def _feed(digest: Any, part: Any) -> None:
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
