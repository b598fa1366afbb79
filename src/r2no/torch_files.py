"""Files of ``torch.save`` from anybody: read without running code, and never larger than they are.

PyTorch files are pickles. They are read with ``weights_only=True`` and nothing else, and their
objects are replaced by inert ones or refused. A few bytes can also declare tensors of any size, so
what a file declares is compared with what it holds before a value is touched.
"""

import pickletools
import threading
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from r2no._types import PathLike
from r2no.errors import FileDamagedError
from r2no.reading import check_declared, regular_file
from r2no.storage import why_unreadable

_DEEPEST = 64  # levels of lists and dictionaries
_MOST_PARTS = 1_000_000  # entries in them
_SMALL = 2**30  # bytes that repeated values may stand for: an unfilled network of usual size
_HUNGRY = ("builtins.bytearray", "__builtin__.bytearray")  # makes any amount of memory of a number
_LEGACY_PICKLES = 5  # a file of PyTorch before 1.6 begins with as many
_loading = threading.Lock()  # PyTorch's list of harmless objects is of the whole process


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
            f"`{path}` was not loaded: {why_unreadable(path, error)}. It was not executed. "
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
