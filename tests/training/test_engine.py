import json

import pytest
import torch
from torch import nn

from r2no import storage
from r2no.errors import (
    EmptySplitError,
    FileDamagedError,
    FingerprintError,
    NonFiniteError,
    StorageError,
)
from r2no.training import Problem, TrainSettings, optimise
from r2no.training.schedule import epoch_order


class Interrupted(Exception):
    pass


class Regression:
    """Regression with dropout and BatchNorm, so that every kind of state matters."""

    def __init__(self, stop_after: int | None = None):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(23, 3, generator=generator)
        self.y = self.x.sum(1, keepdim=True)
        torch.manual_seed(1)
        self.net = nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1)
        )
        self.left = stop_after

    def loss(self, numbers):
        if self.left is not None:
            if self.left == 0:
                raise Interrupted
            self.left -= 1
        value = (self.net(self.x[numbers]) - self.y[numbers]).square().mean()
        return value, {"loss": value}

    def validate(self):
        return float((self.net(self.x) - self.y).detach().square().mean())

    def run(self, folder, key="k", save_seconds=1e9, **settings):
        settings = TrainSettings(**{"epochs": 4, "batch_size": 5, "lr": 0.05, **settings})
        problem = Problem(self.net, self.loss, self.validate, 23, key)
        return optimise(problem, settings, folder=folder, save_seconds=save_seconds)


@pytest.mark.parametrize("stop", [0, 1, 7, 12, 19])
@pytest.mark.parametrize("save_seconds", [0.0, 1e9], ids=["every update", "per epoch"])
def test_interrupted_run_ends_in_the_same_bits(tmp_path, stop, save_seconds):
    whole = Regression()
    expected = whole.run(tmp_path / "whole")
    stopped = Regression(stop_after=stop)
    with pytest.raises(Interrupted):
        stopped.run(tmp_path / "cut", save_seconds=save_seconds)
    again = Regression()
    found = again.run(tmp_path / "cut", save_seconds=save_seconds)
    assert found == expected
    for mine, theirs in zip(
        again.net.state_dict().values(), whole.net.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_finished_run_is_not_repeated(tmp_path):
    first = Regression().run(tmp_path)
    assert Regression(stop_after=0).run(tmp_path) == first


def test_training_lowers_the_score_and_keeps_the_best(tmp_path):
    problem = Regression()
    before = problem.validate()
    result = problem.run(tmp_path, epochs=20)
    assert result.best_score < 0.2 * before
    assert result.best_score == min(row["score"] for row in result.log)
    assert problem.validate() == pytest.approx(result.best_score)


def test_log_is_written_as_lines_and_as_a_table(tmp_path):
    result = Regression().run(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows == result.log
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + len(rows)


def test_random_state_outside_is_untouched(tmp_path):
    problem = Regression()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    problem.run(tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_folder_of_another_run_is_refused(tmp_path):
    Regression().run(tmp_path)
    with pytest.raises(FingerprintError, match="other settings"):
        Regression().run(tmp_path, lr=0.01)
    with pytest.raises(FingerprintError):
        Regression().run(tmp_path, key="other data")


def test_damaged_state_is_refused_by_name(tmp_path):
    Regression().run(tmp_path)
    state = tmp_path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(FileDamagedError, match=r"state\.safetensors"):
        Regression().run(tmp_path)


def test_full_disk_keeps_the_last_good_state(tmp_path, monkeypatch):
    """The third write fails as on a full disk; the state of before still loads and goes on."""
    whole = Regression()
    expected = whole.run(tmp_path / "whole")
    real, calls = storage.os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 12:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        Regression().run(tmp_path / "cut", save_seconds=0.0)
    monkeypatch.undo()
    assert not list((tmp_path / "cut").glob("*.tmp"))
    assert Regression().run(tmp_path / "cut") == expected


def test_unwritable_folder_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(StorageError, match="file"):
        Regression().run(blocked / "run")


def test_diverging_loss_is_named(tmp_path):
    with pytest.raises(NonFiniteError, match="Lower `lr`"):
        Regression().run(tmp_path, lr=1e30, clip=0)


def test_empty_split_is_named(tmp_path):
    given = Regression()
    problem = Problem(given.net, given.loss, given.validate, 0, "")
    with pytest.raises(EmptySplitError):
        optimise(problem, TrainSettings(), folder=tmp_path)


def test_epochs_visit_every_window_once_in_new_order():
    first, second = epoch_order(50, 3, 0), epoch_order(50, 3, 1)
    assert sorted(first) == list(range(50))
    assert first != second
    assert first == epoch_order(50, 3, 0)


def test_cosine_runs_from_lr_to_final_lr():
    settings = TrainSettings(epochs=12, lr=3e-4, final_lr=1e-6)
    assert settings.lr_at(0, 10) == pytest.approx(3e-4)
    assert settings.lr_at(9, 10) == pytest.approx(3e-4)  # stepped per epoch
    assert settings.lr_at(60, 10) == pytest.approx((3e-4 + 1e-6) / 2)
    assert settings.lr_at(120, 10) == pytest.approx(1e-6)


def test_contradictory_lengths_are_refused():
    with pytest.raises(ValueError, match="either `epochs` or `updates`"):
        TrainSettings(epochs=3, updates=5)
    with pytest.raises(ValueError, match="learning_rate"):
        TrainSettings(learning_rate=1.0)


def test_a_reader_is_told_the_epoch_also_after_a_resume(tmp_path):
    def run(given, seen):
        def read(numbers, epoch):
            seen.append(epoch)
            return numbers

        def validate():
            return given.validate(), {"other": 2.0}

        problem = Problem(given.net, given.loss, validate, 23, "k", read=read)
        settings = TrainSettings(epochs=4, batch_size=5, lr=0.05)
        return optimise(problem, settings, folder=tmp_path, save_seconds=0.0)

    first, second = [], []
    with pytest.raises(Interrupted):
        run(Regression(stop_after=12), first)
    result = run(Regression(), second)
    assert (sorted(set(first)), sorted(set(second))) == ([0, 1, 2], [2, 3])
    assert first == sorted(first)
    assert second == sorted(second)
    assert len(result.losses) == 20
    assert [row["other"] for row in result.log] == [2.0] * 4
