"""Two processes over gloo give the weights and the sums of one, and end together."""

import builtins
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.adapting import FIT, SETTINGS, TRAIN, Source
from tests.support.processes import together
from torch import nn

from r2no import backbones, ranks, storage
from r2no.adaptation import adapt
from r2no.adaptation.task import initial_module
from r2no.checks import changed
from r2no.data import ArrayWindows, Normaliser
from r2no.errors import ConfigError
from r2no.progress import SILENT
from r2no.scoring import Observer, score
from r2no.training import (
    PhysicalOperator,
    Problem,
    TrainSettings,
    cached_source,
    optimise,
    train_operator,
    train_repair,
)
from r2no.training.distributed import synchronised

SETTINGS_OF_TEN = TrainSettings(epochs=None, updates=10, batch_size=5, lr=1e-3, validations=1)
HERE = "tests.training.test_distributed"


def wide(windows: ArrayWindows, frames: int, *, gaps: bool = False) -> ArrayWindows:
    """One recording in float64, where rounding is not what Adam follows in flat directions.

    Gaps are many at its beginning and few at its end, so windows differ in how many they have.
    """
    recording = windows.recordings[0].double().clone()
    if gaps:
        draw = torch.rand(recording.shape, generator=torch.Generator().manual_seed(7))
        recording[draw < torch.linspace(0.6, 0.0, len(draw))[:, None, None, None]] = torch.nan
    mask = "nan" if gaps else None
    return ArrayWindows([recording], frames, frames, stride=3, measured=(0,), mask=mask)


STATISTICS = Normaliser(
    torch.tensor([0.1, 0.0], dtype=torch.float64), torch.tensor([0.7, 1.0], dtype=torch.float64)
)


def trained_backbone(name: str, folder: Path, *, gaps: bool = False) -> dict[str, torch.Tensor]:
    """Ten updates of a small network; batches have five windows or four."""
    torch.manual_seed(0)
    train, fit = (wide(one, 8, gaps=gaps) for one in (TRAIN, FIT))  # DeepONet needs eight frames
    shape = train.fields.target_shape
    config = backbones.small_config(name, shape_in=shape, shape_out=shape)
    network = backbones.build(name, config=config).double()
    operator = PhysicalOperator(network, STATISTICS, STATISTICS)
    train_operator(operator, train, fit, SETTINGS_OF_TEN, folder=folder)
    with torch.no_grad():
        forecast = operator(fit[0].history[None])
    state, _ = storage.load_tensors(folder / "state.safetensors")
    return {name: one for name, one in state.items() if not one.is_complex()} | {
        "forecast": forecast  # complex weights can only be stored in single precision
    }


def trained_repair(
    folder: Path, *, checkpointing: bool = False, workers: int = 0, gaps: bool = False
) -> dict[str, torch.Tensor]:
    """Ten updates of a repair module; an epoch ends with one window for two processes."""
    repair = changed(SETTINGS.repair, checkpointing=checkpointing)
    module = initial_module(TRAIN.fields, changed(SETTINGS, repair=repair), 0).double()
    source = Source().double()
    train, fit = (
        (one, cached_source(source, one, folder))
        for one in (wide(TRAIN, 4, gaps=gaps), wide(FIT, 4, gaps=gaps))
    )
    assert len(train[0]) % SETTINGS_OF_TEN.batch_size == 1
    statistics = STATISTICS, STATISTICS
    settings = changed(SETTINGS_OF_TEN, workers=workers)
    train_repair(
        module, train, fit, statistics, repair.objective(), settings, folder=folder / "run"
    )
    return storage.load_tensors(folder / "run" / "state.safetensors")[0]


def two_members(folder: Path) -> None:
    train = TrainSettings(epochs=None, updates=3, batch_size=6)
    settings = changed(SETTINGS, members=2, repair=changed(SETTINGS.repair, train=train))
    adapt(Source(), TRAIN, FIT, settings=settings, folder=folder, reporter=SILENT)


TRAININGS = {
    **{name: partial(trained_backbone, name) for name in backbones.names()},
    "repair": trained_repair,
    "repair with checkpointing": partial(trained_repair, checkpointing=True),
    "fno with gaps": partial(trained_backbone, "fno", gaps=True),
    "repair with gaps": partial(trained_repair, gaps=True),
}


def everything(folder: str) -> None:
    """What each rank does for the tests below, in one start."""
    found: dict[str, Any] = {name: train(Path(folder) / name) for name, train in TRAININGS.items()}
    found["read by processes"] = trained_repair(Path(folder) / "readers", workers=1)
    found["gram"] = gram_sums(Path(folder) / "gram")
    two_members(Path(folder) / "members")
    refusals(folder)
    found["reads"] = half_the_reads(f"{folder}/reads")
    torch.save(found, f"{folder}-{ranks.rank()}.pt")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    for code, _, err in together(f"{HERE}:everything", folder, within=180):
        assert code == 0, err
        assert "Warning" not in err
    return folder


@pytest.mark.parametrize("name", TRAININGS)
def test_two_processes_train_like_one(name: str, both: Path, tmp_path: Path) -> None:
    alone = TRAININGS[name](tmp_path)
    for rank in range(2):
        found = torch.load(f"{both}-{rank}.pt")[name]
        assert found.keys() == alone.keys()
        for key in (key for key in alone if key.startswith(("module.", "losses", "forecast"))):
            scale = float(alone[key].abs().max())
            torch.testing.assert_close(found[key], alone[key], rtol=0, atol=1e-5 * scale, msg=key)


def test_two_processes_with_readers_of_their_own_give_the_same_bits(both: Path) -> None:
    for rank in range(2):
        found = torch.load(f"{both}-{rank}.pt")
        alone, read = found["repair"], found["read by processes"]
        assert alone.keys() == read.keys()
        assert all(torch.equal(alone[name], read[name]) for name in alone)


def gram_sums(folder: Path) -> torch.Tensor:
    """Sums of an instant model, which depend on no training."""
    settings = changed(SETTINGS, members=0)
    model = adapt(Source(), TRAIN, FIT, settings=settings, folder=folder, reporter=SILENT)
    assert model.ensemble.sums is not None
    return model.ensemble.sums.moments


def test_gram_sums_are_those_of_one_process(both: Path, tmp_path: Path) -> None:
    one = gram_sums(tmp_path)
    for rank in range(2):
        two = torch.load(f"{both}-{rank}.pt")["gram"]
        assert float((two - one).abs().max()) <= 1e-12 * float(one.abs().max())
    h0 = [sorted((folder / "source").glob("*.npy")) for folder in (tmp_path, both / "gram")]
    assert [path.name for path in h0[0]] == [path.name for path in h0[1]]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*h0, strict=True))


class Counted(ArrayWindows):
    """Windows that count how often each is read."""

    def __getitem__(self, index: int):  # type: ignore[no-untyped-def]
        self.__dict__.setdefault("reads", []).append(index)
        return super().__getitem__(index)


def half_the_reads(folder: str) -> tuple[int, int, list[str]]:
    """Every step of an adaptation that reads a split reads about half of it on each rank."""
    written: list[str] = []
    _watch_writes(written, folder)
    train, fit = (Counted(w.recordings, 4, 4, stride=3, measured=(0,)) for w in (TRAIN, FIT))
    statistics = Normaliser(STATISTICS.shift.float(), STATISTICS.scale.float())
    pair, settings = (statistics, statistics), changed(SETTINGS, members=1)
    adapt(Source(), train, fit, settings=settings, normalisers=pair, folder=folder)
    return len(train.reads), len(train) * (1 + 3 + 1 + 1), written  # h0, epochs, mean field, alarm


def _watch_writes(written: list[str], folder: str) -> None:
    """Note every file below a folder that Python opens for writing, makes or removes."""
    opened, made = builtins.open, os.open

    def note(path: object) -> None:
        if str(path).startswith(folder):
            written.append(str(path))

    def watched(path, mode="r", *args, **kwargs):  # type: ignore[no-untyped-def]
        if any(letter in mode for letter in "wax+"):
            note(path)
        return opened(path, mode, *args, **kwargs)

    def low(path, flags, *args, **kwargs):  # type: ignore[no-untyped-def]
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            note(path)
        return made(path, flags, *args, **kwargs)

    builtins.open, os.open = watched, low  # type: ignore[assignment]
    for name in ("mkdir", "unlink", "rename", "replace", "rmdir", "truncate"):
        before = getattr(os, name)

        def call(path, *args, _before=before, **kwargs):  # type: ignore[no-untyped-def]
            note(path)
            return _before(path, *args, **kwargs)

        setattr(os, name, call)


def test_each_process_reads_half_and_the_first_one_writes(both: Path) -> None:
    parts = [torch.load(f"{both}-{rank}.pt")["reads"] for rank in range(2)]
    for reads, whole, _ in parts:
        assert 0.4 * whole <= reads <= 0.6 * whole + 3  # and a window to try the source with
    assert parts[0][2]
    assert parts[1][2] == []


def nan_on_one(folder: str) -> None:
    """The second process meets NaN in its third update."""
    net = nn.Linear(2, 1)

    def loss(numbers: list[int]):  # type: ignore[no-untyped-def]
        loss.calls += 1  # type: ignore[attr-defined]
        value = net(torch.ones(len(numbers), 2)).square().mean()
        if ranks.rank() == 1 and loss.calls == 3:  # type: ignore[attr-defined]
            value = value * float("nan")
        return value, {"loss": value}

    loss.calls = 0  # type: ignore[attr-defined]
    optimise(Problem(net, loss, lambda: 1.0, 20, "k"), SETTINGS_OF_TEN, folder=folder)


def fails_on_one(folder: str) -> None:
    """The second process fails while the first waits for it."""
    if ranks.rank() == 1:
        raise ConfigError("`rank` must be 0, but is 1.")
    ranks.barrier()


@pytest.mark.parametrize(
    ("target", "word"), [("nan_on_one", "NonFiniteError"), ("fails_on_one", "`rank` must be 0")]
)
def test_one_that_fails_ends_both(target: str, word: str, tmp_path: Path) -> None:
    found = together(f"{HERE}:{target}", tmp_path)
    assert [code for code, _, _ in found] == [1, 1]
    assert word in found[1][2]
    assert "NonFiniteError" in found[0][2] or "another one ended" in found[0][2]


def refusals(folder: str) -> None:
    """What two processes cannot share."""
    windows = ArrayWindows([TRAIN.recordings[0][:8]], 4, 4, measured=(0,))
    net, few = nn.Linear(1, 1), "2 processes cannot share 1 window"
    with pytest.raises(ConfigError, match=few):
        cached_source(Source(), windows, folder)
    with pytest.raises(ConfigError, match=few):
        optimise(Problem(net, _none, lambda: 1.0, 1, ""), SETTINGS_OF_TEN, folder=folder)
    with pytest.raises(ConfigError, match="names no `sums`"):
        score({"source": Source()}, TRAIN, [Observer()], batch_size=4)


def _none(numbers: list[int]) -> tuple[torch.Tensor, dict[str, float]]:
    raise AssertionError


def test_members_go_to_different_processes_with_the_bits_of_one(both: Path, tmp_path: Path) -> None:
    two_members(tmp_path)
    for seed in (42, 43):
        paths = [
            path / f"repair-{seed}" / "best.safetensors" for path in (tmp_path, both / "members")
        ]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_one_process_keeps_batch_norm_as_it_is() -> None:
    net = nn.BatchNorm2d(3)
    with synchronised(net):
        assert "forward" not in net.__dict__
