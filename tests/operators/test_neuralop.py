"""The real neuraloperator package: its FNO, trained by its Trainer, adapted, shipped, exported.

`make test` installs it with the extra `dev`. Where it is missing these tests fail, since r2no
promises to work with it.
"""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import r2no
from r2no import operators, storage
from r2no.adaptation import readouts, score_readouts
from r2no.data import ArrayWindows
from tests.support.adapting import SETTINGS
from tests.support.waves import travelling_wave

try:
    from neuralop import Trainer
    from neuralop.losses import LpLoss
    from neuralop.models import FNO
    from neuralop.training import AdamW
except ImportError as error:
    raise ImportError(
        "These tests need the package `neuraloperator`, which the extra `dev` brings. Run "
        '`make install`, or pip install -c constraints.txt -e ".[dev]".'
    ) from error

ARGUMENTS: dict[str, Any] = {
    "n_modes": (4, 6),
    "in_channels": 4,
    "out_channels": 4,
    "hidden_channels": 8,
    "n_layers": 2,
}
LAYOUT = "B (T C) H W"


def split(seeds: range) -> ArrayWindows:
    """Measurements: one channel, four frames to four."""
    return ArrayWindows([travelling_wave(seed)[..., :1] for seed in seeds], 4, 4, stride=3)


def simulated() -> list[dict[str, torch.Tensor]]:
    """Windows of slower, weaker waves as neuraloperator's Trainer takes them."""
    pairs = []
    for seed in range(100, 104):
        wave = 0.8 * travelling_wave(seed, frames=60)[::2, ..., 0]
        pairs += [{"x": wave[s : s + 4], "y": wave[s + 4 : s + 8]} for s in range(0, 22, 2)]
    return pairs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained and saved by neuraloperator itself."""
    torch.manual_seed(0)
    model = FNO(**ARGUMENTS)
    trainer = Trainer(model=model, n_epochs=8)
    optimiser = AdamW(model.parameters(), lr=1e-2)
    with warnings.catch_warnings():  # their Trainer hands everything to everyone, who say so
        warnings.filterwarnings("ignore", message=r".*received unexpected keyword")
        trainer.train(
            train_loader=DataLoader(simulated(), batch_size=11, shuffle=True),
            test_loaders={},
            optimizer=optimiser,
            scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 8),
            training_loss=LpLoss(d=2, reduction="sum"),
        )
    path = tmp_path_factory.mktemp("neuralop")
    model.save_checkpoint(path, "fno")
    return path


@pytest.fixture(scope="module")
def source(folder: Path) -> operators.WrappedOperator:
    network = operators.from_python(
        "neuralop.models:FNO", folder / "fno_state_dict.pt", **ARGUMENTS
    )
    return operators.wrap(network, LAYOUT, split(range(1)).fields)


@pytest.fixture(scope="module")
def model(source: operators.WrappedOperator) -> r2no.AdaptedModel:
    return r2no.adapt(source, split(range(3)), split(range(10, 14)), members=1, settings=SETTINGS)


def histories() -> torch.Tensor:
    windows = split(range(20, 21))
    return torch.stack([windows[number].history for number in (0, 3, 5)])


def test_their_checkpoint_gives_their_answer_without_unpickling_their_notes(
    folder: Path, source: operators.WrappedOperator
) -> None:
    theirs = FNO.from_checkpoint(folder, "fno").eval()
    x = histories()
    expected = theirs(x.squeeze(-1)).unsqueeze(-1)
    torch.testing.assert_close(source(x), expected)


def test_their_operator_is_adapted_and_gains(model: r2no.AdaptedModel) -> None:
    scores, _ = score_readouts(model, split(range(20, 22)), readouts(model))
    assert scores["r2no_m1"]["rmse"] < 0.9 * scores["source"]["rmse"]


def test_their_operator_comes_along_in_the_artifact(
    model: r2no.AdaptedModel, tmp_path: Path
) -> None:
    path = model.save(tmp_path / "model.r2no")
    assert storage.read_json(path / "manifest.json")["source"]["factory"] == "neuralop.models:FNO"
    again = r2no.load(path, trust_source=True)
    assert torch.equal(again.predict(histories()), model.predict(histories()))


def test_whole_predictor_with_their_operator_is_exported(
    model: r2no.AdaptedModel, tmp_path: Path
) -> None:
    """Their code fixes the batch size, so the program takes one window."""
    with pytest.warns(UserWarning, match="one window at a time"):
        path = model.export(tmp_path / "model.pt2")
    program = torch.export.load(path).module()
    expected = model.predict(histories())
    found = torch.cat([program(one[None]) for one in histories()])
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5
