"""Networks answer in evaluation mode wherever they come in, each window by itself."""

import copy

import pytest
import torch
from tests.support.adapting import FIT, HISTORY, SETTINGS, TRAIN, Source
from torch import nn

import r2no
from r2no.checks import changed
from r2no.errors import ConfigError, FingerprintError

INSTANT = changed(SETTINGS, members=0)


class Wavering(nn.Module):
    """Answers differently, and differently each time, in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm3d(4), nn.Dropout(0.3)
        nn.init.constant_(self.norm.running_mean, 0.2)

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(history)) + 0.5 * history[:, -1:]


def adapt(source, **options):
    return r2no.adapt(source, TRAIN, FIT, settings=INSTANT, **options)


def test_a_network_fresh_from_its_class_is_recognised_and_left_as_it_is(tmp_path):
    source = Wavering()
    model = adapt(source)
    expected = model.predict(HISTORY)
    model.save(tmp_path / "model.r2no", include_source=False)
    fresh = Wavering()
    state = copy.deepcopy(fresh.state_dict())
    found = r2no.load(tmp_path / "model.r2no", source=fresh)
    assert found.predict(HISTORY).equal(expected)
    assert all(value.equal(state[name]) for name, value in fresh.state_dict().items())


def test_a_source_put_back_into_training_mode_forecasts_what_it_did():
    source = Wavering()
    model = adapt(source)
    expected = model.predict(HISTORY)
    source.train()
    assert model.predict(HISTORY).equal(expected)


def test_further_operators_are_in_evaluation_mode_too():
    further = Wavering()
    state = copy.deepcopy(further.state_dict())
    model = adapt(Source(), also={"further": further})
    assert model.predict(HISTORY).equal(model.predict(HISTORY))
    assert all(value.equal(state[name]) for name, value in further.state_dict().items())


def test_the_module_of_an_exported_program_is_a_source():
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(Wavering().eval(), (HISTORY,), dynamic_shapes=(batch,))
    expected = adapt(Wavering()).predict(HISTORY)
    torch.testing.assert_close(adapt(program.module()).predict(HISTORY), expected)


def test_a_source_that_mixes_the_windows_of_a_batch_is_named():
    with pytest.raises(FingerprintError, match="when others are in its batch"):
        adapt(lambda history: history - 0.5 * history.mean(0, keepdim=True))


def test_a_constant_source_of_which_little_varies_is_no_mixture():
    def far(history):
        return torch.full_like(history, 1e5) + 1e-3 * history

    assert adapt(far).verdict is not None


def test_a_class_is_no_source():
    with pytest.raises(ConfigError, match=r"Build a network of it, `Wavering\(\.\.\.\)`"):
        adapt(Wavering)
