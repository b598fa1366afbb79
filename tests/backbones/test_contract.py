"""What every network promises, on small configs of arbitrary grids."""

import copy

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from r2no.backbones import build, names, small_config
from r2no.errors import ConfigError, ShapeError

SHAPE_IN, SHAPE_OUT = (8, 16, 24, 3), (8, 16, 24, 2)

#: Parameters that only fill a place in the released files.
UNUSED = {"dpot_s": "dpot_model.cls_head.", "cno": "decoder_inv.1."}


@pytest.fixture(params=names())
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def net(name: str) -> nn.Module:
    return build(name, config=small_config(name, shape_in=SHAPE_IN, shape_out=SHAPE_OUT))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, *SHAPE_IN, generator=torch.Generator().manual_seed(1))


def test_prediction_has_the_shape_and_type_that_were_asked_for(net: nn.Module, x: Tensor) -> None:
    y = net(x)
    assert y.shape == (2, *SHAPE_OUT)
    assert y.dtype == torch.float32
    assert y.isfinite().all()


def test_same_seed_gives_the_same_bits(name: str, net: nn.Module, x: Tensor) -> None:
    torch.manual_seed(0)
    again = build(name, config=small_config(name, shape_in=SHAPE_IN, shape_out=SHAPE_OUT))
    for key, value in net.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    assert torch.equal(net.eval()(x), again.eval()(x))


def test_gradient_reaches_every_used_parameter(name: str, net: nn.Module, x: Tensor) -> None:
    net(x).square().mean().backward()
    unreached = {key for key, p in net.named_parameters() if p.requires_grad and p.grad is None}
    unused = UNUSED.get(name)
    assert unreached == {key for key, _ in net.named_parameters() if unused and unused in key}


def test_eval_mode_leaves_the_network_alone(net: nn.Module, x: Tensor) -> None:
    net.eval()
    before = copy.deepcopy(net.state_dict())
    first, second = net(x), net(x)
    assert torch.equal(first, second)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_input_is_not_overwritten(net: nn.Module, x: Tensor) -> None:
    before = x.clone()
    with torch.no_grad():
        net.eval()(x)
    assert torch.equal(x, before)


def test_windows_do_not_influence_each_other_in_eval_mode(net: nn.Module, x: Tensor) -> None:
    net.eval()
    together = net(x)
    apart = torch.cat([net(x[:1]), net(x[1:])])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5 * together.std().item())


def test_prediction_does_not_depend_on_memory_layout(net: nn.Module, x: Tensor) -> None:
    strided = x.permute(4, 0, 1, 2, 3).contiguous().permute(1, 2, 3, 4, 0)
    net.eval()
    torch.testing.assert_close(net(strided), net(x), rtol=1e-4, atol=1e-5)


def test_double_precision_agrees_with_single(net: nn.Module, x: Tensor) -> None:
    single = net.eval()(x)
    double = net.double()(x.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, rtol=1e-3, atol=1e-3 * single.std().item())


def test_another_shape_is_refused(name: str, net: nn.Module, x: Tensor) -> None:
    with pytest.raises(ShapeError, match="but got"):
        net(x[..., :2])
    if name != "cno":  # convolutions alone take any number of frames
        with pytest.raises(ShapeError, match="but got"):
            net(x[:, :5])


@pytest.fixture
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape strings off: their bookkeeping is Python that no graph can hold."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.usefixtures("_unchecked")
def test_exported_program_agrees(net: nn.Module, x: Tensor) -> None:
    net.eval()
    with torch.no_grad():
        sizes = ({0: torch.export.Dim("batch", min=1, max=64)},)
        exported = torch.export.export(net, (x,), dynamic_shapes=sizes).module()
        for windows in (x, x[:1], torch.cat([x, x.flip(2)])):
            torch.testing.assert_close(exported(windows), net(windows), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's
def test_compiled_network_agrees(net: nn.Module, x: Tensor) -> None:
    """In one graph, forward and backward; without the C++ back end, which takes minutes."""
    net.eval()
    torch.compiler.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)
    compiled(x).square().mean().backward()
    expected = copy.deepcopy(net)
    expected.zero_grad()
    expected(x).square().mean().backward()
    for (key, p), q in zip(net.named_parameters(), expected.parameters(), strict=True):
        if q.grad is not None:
            scale = q.grad.abs().max().item()
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4 * scale, msg=key)


def test_autocast_stays_close_and_transforms_in_single_precision(
    net: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watch(transform):
        def watched(field, *args, **kwargs):
            seen.append(field.dtype)
            return transform(field, *args, **kwargs)

        return watched

    for transform in ("fft", "ifft", "rfft", "irfft", "rfft2", "irfft2"):
        monkeypatch.setattr(torch.fft, transform, watch(getattr(torch.fft, transform)))
    exact = net.eval()(x[:1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x[:1])
        y.float().square().mean().backward()
    assert set(seen) <= {torch.float32, torch.complex64}
    assert (y.float() - exact).abs().max() < 0.1 * exact.std() + 0.02 * exact.abs().max()


def test_small_config_is_small(name: str) -> None:
    config = small_config(name, shape_in=(10, 32, 64, 3), shape_out=(10, 32, 64, 3))
    with torch.device("meta"):
        net = build(name, config=config)
    limit = 3_500_000 if name == "deeponet" else 300_000  # DeepONet's convolutions are fixed
    assert sum(p.numel() for p in net.parameters()) < limit


def test_small_config_learns(name: str, net: nn.Module, x: Tensor) -> None:
    target = torch.roll(x, 1, dims=3)[..., :2]
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        loss = (net(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("name", "shape_in", "shape_out", "said"),
    [
        ("deeponet", (4, 16, 16, 3), (4, 16, 16, 3), "at least 8"),
        ("fno", (4, 16, 16, 3), (6, 16, 16, 3), "a multiple of the history's frames"),
        ("cno", (4, 16, 16, 3), (2, 16, 16, 3), "a multiple of the history's frames"),
        ("cno", (4, 16, 16, 4), (4, 16, 16, 4), "fewer channels than frames"),
        ("transolver", (4, 16, 16, 3), (8, 16, 16, 3), "as many frames out as in"),
        ("unet", (4, 16, 16, 3), (4, 16, 32, 3), "one grid"),
        ("fno", (0, 16, 16, 3), (4, 16, 16, 3), "four positive integers"),
        ("dpot_s", (4, 16, 3), (4, 16, 3), "four positive integers"),
    ],
)
def test_unsuitable_shapes_are_refused(
    name: str, shape_in: tuple[int, ...], shape_out: tuple[int, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        small_config(name, shape_in=shape_in, shape_out=shape_out)


def test_a_batch_of_no_windows_is_refused(net: nn.Module, x: Tensor) -> None:
    with pytest.raises(ShapeError, match=r"but got shape \(0,"):
        net.eval()(x[:0])


def test_odd_grids_are_served(name: str) -> None:
    shape = (9, 15, 21, 3)
    net = build(name, config=small_config(name, shape_in=shape, shape_out=shape)).eval()
    assert net(torch.randn(1, *shape)).shape == (1, *shape)
