"""Zarr stores of unknown origin: what they declare, and what would read it, before a value is read.

Chunks that are not there count as fill values, so a store of a kilobyte can declare terabytes; its
codecs are programs that it chooses by name, one of which unpickles; its chunks can be links.
"""

import os
import stat
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from r2no.data.lazy import LINE, SPARSE_REMEDY, check_filled
from r2no.errors import DataError, FileDamagedError
from r2no.reading import read_json

_METADATA = (".zarray", ".zgroup", ".zattrs", "zarr.json")
#: Codecs that turn bytes into bytes, numbers into numbers, or bytes into text.
_CODECS = (
    "bytes transpose blosc gzip zlib zstd lz4 bz2 lzma crc32 crc32c adler32 fletcher32 "
    "jenkins_lookup3 shuffle delta fixedscaleoffset quantize bitround packbits astype zfpy pcodec "
    "sharding_indexed vlen-utf8 vlen-bytes vlen-array base64 cast_value scale_offset"
)
_FEW_CHUNKS = 1000  # that may be missing
_DEEPEST = 32  # folders in folders


def check_zarr(store: Path, *, allow_sparse: bool = False) -> None:
    """Refuse other codecs, what lies outside the store, and what declares far more than it holds.

    Raises:
        DataError: for a codec that is not known to be harmless, or a link to another place.
        FileDamagedError: if it declares too much, or holds pipes or devices.
    """
    files = held = declared = chunks = 0
    lines = []
    for path, size in _files(store):
        files, held = files + 1, held + size
        if path.name not in _METADATA:
            continue
        found = read_json(path, allow_nan=True)
        if not isinstance(found, dict):
            raise FileDamagedError(f"`{path}` must hold a JSON object. Restore it from a copy.")
        if path.name == ".zarray" or found.get("node_type") == "array":
            array = _Array(found, path)
            chunks, declared = chunks + array.chunks, declared + array.declared
            lines += [array] if array.is_line else []
    if allow_sparse:
        return
    where = f"`{store}`"
    check_filled(where, declared, held)
    for line in lines:
        inside = sum(size for path, size in _files(line.path.parent))
        check_filled(f"`{line.path.parent}`", line.declared, inside, small=LINE)
    if chunks > max(_FEW_CHUNKS, 10 * files):
        raise FileDamagedError(
            f"{where} declares {chunks} chunks but holds {files} files. {SPARSE_REMEDY}"
        )


class _Array:
    """What the metadata of an array declare, in format 2 or 3."""

    def __init__(self, found: dict[str, Any], path: Path) -> None:
        self.path = path
        try:
            shape = [int(size) for size in found["shape"]]
            chunk = [int(size) for size in _chunk_shape(found)]
            itemsize = _itemsize(found)
            codecs = list(_codecs(found))
            if min([*shape, *chunk, itemsize]) < 0 or 0 in chunk or len(shape) != len(chunk):
                raise ValueError(f"shape {shape} in chunks of {chunk}")
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise FileDamagedError(
                f"`{path}` does not describe an array ({type(error).__name__}: {error}). "
                "Restore it from a copy, or write the store again."
            ) from error
        for name in codecs:
            _check_codec(name, path)
        self.declared = itemsize * max(prod(shape), prod(chunk))
        self.chunks = prod(-(-size // step) for size, step in zip(shape, chunk, strict=True))
        self.is_line = len(shape) <= 1 and self.declared > LINE


def _chunk_shape(found: dict[str, Any]) -> Any:
    if "chunks" in found:
        return found["chunks"]
    return found["chunk_grid"]["configuration"]["chunk_shape"]


def _itemsize(found: dict[str, Any]) -> int:
    kind: Any = found["dtype"] if "dtype" in found else found["data_type"]
    if isinstance(kind, dict):  # a type of format 3 with a configuration, such as dates and text
        return int(kind.get("configuration", {}).get("length_bytes", 16))
    if isinstance(kind, list):
        kind = [tuple(field) for field in kind]
    return 16 if kind in ("string", "bytes", "variable_length_bytes") else np.dtype(kind).itemsize


def _codecs(found: dict[str, Any]) -> Iterator[str]:
    """Names of all codecs, also of those inside others."""
    listed = [*(found.get("codecs") or ()), *(found.get("filters") or ())]
    listed += [found["compressor"]] if found.get("compressor") else []
    for codec in listed:
        if isinstance(codec, str):
            yield codec
            continue
        yield str(codec["id"] if "id" in codec else codec["name"])
        inner = codec.get("configuration") or {}
        yield from _codecs({"codecs": inner.get("codecs"), "filters": inner.get("index_codecs")})
    if found.get("storage_transformers"):
        yield "storage_transformers"


def _check_codec(name: str, path: Path) -> None:
    if name.removeprefix("numcodecs.") not in _CODECS.split():
        reason = "which runs code from the file" if "pickle" in name else "which is not known"
        raise DataError(
            f"`{path}` asks for the codec {name!r}, {reason} to be harmless. "
            "Write the store again with a usual one, such as blosc, zstd or gzip."
        )


def _files(store: Path) -> Iterator[tuple[Path, int]]:
    """Every file in a store with its size; what leads elsewhere or may never end is refused."""
    root = os.path.realpath(store)
    folders = [(root, 0)]
    while folders:
        folder, depth = folders.pop()
        with os.scandir(folder) as entries:
            inside = list(entries)
        for entry in inside:
            if entry.is_symlink() and not os.path.realpath(entry).startswith(root + os.sep):
                raise DataError(
                    f"`{entry.path}` is a link to `{os.readlink(entry)}`, outside the store, and "
                    "r2no reads only the store it was given. Copy the store with its files "
                    "(`cp -rL`)."
                )
            if entry.is_dir():
                if entry.is_symlink() or depth >= _DEEPEST:
                    raise DataError(f"`{entry.path}` is a link to a folder, or nested too deeply.")
                folders.append((entry.path, depth + 1))
                continue
            found = entry.stat()
            if not stat.S_ISREG(found.st_mode):
                raise FileDamagedError(f"`{entry.path}` is a pipe or a device, not a chunk.")
            yield Path(entry.path), found.st_size
