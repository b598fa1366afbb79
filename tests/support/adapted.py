"""A small adapted model with two measured channels, one of a hostile name, and gappy test data."""

from functools import cache

import torch

import r2no
from r2no import FourierCells
from r2no.adaptation import AdaptedModel, AdaptSettings, EnsembleSettings, RepairSettings
from r2no.data import ArrayWindows
from r2no.ensemble import Columns, FitPlan, FittedEnsemble, GramSums
from r2no.report import Evaluation, evaluate
from r2no.training import Persistence, TrainSettings
from tests.support.waves import travelling_wave

HOSTILE = '</script><script>alert("x")</script>'
UNITS = ("m/s", "<b>")


def recording(seed: int, *, gaps: bool = False) -> torch.Tensor:
    """Two moving channels; with ``gaps`` a fifth of the values is NaN."""
    one, two = travelling_wave(seed)[..., :1], travelling_wave(seed + 100)[..., :1]
    frames = torch.cat([one, 0.5 * two], -1)
    if gaps:
        holes = torch.rand(frames.shape, generator=torch.Generator().manual_seed(seed)) < 0.2
        frames[holes] = torch.nan
    return frames


def split(seeds: range, *, gaps: bool = False) -> ArrayWindows:
    """Windows of 4 + 4 frames on 8 x 12."""
    return ArrayWindows(
        [recording(seed, gaps=gaps) for seed in seeds],
        4,
        4,
        stride=3,
        channels=("u", HOSTILE),
        units=UNITS,
        mask="nan" if gaps else None,
        time_step=0.5,
    )


def settings(cells: str = "auto") -> AdaptSettings:
    """Two members of three steps."""
    train = TrainSettings(epochs=3, batch_size=6, lr=5e-3)
    return AdaptSettings(
        members=2,
        batch_size=5,
        repair=RepairSettings(width=4, depth=2, steps=3, train=train),
        ensemble=EnsembleSettings(radial=8, angular=4, cells=cells),
    )


@cache
def model(cells: str = "auto") -> AdaptedModel:
    """Persistence, adapted."""
    source = Persistence(4, 2)
    return r2no.adapt(source, split(range(3)), split(range(10, 14)), settings=settings(cells))


@cache
def instant() -> AdaptedModel:
    """The same without repair modules, with a further operator."""
    chosen = settings().model_copy(update={"members": 0})
    also = {"pretrained": Faded(4, 2)}
    source = Persistence(4, 2)
    return r2no.adapt(source, split(range(3)), split(range(10, 14)), also=also, settings=chosen)


class Faded(Persistence):
    """Persistence at half its size."""

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        forecast: torch.Tensor = 0.5 * super().forward(history)
        return forecast


@cache
def evaluation(gaps: bool = False) -> Evaluation:
    """The model on two new recordings."""
    return evaluate(model(), split(range(20, 22), gaps=gaps))


def by_hand(cells: FourierCells, groups: int, rng: torch.Generator) -> FittedEnsemble:
    """Two channels with ``groups`` groups of lead time each, random positive sums."""
    columns = Columns(1, (1, 2))
    shape = (cells.num_cells, 2 * groups, columns.number + 1)
    rows = torch.randn(*shape, 9, generator=rng, dtype=torch.float64)
    sums = GramSums(
        (rows @ rows.mT)[None] * cells.occupied[:, None, None, None], torch.ones(1).double()
    )
    weights = torch.randn(*shape[:2], columns.number, generator=rng).double()
    return FittedEnsemble(cells, FitPlan(0.1, (0, 1)), columns, weights, sums)
