"""What a config names, opened: windows, their statistics, and operators from files."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from r2no import backbones, devices, ranks
from r2no.adaptation import AdaptedModel, load
from r2no.backbones.formats import Checkpoint, read_checkpoint
from r2no.data.normalise import Normaliser
from r2no.data.window import Seen, Window
from r2no.errors import ConfigError, EmptySplitError, ShapeError
from r2no.progress import Reporter, Step
from r2no.realpdebench.protocol.config import BenchmarkConfig, EvaluateConfig, TrainConfig
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.statistics import (
    Normalisers,
    fit_statistics,
    load_benchmark_normalisers,
)
from r2no.training import PhysicalOperator, load_operator

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


class Source(NamedTuple):
    """An operator, and the system and network it is of."""

    operator: PhysicalOperator
    system: str
    backbone: str

    @property
    def normalisers(self) -> tuple[Normaliser, Normaliser]:
        """That of histories and that of targets."""
        return self.operator.normalisers


def open_source(
    config: BenchmarkConfig, path: Path, *, cache: Path | None, reporter: Reporter
) -> Source:
    """The operator in a checkpoint; one that brings no network config needs the config's names.

    Raises:
        ConfigError: if the file and the config name different systems or networks, or neither
            names one.
    """
    notes = _checkpoint(path).context
    system = _agreed("system", config.system, notes.get("system"), path)
    if notes:
        backbone = _agreed("backbone", config.backbone, notes.get("backbone"), path)
        operator = load_operator(path)[0].to(devices.choose(config.device))
        return Source(operator, system, backbone)
    backbone = config.backbone or _identified(path, system)
    windows = open_windows(config, system, "real", "val")
    network = build_network(backbone, windows, small=config.small)
    backbones.load_checkpoint(network, path)
    statistics = normalisers(config, system, cache, reporter)
    operator = PhysicalOperator(network, *statistics).eval().to(devices.choose(config.device))
    return Source(operator, system, backbone)


def source_system(config: BenchmarkConfig, path: Path) -> str:
    """The system of a checkpoint, without building its operator."""
    return _agreed("system", config.system, _checkpoint(path).context.get("system"), path)


def start_operator(config: TrainConfig, windows: RealPDEBench, reporter: Reporter) -> Source:
    """What a training starts from: fresh weights, DPOT's backbone, or a checkpoint."""
    cache = config.folder / "cache"
    if config.source is not None:
        return open_source(config, config.source, cache=cache, reporter=reporter)
    statistics = normalisers(config, config.system, cache, reporter)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.resolved().seed)
        network = build_network(config.backbone, windows, small=config.small)
    if config.pretrained is not None:
        _checkpoint(config.pretrained)
        record = backbones.import_dpot_pretraining(network, config.pretrained)
        reporter.say(f"{record.share:.0%} of the network came from {config.pretrained}.")
    elif config.backbone == "dpot_s" and not config.small:
        warnings.warn(
            "DPOT starts from random weights; the published protocol starts from its released "
            "backbone. Fetch it with `r2no bench checkpoints dpot` and give it as `pretrained`.",
            stacklevel=2,
        )
    operator = PhysicalOperator(network, *statistics).to(devices.choose(config.device))
    return Source(operator, config.system, config.backbone)


def build_network(backbone: str, windows: RealPDEBench, *, small: bool) -> nn.Module:
    """The published network of the windows' system, or a small one for their grid."""
    if not small:
        return backbones.build(backbone, system=windows.system.name)
    shape_in, shape_out = block_shapes(windows)
    config = backbones.small_config(backbone, shape_in=shape_in, shape_out=shape_out)
    return backbones.build(backbone, config=config)


def with_names(model: AdaptedModel, source: Source) -> AdaptedModel:
    """The model, whose artifact will say of which system and network it is."""
    names = {"system": source.system, "backbone": source.backbone}
    return replace(model, provenance={**model.provenance, **names})


def open_artifact(config: EvaluateConfig, *, reporter: Reporter) -> tuple[AdaptedModel, Source]:
    """An artifact and its source: the one it brings, or the config's."""
    if config.source is not None:
        source = open_source(config, config.source, cache=None, reporter=reporter)
        return load(config.model, source.operator, device=config.device), source
    model, path = load(config.model, device=config.device), config.model
    system = _agreed("system", config.system, model.provenance.get("system"), path)
    backbone = _agreed("backbone", config.backbone, model.provenance.get("backbone"), path)
    if not isinstance(model.source, PhysicalOperator):
        raise ConfigError(
            f"The source of `{path}` is a `{type(model.source).__name__}`, not a network of the "
            "benchmark. Score it with `r2no evaluate` on its own data."
        )
    return model, Source(model.source, system, backbone)


def _checkpoint(path: Path) -> Checkpoint:
    if not path.is_file():
        raise ConfigError(
            f"There is no checkpoint `{path}`. Give a file that `r2no bench train` wrote, or one "
            "of `r2no bench checkpoints fetch`."
        )
    return read_checkpoint(path)


def _agreed(argument: str, given: str | None, stored: Any, path: Path) -> str:
    if given is None and stored is None:
        raise ConfigError(f"`{path}` does not say its {argument}. Give `{argument}`.")
    if given is not None and stored is not None and given != stored:
        raise ConfigError(
            f"`{argument}` is {given}, but `{path}` is of {stored}. Leave `{argument}` out or give "
            "another file."
        )
    return str(given or stored)


def _identified(path: Path, system: str) -> str:
    fits = [name for known, name in backbones.describe(path).fits if known == system]
    if not fits:
        raise ConfigError(
            f"The weights in `{path}` fit no published network of {system}. Give `backbone`, and "
            "`small` if they are of a small network."
        )
    return fits[0]
