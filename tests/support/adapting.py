"""A toy adaptation: sources of every kind, settings and splits that take a second."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from r2no import backbones, operators
from r2no.adaptation import AdaptedModel, AdaptSettings, EnsembleSettings, RepairSettings
from r2no.data import ArrayWindows, Normaliser
from r2no.training import Persistence, PhysicalOperator, TrainSettings
from tests.support.waves import travelling_wave

SETTINGS = AdaptSettings(
    members=2,
    batch_size=5,
    repair=RepairSettings(
        width=4, depth=2, steps=3, train=TrainSettings(epochs=3, batch_size=6, lr=5e-3)
    ),
    ensemble=EnsembleSettings(radial=4, angular=4),
)


class Source(nn.Module):
    """Persistence with a trainable factor, so that there is something to freeze."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.9))
        self.last = Persistence(4, 2)

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        return self.factor * self.last(history)


def split(seeds: Iterable[int], **options: Any) -> ArrayWindows:
    waves = [travelling_wave(seed) for seed in seeds]
    return ArrayWindows(waves, 4, 4, stride=3, measured=(0,), **options)


TRAIN, FIT = split(range(2)), split(range(10, 14))
HISTORY = torch.stack([split(range(20, 21))[number].history for number in (0, 4)])


def own_operator() -> PhysicalOperator:
    """A backbone of r2no."""
    torch.manual_seed(0)
    config = backbones.small_config("fno", shape_in=(4, 8, 12, 2), shape_out=(4, 8, 12, 2))
    statistics = Normaliser(torch.tensor([0.1, 0.0]), torch.tensor([0.7, 1.0]))
    return PhysicalOperator(backbones.build("fno", config=config), statistics, statistics)


def factory_operator(**options: Any) -> operators.WrappedOperator:
    """A network of a factory, wrapped."""
    network = operators.from_python("tests.support.networks:FrameMix", seed=5)
    statistics = Normaliser(torch.tensor([0.1, 0.3]), torch.tensor([0.7, 1.1]))
    return operators.wrap(
        network, "B (C T) H W", FIT.fields, normaliser=(statistics, statistics), **options
    )


def in_double(model: AdaptedModel) -> AdaptedModel:
    """The same model computing in float64, for comparisons that rounding should not blur."""
    loops = model.loops

    def wide(statistics: Normaliser) -> Normaliser:
        return Normaliser(statistics.shift.double(), statistics.scale.double())

    return replace(
        model,
        source=copy.deepcopy(model.source).double(),
        probe=model.probe.double(),
        loops=replace(
            loops,
            modules=tuple(copy.deepcopy(module).double() for module in loops.modules),
            of_history=wide(loops.of_history),
            of_field=wide(loops.of_field),
        ),
    )


def exported(path: Path, network: nn.Module) -> Path:
    """A network as a program of torch.export, for any number of windows."""
    batch = {0: torch.export.Dim("batch")}
    values = torch.zeros(2, 8, 8, 12)
    torch.export.save(torch.export.export(network.eval(), (values,), dynamic_shapes=(batch,)), path)
    return path
