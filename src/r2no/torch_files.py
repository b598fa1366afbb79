"""Files of ``torch.save`` from anybody: read without running code, and never larger than they are.

PyTorch files are pickles. They are read with ``weights_only=True`` and nothing else, and their
objects are replaced by inert ones or refused. A few bytes can also declare tensors of any size, so
what a file declares is compared with what it holds before a value is touched.
"""

import pickletools
import re
import threading
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from r2no._types import PathLike
from r2no.errors import FileDamagedError, NonFiniteError
from r2no.reading import check_declared, regular_file

_DEEPEST = 64  # levels of lists and dictionaries
_MOST_PARTS = 1_000_000  # entries in them
_SMALL = 2**30  # bytes that repeated values may stand for: an unfilled network of usual size
_HUNGRY = ("builtins.bytearray", "__builtin__.bytearray")  # makes any amount of memory of a number
_FEW = 5  # names that a message lists
_LEGACY_PICKLES = 5  # a file of PyTorch before 1.6 begins with as many
_loading = threading.Lock()  # PyTorch's list of harmless objects is of the whole process


#: First bytes of files that are often saved in place of the one that was meant.
_MISTAKEN = {
    b"version https://git-lfs": "it is a pointer of Git LFS, not the file (`git lfs pull` gets it)",
    b"<": "it is a web page or XML, not the file",
}


class Inert:
    """Stands in for whatever object a file asks for, and drops what it held."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def read_torch(path: PathLike, *, inert: Collection[str] | None = ()) -> Any:
    """The content of a file of ``torch.save``: tensors and plain values, on the CPU.

    Args:
        path: The file.
        inert: Names of objects that become :class:`Inert`, any other is refused; None for all.

    Raises:
        FileMissingError: if there is no such file.
        FileDamagedError: if it is damaged, asks for other objects, or declares more than it holds.
    """
    path = regular_file(path)
    try:
        if zipfile.is_zipfile(path):
            _check_archive(path)
        with path.open("rb") as stream:
            asked = _globals(stream)
        if hungry := sorted(asked.intersection(_HUNGRY)):
            raise FileDamagedError(
                f"`{path}` was not loaded: it asks for `{hungry[0]}`, which no file of weights "
                "needs. Fetch it again from a source you trust."
            )
        content = _load(path, inert)
    except FileDamagedError:
        raise
    except Exception as error:  # a damaged pickle can raise anything, and all of it is reported
        raise FileDamagedError(
            f"`{path}` was not loaded: {_why_unreadable(path, error)}. It was not executed. "
            "Expected a complete `torch.save` file of tensors, numbers, lists and dictionaries; "
            "fetch it again from a source you trust, or save `network.state_dict()` again."
        ) from error
    _check_content(content, path)
    return content


def dense(name: str, value: Tensor, path: PathLike) -> Tensor:
    """The tensor in plain memory; sparse, quantised and unfilled ones have none."""
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise FileDamagedError(
            f"`{path}` must hold dense tensors of numbers, but `{name}` is sparse, quantised or "
            "without values. Save the network's `state_dict()` again."
        )
    return value.resolve_conj().resolve_neg()


def distinct(tensor: Tensor) -> Tensor:
    """The tensor without the axes along which one value stands for many (``expand``)."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis]:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def is_safetensors(path: Path) -> bool:
    """Whether a file begins as safetensors do: a length of eight bytes, then a JSON header."""
    with path.open("rb") as stream:
        return stream.read(9)[8:] == b"{"


def check_finite(weights: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights that are NaN or infinite.

    Raises:
        NonFiniteError: naming the tensors.
    """
    bad = [key for key, value in weights.items() if not torch.isfinite(distinct(value)).all()]
    if bad:
        raise NonFiniteError(
            f"{where} holds NaN or infinity in {a_few(bad)}. Its training diverged or the file is "
            "damaged; use an earlier checkpoint."
        )


def misfits(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, types: bool) -> str:
    """What is missing, unexpected or of another shape (or type, if ``types``); "" if all fit."""

    def kind(tensor: Tensor) -> str:
        return f"{type_name(tensor)}{list(tensor.shape)}" if types else f"{tuple(tensor.shape)}"

    problems = {
        "missing": [key for key in expected if key not in weights],
        "unexpected": [key for key in weights if key not in expected],
        "mismatched": [
            f"{key} ({kind(weights[key])} for {kind(value)})"
            for key, value in expected.items()
            if key in weights and kind(weights[key]) != kind(value)
        ],
    }
    listed = [f"{len(keys)} {what}: {a_few(keys)}" for what, keys in problems.items() if keys]
    return "; ".join(listed)


def type_name(tensor: Tensor) -> str:
    """The type of a tensor's numbers, as in "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def a_few(keys: Sequence[Any]) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(keys) - _FEW} more" if len(keys) > _FEW else ""
    return ", ".join(f"`{key}`" for key in keys[:_FEW]) + more


def _why_unreadable(path: Path, error: Exception) -> str:
    """Why PyTorch refused a file, in our words: its own advise to switch its safety off."""
    if found := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it asks for `{found[1]}`, and r2no runs no code from a file"
    with path.open("rb") as stream:
        head = stream.read(100).lstrip()
    if not head:
        return "it is empty"
    if _is_program(path):
        return (
            "it is an exported program, not a file of weights (open it with "
            "`r2no.operators.from_exported`, or as `exported:` in a config)"
        )
    if mistaken := [reason for start, reason in _MISTAKEN.items() if head.startswith(start)]:
        return mistaken[0]
    return (
        f"it is damaged, or no PyTorch file that holds plain values only ({type(error).__name__})"
    )


def _is_program(path: Path) -> bool:
    """Whether an archive is one of ``torch.export.save``; told by its names alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/archive_format") for name in archive.namelist())
    except Exception:  # zipfile raises anything for what is no archive, or a damaged one
        return False


def _load(path: Path, inert: Collection[str] | None) -> Any:
    with _loading:
        if inert is None:
            inert = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        stand_ins: list[Any] = [(Inert, name) for name in inert]
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(path, map_location="cpu", weights_only=True)


def _check_archive(path: Path) -> None:
    """PyTorch neither compresses its records nor compares their checksums."""
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        packed = [record.filename for record in records if record.compress_type]
        if packed or sum(record.file_size for record in records) > path.stat().st_size:
            raise FileDamagedError(
                f"`{path}` is no file of `torch.save`: its records are compressed or overlap, so "
                "they may hold any amount. Unpack it, or fetch it again from a source you trust."
            )
        if (wrong := archive.testzip()) is not None:
            raise FileDamagedError(
                f"`{path}` is damaged: the checksum of its record `{wrong}` is wrong. "
                "Fetch or copy it again."
            )


def _globals(stream: BinaryIO) -> set[str]:
    """Names that the pickles of a file ask for; nothing is unpickled."""
    if not zipfile.is_zipfile(stream):
        stream.seek(0)
        return {name for _ in range(_LEGACY_PICKLES) for name in _pickle_globals(stream)}
    with zipfile.ZipFile(stream) as archive:
        pickles = [name for name in archive.namelist() if name.endswith(".pkl")]
        return {name for one in pickles for name in _pickle_globals(archive.read(one))}


def _pickle_globals(pickled: Any) -> Iterable[str]:
    text: list[str] = []
    for code, argument, _ in pickletools.genops(pickled):
        if code.name in ("GLOBAL", "INST"):
            yield str(argument).replace(" ", ".")
        elif code.name == "STACK_GLOBAL":
            yield ".".join(text[-2:])
        if isinstance(argument, str):
            text.append(argument)


def _check_content(content: Any, path: Path) -> None:
    """Bound depth, entries and bytes before anybody walks through the content."""
    level: list[Any] = [content]
    parts = declared = 0
    held = path.stat().st_size
    for _ in range(_DEEPEST):
        tensors = [value for value in level if isinstance(value, Tensor)]
        declared += sum(_declared(tensor, held, path) for tensor in tensors)
        level = [
            part
            for value in level
            if isinstance(value, (dict, list, tuple, set))
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        parts += len(level)
        if not level or parts > _MOST_PARTS:
            break
    if level:
        raise FileDamagedError(
            f"`{path}` was not loaded: its lists and dictionaries are nested deeper than "
            f"{_DEEPEST} levels or hold more than {_MOST_PARTS} entries. No file of weights does."
        )
    remedy = "Save the weights with `.clone()` each."
    check_declared(f"`{path}`", declared, held, remedy, small=_SMALL)


def _declared(tensor: Tensor, held: int, path: Path) -> int:
    if tensor.layout != torch.strided or tensor.is_meta:
        return 0  # without memory of this size; refused where weights are needed
    memory = tensor.untyped_storage().nbytes()
    if memory > held or distinct(tensor).numel() * tensor.element_size() > memory:
        raise FileDamagedError(
            f"`{path}` was not loaded: a tensor of shape {tuple(tensor.shape)} asks for more bytes "
            f"than the file holds for it. Fetch it again from a source you trust."
        )
    return tensor.numel() * tensor.element_size()
