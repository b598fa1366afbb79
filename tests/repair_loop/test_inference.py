"""Folded modules compute in fewer operations on a CPU, and what they compute stays the same."""

import copy
import io
import pickle
import platform
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from r2no import RepairUNet, repair
from r2no.repair_loop import inference


def module(padding="zeros", depth=2, width=16):
    torch.manual_seed(0)
    made = RepairUNet(6, 6, width=width, depth=depth, padding=padding)
    history, estimate = fields()
    with torch.no_grad():
        for _ in range(3):
            made.train()(history, estimate)
    return made.eval()


def fields(grid=(8, 12), batch=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, 2, *grid, 3, generator=generator) for _ in range(2)]


def is_fast(fast, grid=(8, 12)):
    """Whether a roll-out on this grid goes through prepared levels."""
    plane = fast._plane("estimate", fields(grid)[1], 6)
    with torch.no_grad():
        return fast._kept.levels(fast, plane, PARTS) is not None


PARTS = tuple({type(part) for part in module().folded().modules()})


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("padding", ["zeros", "circular", "replicate", "reflect"])
@pytest.mark.parametrize("grid", [(8, 12), (9, 13), (16, 8)], ids=str)
@pytest.mark.parametrize("most", [0.0, 0.2, 100.0], ids=["never", "deep", "always"])
def test_roll_out_equals_the_plain_module(padding, grid, most, monkeypatch):
    """Whatever convolutions are exchanged with their up-sampling."""
    monkeypatch.setattr(inference, "_MOST", most)
    plain, (history, estimate) = module(padding, depth=2 - (padding == "reflect")), fields(grid)
    expected = repair(plain.double(), history.double(), estimate.double(), steps=4)
    found = repair(plain.float().folded(), history, estimate, steps=4)
    assert float((found - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("mode", ["zeros", "circular", "replicate", "reflect"])
@pytest.mark.parametrize("grid", [(4, 6), (3, 5)], ids=str)
def test_exchanged_convolution_is_that_of_the_upsampled_field(mode, grid):
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(7, 5, 3, padding=1, padding_mode=mode).double()
    values = torch.randn(2, 7, *grid).double()
    taps = torch.einsum("ocyx,bchw->bxyohw", conv.weight, values).flatten(1, 3)
    taps = taps.contiguous(memory_format=torch.channels_last)
    larger = F.interpolate(values, scale_factor=2, mode="bilinear", align_corners=True)
    found = inference._exchanged(taps, conv.bias, mode)
    torch.testing.assert_close(found, conv(larger), rtol=1e-12, atol=1e-12)


def test_double_precision_is_left_to_the_plain_levels():
    plain, (history, estimate) = module().double(), fields()
    found = repair(plain.folded(), history.double(), estimate.double(), steps=3)
    expected = repair(plain, history.double(), estimate.double(), steps=3)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_loaded_and_changed_weights_are_followed():
    fast, (history, estimate) = module().folded(), fields()
    before = fast(history, estimate)
    state = {name: 1.5 * value for name, value in fast.state_dict().items()}
    other = copy.deepcopy(fast)
    fast.load_state_dict(state)
    for value in other.parameters():
        value.mul_(1.5)
    plain = copy.deepcopy(other)
    plain._kept = None
    expected = plain(history, estimate)
    assert not torch.allclose(expected, before, atol=1e-3)
    torch.testing.assert_close(fast(history, estimate), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other(history, estimate), expected, rtol=1e-5, atol=1e-6)


def test_moves_and_other_shapes_are_followed():
    plain, fast = module(), module().folded()
    for grid, batch in [((8, 12), 2), ((12, 8), 1), ((8, 12), 3)]:
        history, estimate = fields(grid, batch)
        torch.testing.assert_close(
            fast(history, estimate), plain(history, estimate), rtol=1e-5, atol=1e-6
        )
    history, estimate = fields()
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    assert is_fast(fast) == (x86 and torch.backends.mkldnn.is_available())
    twice = fast.double()(history, estimate)
    assert not is_fast(fast)
    torch.testing.assert_close(twice, plain(history, estimate), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast.float()(history, estimate), twice, rtol=1e-5, atol=1e-6)
    assert fast.to("meta")(*(x.to("meta") for x in (history, estimate))).shape == estimate.shape


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own jvp
def test_gradients_hooks_and_other_parts_take_the_plain_levels():
    history, estimate = fields()
    fast = module().folded()
    expected = fast(history, estimate)
    with torch.enable_grad():
        asked = estimate.clone().requires_grad_()
        fast(history, asked).sum().backward()
    assert float(asked.grad.abs().max()) > 0
    value, tangent = torch.func.jvp(
        lambda h: fast(history, h), (estimate,), (torch.ones_like(estimate),)
    )
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    assert float(tangent.abs().max()) > 0
    seen = []
    hook = fast.second.register_forward_hook(lambda *_: seen.append(1))
    fast(history, estimate)
    hook.remove()
    assert len(seen) == 1
    fast.second.conv = torch.nn.Sequential(fast.second.conv, torch.nn.ReLU())
    plain = copy.deepcopy(fast)
    plain._kept = None
    assert torch.equal(fast(history, estimate), plain(history, estimate))


def test_inference_mode_gives_the_same():
    history, estimate = fields()
    expected = module()(history, estimate)
    with torch.inference_mode():
        fast = module().folded()
        found = fast(history, estimate)
        for value in fast.parameters():  # which count no changes
            value.zero_()
        nothing = fast(history, estimate)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(nothing, torch.zeros_like(nothing))


def test_folded_module_can_be_stored_and_traced():
    fast, given = module().folded(), fields()
    expected = fast(*given)
    stream = io.BytesIO()
    torch.save(fast, stream)
    stream.seek(0)
    restored = torch.load(stream, weights_only=False)
    program = torch.export.export(fast, tuple(given)).module()
    for answer in (restored(*given), copy.deepcopy(fast)(*given), program(*given)):
        torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-6)


def _absent():
    return SimpleNamespace()


def _raising():
    def refuse(*_):
        raise RuntimeError("could not create a primitive")

    return SimpleNamespace(_reorder_convolution_weight=refuse, _convolution_pointwise=refuse)


def _of_another_signature():
    real = torch.ops.mkldnn
    return SimpleNamespace(
        _reorder_convolution_weight=real._reorder_convolution_weight,
        _convolution_pointwise=lambda values, weight: values,
    )


def _wrong():
    real = torch.ops.mkldnn
    return SimpleNamespace(
        _reorder_convolution_weight=real._reorder_convolution_weight,
        _convolution_pointwise=lambda *given: 1.01 * real._convolution_pointwise(*given),
    )


@pytest.fixture
def tried_anew():
    inference._operators_serve.cache_clear()
    yield
    inference._operators_serve.cache_clear()


@pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="the plain levels in any case"
)
@pytest.mark.usefixtures("tried_anew")
@pytest.mark.parametrize("operators", [_absent, _raising, _of_another_signature, _wrong])
def test_operators_that_do_not_serve_leave_the_plain_levels_with_one_word(operators, monkeypatch):
    history, estimate = fields()
    plain = module().folded()
    plain._kept = None
    expected = plain(history, estimate)
    monkeypatch.setattr(torch.ops, "mkldnn", operators())
    fast = module().folded()
    with pytest.warns(RuntimeWarning, match="do not serve here"):
        found = fast(history, estimate)
    assert torch.equal(found, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(module().folded()(history, estimate), expected)


def test_what_is_laid_out_for_a_processor_is_never_sent():
    fast, given = module().folded(), fields()
    before = len(pickle.dumps(fast))
    expected = fast(*given)
    sent = pickle.dumps(fast)
    assert len(sent) == before
    for other in (pickle.loads(sent), copy.deepcopy(fast)):
        assert other._kept._kept is None
        torch.testing.assert_close(other(*given), expected, rtol=1e-5, atol=1e-6)
    assert all(value.layout == torch.strided for value in fast.state_dict().values())
