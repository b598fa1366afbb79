"""SourceCache: the frozen operator's predictions, computed once per window and shared on disk."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from r2no import storage
from r2no._types import Operator, PathLike
from r2no.data.window import Windows, batches
from r2no.errors import FileDamagedError, NonFiniteError, ShapeError, StorageError
from r2no.training import distributed
from r2no.training.operator import operator_fingerprint
from r2no.training.progress import Reporter

_SAVE_EVERY = 16  # batches between two notes of how far the file is filled


class SourceCache:
    """h_0 of every window of a split, in physical units, memory-mapped float32."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: np.ndarray | None = None

    def __getitem__(self, numbers: list[int] | range) -> Tensor:
        """Predictions of the windows with these numbers."""
        if self._values is None:
            try:
                self._values = np.load(self.path, mmap_mode="r")
            except (ValueError, EOFError, OSError) as error:
                raise FileDamagedError(
                    f"`{self.path}` is damaged ({error}). Delete it to have it made again."
                ) from error
        return torch.from_numpy(np.array(self._values[list(numbers)]))


def cached_source(
    source: Operator,
    windows: Windows,
    folder: PathLike,
    *,
    batch_size: int = 16,
    title: str = "source predictions",
    reporter: Reporter | None = None,
) -> SourceCache:
    """Predict every window of a split once, or reuse the file made before.

    The file's name is a fingerprint of the source and the data, so a changed network or data set
    never meets an old prediction. A killed run continues where it stopped.
    """
    reporter = reporter or Reporter(quiet=True)
    first = next(iter(batches(windows, 1)))[1]
    key = storage.fingerprint(
        operator_fingerprint(source, first.history), windows.fingerprint, batch_size
    )
    path = Path(folder) / f"h0-{key[:24]}.npy"
    if not path.exists() and distributed.is_main():
        _fill(source, windows, path, batch_size, title, reporter)
    distributed.barrier()
    return SourceCache(path)


def _fill(
    source: Operator, windows: Windows, path: Path, batch_size: int, title: str, reporter: Reporter
) -> None:
    fields = windows.fields
    shape = (len(windows), fields.horizon_frames, *fields.grid, len(fields.channels))
    partial, note = path.with_suffix(".partial.npy"), path.with_suffix(".partial.json")
    done = storage.read_json(note)["windows"] if note.exists() and partial.exists() else 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = "r+" if done else "w+"
        values = np.lib.format.open_memmap(partial, mode=mode, dtype=np.float32, shape=shape)
        with reporter.step(title, len(windows)) as step, torch.no_grad():
            step.advance(done)
            for position, (numbers, window) in enumerate(batches(windows, batch_size)):
                if numbers.stop <= done:
                    continue
                values[numbers.start : numbers.stop] = _checked(source, window.history, shape)
                if (position + 1) % _SAVE_EVERY == 0:
                    values.flush()
                    storage.write_json(note, {"windows": numbers.stop})
                step.advance(len(numbers))
        values.flush()
        del values
        partial.replace(path)
        note.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"Could not write `{path}`: {error}. Free some space.") from error


def _checked(source: Operator, history: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    prediction = source(history)
    if tuple(prediction.shape[1:]) != shape[1:]:
        raise ShapeError(
            f"`source` must return (batch, {', '.join(map(str, shape[1:]))}) for these windows, "
            f"but gave shape {tuple(prediction.shape)}. Adapt its layout, frames or channels."
        )
    if not torch.isfinite(prediction).all():
        raise NonFiniteError(
            "`source` returned NaN or infinity. Check its weights and whether it expects "
            "normalised input (wrap it in `PhysicalOperator`)."
        )
    return prediction.float().cpu().numpy()
