"""Training on a pretend accelerator: the CPU's numbers, exact resume, few waits, named errors."""

import itertools

import pytest
import torch
from tests.support import pretend
from tests.support.adapting import own_operator
from tests.support.waves import travelling_wave
from torch import nn

from r2no import backbones, devices
from r2no.data import ArrayWindows, Normaliser
from r2no.errors import DeviceMemoryError
from r2no.training import PhysicalOperator, Problem, TrainSettings, optimise, train_operator


class Stopped(Exception):
    pass


class Dropping:
    """A regression whose dropout draws from the device's own generator."""

    def __init__(self, stop_after: int | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(20, 3, generator=generator).to(pretend.DEVICE)
        self.y = self.x.sum(1, keepdim=True)
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.net.to(pretend.DEVICE)
        self.left = stop_after

    def loss(self, numbers):
        if self.left is not None:
            if self.left == 0:
                raise Stopped
            self.left -= 1
        value = (self.net(self.x[numbers]) - self.y[numbers]).square().mean()
        return value, {"loss": value}

    def run(self, folder, save_seconds=0.0):
        settings = TrainSettings(epochs=3, batch_size=5, lr=0.05)

        def validate():
            return float((self.net(self.x) - self.y).square().mean())

        problem = Problem(self.net, self.loss, validate, 20, "k")
        return optimise(problem, settings, folder=folder, save_seconds=save_seconds)


@pytest.mark.parametrize("stop", [1, 6])
def test_dropout_on_a_device_resumes_bit_for_bit(tmp_path, stop):
    with pretend.accelerator():
        expected = Dropping().run(tmp_path / "whole")
        with pytest.raises(Stopped):
            Dropping(stop).run(tmp_path / "cut")
        torch.pretend.manual_seed(99)  # another process, another state
        assert Dropping().run(tmp_path / "cut").losses == expected.losses


def test_the_generator_of_the_device_is_left_as_it_was(tmp_path):
    with pretend.accelerator():
        problem = Dropping()
        before = torch.pretend.get_rng_state()
        problem.run(tmp_path)
        assert torch.equal(torch.pretend.get_rng_state(), before)


def test_an_update_waits_for_the_device_at_most_twice(tmp_path):
    with pretend.accelerator() as seen:
        problem = Dropping()
        waits = []

        def loss(numbers):
            waits.append((seen.waits, seen.back))
            return problem.loss(numbers)

        settings = TrainSettings(epochs=1, batch_size=2, lr=0.05)
        optimise(Problem(problem.net, loss, lambda: 0.0, 20, ""), settings, folder=tmp_path)
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(waits)]
    assert len(steps) == 9
    assert max(steps) <= (2, 0)


@pytest.mark.parametrize("name", backbones.names())
@pytest.mark.parametrize("wide", [True, False], ids=["cuda", "mps"])
def test_a_backbone_trains_on_the_device_as_on_the_cpu(tmp_path, name, wide):
    splits = [
        ArrayWindows([travelling_wave(seed)], 8, 8, stride=6, measured=(0,)) for seed in (0, 1)
    ]

    def trained(device):
        torch.manual_seed(0)
        config = backbones.small_config(name, shape_in=(8, 8, 12, 2), shape_out=(8, 8, 12, 2))
        statistics = Normaliser(torch.tensor([0.1, 0.0]), torch.tensor([0.7, 1.0]))
        operator = PhysicalOperator(backbones.build(name, config=config), statistics, statistics)
        settings = TrainSettings(epochs=None, updates=2, batch_size=3, schedule="cosine_update")
        operator.to(device)
        return train_operator(operator, *splits, settings, folder=tmp_path / str(device))

    expected = trained("cpu")
    with pretend.accelerator(wide=wide):
        found = trained(pretend.DEVICE)
    # its biases before a norm have no gradient but rounding, of which Adam makes full steps
    close = 5e-3 if name == "unet" else 1e-6
    assert found.losses[0] == pytest.approx(expected.losses[0], rel=1e-6)
    assert found.losses == pytest.approx(expected.losses, rel=close)
    assert found.best_score == pytest.approx(expected.best_score, rel=close)


def test_too_little_memory_names_the_batch_that_fits(tmp_path):
    problem = Dropping.__new__(Dropping)  # on the device with enough memory
    with pretend.accelerator():
        problem.__init__()
    with (
        pretend.accelerator(memory=4 * 8 * 4),  # four windows of eight hidden values
        pytest.raises(DeviceMemoryError, match=r"batch of 5 .* 2 would fit: set `batch_size` to 2"),
    ):
        problem.run(tmp_path)


def test_too_little_memory_of_the_cpu_names_the_batch_that_fits_too():
    def work(windows):
        return torch.empty(2 ** (60 if windows > 2 else 4), dtype=torch.uint8)

    with (
        pytest.raises(DeviceMemoryError, match=r"batch of 5 .* 2 would fit: set `batch_size` to 2"),
        devices.memory_named(5, work),
    ):
        work(5)


def test_weights_loaded_after_a_move_bring_their_normalisers():
    operator, other = own_operator(), own_operator()
    with torch.no_grad():
        other.history_shift += 0.5
        other.target_scale *= 2
    history = torch.randn(1, 4, 8, 12, 2)
    with pretend.accelerator():
        operator.to(pretend.DEVICE)
        operator.load_state_dict(other.state_dict())
        found = operator(history.to(pretend.DEVICE)).cpu()
    torch.testing.assert_close(found, other(history))
