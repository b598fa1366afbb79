"""Statistics of history and target channels in one pass, exact or as the benchmark computes them.

Split the windows into batches. With S_b the sum of squared deviations from the mean of batch b and
n points in all, the benchmark's variance is Σ_b S_b / n: what the batch means vary is lost. One
batch of all windows gives the exact variance.
"""

from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from r2no import ranks
from r2no._repr import brief_repr
from r2no._types import PathLike
from r2no.checks import choice
from r2no.data.normalise import Moments, Normaliser
from r2no.data.window import Window, Windows
from r2no.errors import EmptySplitError, FileDamagedError
from r2no.locks import sole_run
from r2no.realpdebench.files.index import load_pt
from r2no.storage import fingerprint, load_tensors, save_tensors

METHODS = ("gaussian", "range", "none")
BENCHMARK_BATCH = 512


class Normalisers(NamedTuple):
    """One normaliser for histories, one for targets."""

    history: Normaliser
    target: Normaliser

    def __repr__(self) -> str:
        return brief_repr(self)


class Statistics(NamedTuple):
    """Moments of all histories and of all targets of a data set."""

    history: Moments
    target: Moments

    def __repr__(self) -> str:
        return brief_repr(self)

    def normalisers(self, method: str = "gaussian") -> Normalisers:
        """Shift and scale by one of ``METHODS``."""
        if choice("method", method, METHODS) == "none":
            return Normalisers(*(Normaliser.identity(len(part.mean)) for part in self))
        return Normalisers(*(p.range() if method == "range" else p.gaussian() for p in self))

    def _merge(self, other: "Statistics", *, between: bool) -> "Statistics":
        history = self.history.merge(other.history, between=between)
        return Statistics(history, self.target.merge(other.target, between=between))


def fit_statistics(
    windows: Windows,
    *,
    compat: str | None = None,
    batch_size: int | None = None,
    cache: PathLike | None = None,
    workers: int = 0,
) -> Statistics:
    """Pass once over ``windows`` in order, holding one window at a time.

    Args:
        windows: usually simulated training windows, at their current epoch.
        compat: ``"benchmark"`` for its variance within batches of 512 windows.
        batch_size: another length of those batches; default all windows, the exact variance.
        cache: folder to keep the result in, under a key of the data's fingerprint.
        workers: processes that read windows.
    """
    if compat is not None:
        choice("compat", compat, ("benchmark",))
        batch_size = batch_size or BENCHMARK_BATCH
    if cache is None:
        return _accumulate(_stream(windows, workers, batch_size), batch_size)
    key = fingerprint(windows.fingerprint, getattr(windows, "epoch", 0), batch_size)
    path = Path(cache) / f"statistics-{key[:16]}.safetensors"
    with sole_run(path):
        if ranks.agreed(path.is_file()):
            return _load(path, key)
        result = _accumulate(_stream(windows, workers, batch_size), batch_size)
        _save(path, key, result)
    return result


def load_benchmark_normalisers(path: PathLike) -> Normalisers:
    """Read the benchmark's own cache, ``mean_std.pt`` or ``max.pt``, executing nothing in it.

    Such a file says nothing about the data it came from; prefer :func:`fit_statistics`.
    """
    path = Path(path)
    content = load_pt(path)
    vectors = list(content) if isinstance(content, (list, tuple)) else []
    if len(vectors) not in (2, 4) or not _are_statistics(vectors):
        raise FileDamagedError(
            f"`{path}` must hold 4 (`mean_std.pt`) or 2 (`max.pt`) vectors of finite numbers, "
            "scales not negative and as long as their means. Delete it and compute the statistics "
            "again."
        )
    if len(vectors) == 2:
        history, target = (Normaliser(torch.zeros_like(v), v) for v in vectors)
    else:
        pairs = zip(vectors[:2], vectors[2:], strict=True)
        history, target = (Normaliser(mean, std) for mean, std in pairs)
    return Normalisers(history, target)


def _are_statistics(vectors: list[Any]) -> bool:
    """Whether these are (means of history and target,) scales of history and target."""
    if not all(isinstance(v, Tensor) and v.ndim == 1 and v.isfinite().all() for v in vectors):
        return False
    scales = vectors[-2:]
    alike = all(a.shape == b.shape for a, b in zip(vectors[:2], scales, strict=True))
    return alike and all(bool((scale >= 0).all()) for scale in scales)


def _stream(windows: Windows, workers: int, batch_size: int | None) -> Iterable[Window]:
    """This process's windows: of several, each takes whole batches."""
    mine = [
        n
        for n in range(len(windows))
        if n // (batch_size or 1) % ranks.world_size() == ranks.rank()
    ]
    if workers == 0:
        return (windows[number] for number in mine)
    return DataLoader(windows, batch_size=None, sampler=mine, num_workers=workers)  # type: ignore[arg-type]


def _accumulate(stream: Iterable[Window], batch_size: int | None) -> Statistics:
    """Statistics of all processes' windows."""
    exact, parts = batch_size is None, ranks.everyones(_own(stream, batch_size))
    known = [part for part in parts if part is not None]
    if not known:
        raise EmptySplitError("`windows` holds no windows. Statistics need at least one.")
    return reduce(lambda first, second: first._merge(second, between=exact), known)


def _own(stream: Iterable[Window], batch_size: int | None) -> Statistics | None:
    total: Statistics | None = None
    batch: Statistics | None = None
    for number, window in enumerate(stream):
        one = Statistics(Moments.of(window.history), Moments.of(window.target))
        if batch is not None and batch_size is not None and number % batch_size == 0:
            total = batch if total is None else total._merge(batch, between=False)
            batch = None
        batch = one if batch is None else batch._merge(one, between=True)
    return batch if total is None or batch is None else total._merge(batch, between=False)


def _save(path: Path, key: str, statistics: Statistics) -> None:
    tensors = {
        f"{side}.{name}": getattr(moments, name)
        for side, moments in statistics._asdict().items()
        for name in ("mean", "spread", "peak")
    }
    counts = {side: int(moments.count[0]) for side, moments in statistics._asdict().items()}
    save_tensors(path, tensors, {"key": key, "count": counts})


def _load(path: Path, key: str) -> Statistics:
    tensors, metadata = load_tensors(path)
    if metadata.get("key") != key:
        raise FileDamagedError(f"`{path}` belongs to other data. Delete it to have it made again.")
    sides = []
    for side, count in metadata["count"].items():
        mean, spread, peak = (tensors[f"{side}.{name}"] for name in ("mean", "spread", "peak"))
        sides.append(Moments(torch.full_like(mean, count), mean, spread, peak))
    return Statistics(*sides)
