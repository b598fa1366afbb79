"""Windows and statistics of a config, read with progress."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from r2no import devices, ranks
from r2no.data.window import Seen, Window
from r2no.errors import ConfigError, EmptySplitError, ShapeError
from r2no.progress import Reporter, Step
from r2no.realpdebench.protocol.config import BenchmarkConfig
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.statistics import (
    Normalisers,
    fit_statistics,
    load_benchmark_normalisers,
)
from r2no.training import PhysicalOperator

Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def open_windows(
    config: BenchmarkConfig, system: str, kind: str, split: str, **options: Any
) -> RealPDEBench:
    """One split of the config's data."""
    return RealPDEBench(
        config.data,
        system,
        kind,
        split,
        layout=config.layout,
        exclude=config.exclude,
        incomplete=config.incomplete,
        **options,
    )


def block_shapes(windows: RealPDEBench) -> Shapes:
    """(time, height, width, channel) of a history and of one forecast block."""
    fields, system = windows.fields, windows.system
    history = (system.history_frames, *fields.grid, len(fields.history_channels))
    return history, (system.horizon_frames, *fields.grid, len(fields.channels))


def check_operator(operator: PhysicalOperator, windows: RealPDEBench) -> None:
    """Refuse an operator that cannot forecast these windows, before any work is done."""
    check_not_empty(windows)
    shape_in, shape_out = block_shapes(windows)
    channels = operator.history_normaliser.shift.numel(), operator.target_normaliser.shift.numel()
    if channels != (shape_in[-1], shape_out[-1]):
        raise ShapeError(
            f"The statistics are of {channels[0]} history and {channels[1]} target channels, but "
            f"`{windows.system.name}` has {shape_in[-1]} and {shape_out[-1]}. Use those of this "
            "system's simulated training data."
        )
    with torch.no_grad():
        answer = devices.answer(operator.eval(), windows[0].history[None])
    found = tuple(answer.shape[1:])
    if found != shape_out:
        raise ShapeError(
            f"The network gives forecasts of (time, height, width, channel) = {found}, but these "
            f"windows have {shape_out}. Build it for this system and grid."
        )


def check_not_empty(windows: RealPDEBench) -> None:
    """Refuse a split without windows."""
    if len(windows) == 0:
        raise EmptySplitError(
            f"The {windows.split} split of `{windows.system.name}` holds no window of "
            f"{windows.length} frames (test mode `{windows.test_mode}`). Lower `autoregressive` or "
            "give another split."
        )


def read_through(sets: Sequence[RealPDEBench], reporter: Reporter) -> None:
    """Read every window once, so that damaged data are found before anything is written."""
    for windows in sets:
        check_not_empty(windows)
    for windows in sets:
        title = f"reading {windows.kind} {windows.split}"
        with reporter.step(title, len(windows)) as step:
            for number in ranks.share(range(len(windows))):
                windows[number]
                step.advance(ranks.world_size())
        ranks.barrier()


def normalisers(
    config: BenchmarkConfig, system: str, cache: Path | None, reporter: Reporter
) -> Normalisers:
    """Of the simulated training data, whatever is trained or scored; or of the file given."""
    if config.statistics not in ("exact", "benchmark"):
        path = Path(config.statistics)
        if not path.is_file():
            raise ConfigError(
                "`statistics` must be `exact`, `benchmark` or a file such as `mean_std.pt`, but "
                f"there is no file `{path}`."
            )
        return load_benchmark_normalisers(path)
    windows = open_windows(config, system, "numerical", "train")
    with reporter.step("statistics of the simulated training data", len(windows)) as step:
        found = fit_statistics(
            Counted(windows, step),
            compat="benchmark" if config.statistics == "benchmark" else None,
            cache=config.cache or cache,
        )
    return found.normalisers(config.normaliser)


class Counted(Seen):
    """Windows that report each access."""

    def __init__(self, windows: RealPDEBench, step: Step) -> None:
        super().__init__(windows)
        self._step, self.epoch = step, windows.epoch

    def __getitem__(self, index: int) -> Window:
        self._step.advance()
        return self._windows[index]
