"""SourceCache: the frozen operator's predictions, computed once per window and shared on disk.

A cache is a pair of files. ``h0-<key>-<n>.npy`` holds the predictions; beside it, under the same
name, a safetensors file holds how many are there, a checksum of each, and what the source answered
to the first window. The key is of content: the source's weights, the data and the batch size. What
an operator answers differs in its last bits between processors and numbers of threads, so answers
are compared with a tolerance; operators without weights that answer otherwise get the next n.
"""

import io
import itertools
import math
import os
import zlib
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from r2no import devices, ranks, storage
from r2no._types import Number, Operator, PathLike
from r2no.data.window import Windows, batches, gather
from r2no.errors import FileDamagedError, FingerprintError
from r2no.locks import sole_run
from r2no.progress import SILENT, Reporter, Step
from r2no.training.operator import asked, operator_identity, same_answer

_MIXED = 0.02  # of the range of values: more is no rounding, of bfloat16 either
_SAVE_EVERY = 16  # batches between two notes of how far the file is filled


class SourceCache:
    """h_0 of every window of a split, in physical units and the windows' precision, on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: np.ndarray | None = None
        self._checks: np.ndarray | None = None
        self._checked: set[int] = set()

    def __repr__(self) -> str:
        return f"SourceCache('{self.path}')"

    def __getstate__(self) -> dict[str, Any]:
        """Where the file is, not what was read of it: another process opens it again."""
        return {**self.__dict__, "_values": None, "_checks": None, "_checked": set()}

    def __getitem__(self, numbers: list[int] | range) -> Tensor:
        """Predictions of the windows with these numbers; each is checked when first read."""
        values = self._open()
        rows = np.array(values[list(numbers)])
        for number, row in zip(numbers, rows, strict=True):
            if number not in self._checked:
                self._check(number, row)
        return torch.from_numpy(rows)

    def _open(self) -> np.ndarray:
        if self._values is None:
            tensors, _ = storage.load_tensors(_note(self.path))
            try:
                values = np.load(self.path, mmap_mode="r")
            except (ValueError, EOFError, OSError) as error:
                raise self._damaged(str(error)) from error
            if len(values) != len(tensors["checks"]):
                raise self._damaged(f"{len(values)} windows, {len(tensors['checks'])} checksums")
            self._checks, self._values = tensors["checks"].numpy(), values
        return self._values

    def _check(self, number: int, row: np.ndarray) -> None:
        assert self._checks is not None
        if zlib.crc32(row.tobytes()) != int(self._checks[number]):
            raise self._damaged(f"window {number} changed after it was written")
        self._checked.add(number)

    def _damaged(self, reason: str) -> FileDamagedError:
        return FileDamagedError(
            f"`{self.path}` is damaged ({reason}). Delete it and `{_note(self.path).name}` to have "
            "them made again."
        )


#: Windows, and the source's forecasts on them.
Split = tuple[Windows, SourceCache]


def cached_source(
    source: Operator,
    windows: Windows,
    folder: PathLike,
    *,
    batch_size: int = 16,
    title: str = "source predictions",
    reporter: Reporter = SILENT,
) -> SourceCache:
    """Predict every window of a split once, or reuse the file made before.

    A changed network or data set never meets an old prediction. A killed run continues where it
    stopped, here or on another machine. A second run waits for the first; the processes of one run
    share the windows out.
    """
    first = next(iter(batches(windows, 1)))[1]
    wide = ["float64"] if first.history.dtype == torch.float64 else []  # once kept in float32
    key = storage.fingerprint(operator_identity(source), windows.fingerprint, batch_size, *wide)
    shape = windows.fields.target_shape
    answer = torch.from_numpy(_checked(source, first.history, shape))
    ranks.check_enough(len(windows))
    with sole_run(Path(folder) / f"h0-{key[:24]}"):
        storage.remove_temporaries(folder, f"h0-{key[:24]}-*")
        path = ranks.agreed(_place(Path(folder), key, answer))
        checks = ranks.agreed(_noted(path))
        if len(checks) < len(windows):
            starts = range(len(checks), len(windows), batch_size)
            rows = ranks.in_order(starts, partial(_answers, source, windows, batch_size, answer))
            with reporter.step(title, len(windows)) as step:
                step.advance(len(checks))
                _fill(path, (len(windows), *shape), rows, checks, answer, step)
    return SourceCache(path)


def _answers(
    source: Operator, windows: Windows, batch_size: int, alone: Tensor, start: int
) -> np.ndarray:
    """The source's forecasts for the batch that begins with this window.

    Raises:
        FingerprintError: if that of the first window is another one than it was ``alone``.
    """
    numbers = range(start, min(start + batch_size, len(windows)))
    history, shape = gather(windows, numbers).history, windows.fields.target_shape
    with devices.memory_named(len(numbers), lambda size: _checked(source, history[:size], shape)):
        rows = _checked(source, history, shape)
    if start == 0:
        _check_apart(torch.from_numpy(rows[:1]), alone)
    return rows


def _check_apart(together: Tensor, alone: Tensor) -> None:
    """Refuse a source that mixes the windows of a batch; low precision may round otherwise."""
    difference = float((together - alone).abs().max())
    rounding = _MIXED * float(alone.max() - alone.min())
    if difference > rounding and not same_answer(together, alone):
        raise FingerprintError(
            f"`source` answers the first window otherwise when others are in its batch (by "
            f"{difference:.2g}), so its forecasts depend on what they are computed with. Put "
            "normalisation layers into evaluation mode, and take no means over the batch."
        )


def bound_cache(folder: PathLike, most: Literal["keep", "drop"] | Number) -> None:
    """Delete forecasts in a folder: all, none, or the oldest until at most so many GB are left.

    They are made again if a run needs them.
    """
    allowed = most * 1e9 if isinstance(most, (int, float)) else {"keep": math.inf, "drop": 0}[most]
    paths = sorted(Path(folder).glob("h0-*.npy"), key=lambda path: path.stat().st_mtime)
    left = sum(path.stat().st_size for path in paths)
    for path in paths:
        if left <= allowed:
            return
        left -= path.stat().st_size
        path.unlink()
        _note(path).unlink(missing_ok=True)


def _note(path: Path) -> Path:
    return path.with_suffix(".safetensors")


def _place(folder: Path, key: str, answer: Tensor) -> Path:
    """The file of this key whose source answered alike, or the first name that is free."""
    for number in itertools.count():
        path = folder / f"h0-{key[:24]}-{number}.npy"
        if not _note(path).exists():
            return path
        if same_answer(storage.load_tensors(_note(path))[0]["answer"], answer):
            return path
    raise AssertionError  # count() does not end


def _fill(
    path: Path,
    shape: tuple[int, ...],
    batches_of_rows: Iterator[np.ndarray],
    checks: list[int],
    answer: Tensor,
    step: Step,
) -> None:
    """Append what is missing; the note is written after the rows it speaks of are on the disk."""
    if not ranks.is_main():  # its rows went to the first process
        deque(batches_of_rows, maxlen=0)
        return
    kind = answer.numpy().dtype
    done, header, row_size = len(checks), _header(shape, kind), kind.itemsize * math.prod(shape[1:])
    storage.check_space(path, len(header) + row_size * shape[0])
    mode = "r+b" if done else "wb"
    with storage.writing(path, storage.GOES_ON), path.open(mode) as file:
        file.truncate(len(header) + done * row_size if done else 0)
        file.seek(0, os.SEEK_END)
        file.write(b"" if done else header)
        for position, rows in enumerate(batches_of_rows, 1):
            file.write(rows.data)
            checks += [zlib.crc32(row.tobytes()) for row in rows]
            if position % _SAVE_EVERY == 0 or len(checks) == shape[0]:
                file.flush()
                os.fsync(file.fileno())
                _write_note(path, checks, answer)
            step.advance(len(rows))


def _noted(path: Path) -> list[int]:
    """Checksums of the windows that are in the file."""
    if not (path.exists() and _note(path).exists()):
        return []
    checks: list[int] = storage.load_tensors(_note(path))[0]["checks"].tolist()
    return checks


def _write_note(path: Path, checks: list[int], answer: Tensor) -> None:
    content = {"checks": torch.tensor(checks, dtype=torch.int64), "answer": answer}
    storage.save_tensors(_note(path), content)


def _header(shape: tuple[int, ...], kind: np.dtype[Any]) -> bytes:
    stream = io.BytesIO()
    fields = {"descr": f"<f{kind.itemsize}", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def _checked(source: Operator, history: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    prediction = asked(source, history, shape)
    return np.ascontiguousarray(prediction.cpu().numpy())
