"""The wake as a data set: windows by split, and the cache on disk."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from r2no import ranks
from r2no._types import PathLike
from r2no.data.arrays import ArrayWindows
from r2no.errors import ConfigError, FileDamagedError
from r2no.locks import sole_writer
from r2no.storage import fingerprint, load_tensors, save_tensors
from r2no.training.parallel import Progress
from r2no.wake.runs import CELLS_PER_DIAMETER, WakeSettings, simulate_wake

#: Part of the cache key: raise it whenever the same settings give other numbers.
CODE_VERSION = 1

_PARTS = {"numerical": ("train", "val"), "real": ("train", "fit", "test")}


@dataclass(frozen=True, eq=False)
class WakeData:
    """The wake's five splits. ``real_*`` are the stand-in for measurement: simulated as well.

    Each trajectory lies wholly in one split. ``reynolds`` gives the nominal Reynolds number of
    each trajectory by split; the stand-in's true one is lower by ``viscosity_offset``.
    """

    numerical_train: ArrayWindows
    numerical_val: ArrayWindows
    real_train: ArrayWindows
    real_fit: ArrayWindows
    real_test: ArrayWindows
    reynolds: dict[str, tuple[float, ...]]
    viscosity_offset: float
    settings: WakeSettings

    def __repr__(self) -> str:
        parts = ("numerical_train", "numerical_val", "real_train", "real_fit", "real_test")
        counts = ", ".join(f"{name} {len(getattr(self, name))}" for name in parts)
        return f"WakeData(windows: {counts}; {self.real_fit.fields.describe()})"


def make_wake(
    seed: int,
    *,
    quick: bool = False,
    cache: PathLike | None = None,
    progress: Progress | None = None,
    settings: WakeSettings | None = None,
) -> WakeData:
    """Simulate the wake and its stand-in for measurement, or read them from ``cache``.

    Takes about half a minute on two cores. The same seed gives the same bits on the same machine,
    whatever the number of threads.

    Args:
        seed: of every random draw: Reynolds numbers, turbulence, vibration, noise.
        quick: fewer and shorter trajectories.
        cache: folder for the result; the file is written once, complete or not at all.
        progress: called with (frames done, frames in all) from the calling thread.
        settings: everything else; its own seed is replaced by ``seed``.

    Raises:
        FileDamagedError: if the cached file is damaged; delete it to have it made again.
    """
    if settings is not None and quick:
        raise ConfigError("`quick` and `settings` exclude each other. Give one of them.")
    if settings is None:
        settings = WakeSettings.quick(seed) if quick else WakeSettings(seed)
    settings = replace(settings, seed=seed)
    if cache is None:
        return _assemble(simulate_wake(settings, progress), settings)
    path = Path(cache) / f"wake-{fingerprint(asdict(settings), CODE_VERSION)[:16]}.safetensors"
    _store(path, settings, progress)
    tensors, metadata = load_tensors(path)
    if fingerprint(tensors) != metadata.get("sha256"):
        raise FileDamagedError(
            f"`{path}` does not hold the values that were written to it. "
            "Delete it to have it made again."
        )
    return _assemble(tensors, settings)


@ranks.by_main
def _store(path: Path, settings: WakeSettings, progress: Progress | None) -> None:
    """Simulate and write, unless that was done."""
    with sole_writer(path):
        if not path.is_file():
            made = simulate_wake(settings, progress)
            save_tensors(path, made, {"settings": asdict(settings), "sha256": fingerprint(made)})


def _assemble(tensors: dict[str, Tensor], settings: WakeSettings) -> WakeData:
    """Cut the trajectories into splits and windows."""
    splits, reynolds = {}, {}
    for kind, measured in (("numerical", (0, 1, 2)), ("real", (0, 1))):
        names = [f"{kind}_{part}" for part in _PARTS[kind]]
        sizes = [getattr(settings, name) for name in names]
        for name, frames, numbers in zip(
            names,
            torch.split(tensors[kind], sizes),
            torch.split(tensors[f"{kind}_reynolds"], sizes),
            strict=True,
        ):
            splits[name] = ArrayWindows(
                list(frames),
                settings.history,
                settings.horizon,
                stride=settings.stride,
                channels=("u", "v", "p"),
                measured=measured,
                units=("U", "U", "rho U^2"),
                spacing=(1 / CELLS_PER_DIAMETER, 1 / CELLS_PER_DIAMETER),
                time_step=settings.frame_time,
            )
            reynolds[name] = tuple(numbers.tolist())
    return WakeData(
        **splits,
        reynolds=reynolds,
        viscosity_offset=float(tensors["viscosity_offset"]),
        settings=settings,
    )
