import inspect

import pytest
import torch
from torch import Tensor, nn

import r2no
from r2no import operators
from r2no.data import ArrayWindows, Fields, Normaliser
from r2no.errors import ConfigError, LayoutError, NonFiniteError, ShapeError
from r2no.operators.wrapped import Layout, usual_layouts
from r2no.training import PhysicalOperator
from tests.support.networks import FrameMix

FIELDS = Fields((6, 9), 4, 4, ("u", "v"), (0, 1))
GRIDS = {1: (7,), 2: (6, 9), 3: (3, 4, 5)}


def history(fields: Fields = FIELDS, batch: int = 3) -> Tensor:
    shape = (batch, fields.history_frames, *fields.grid, len(fields.history_channels))
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_layouts_there_and_back_are_the_identity(dimensions: int) -> None:
    grid = GRIDS[dimensions]
    field = torch.randn(2, 4, *grid, 3)
    for name in usual_layouts(dimensions):
        layout = Layout.parse(name, dimensions)
        packed = layout.pack(field)
        assert str(tuple(packed.shape)).replace("(2", "(batch", 1) == layout.shape(4, grid, 3)
        assert torch.equal(layout.unpack(packed, grid, 3), field)


def test_layouts_order_axes_as_they_are_written() -> None:
    field = torch.randn(2, 4, 6, 9, 3)
    pack = lambda name: Layout.parse(name).pack(field)  # noqa: E731
    assert torch.equal(pack("B C T H W")[1, 2, 3], field[1, 3, :, :, 2])
    assert torch.equal(pack("B (T C) H W")[1, 3 * 3 + 2], field[1, 3, :, :, 2])
    assert torch.equal(pack("B (C T) H W")[1, 2 * 4 + 3], field[1, 3, :, :, 2])
    assert torch.equal(pack("B T W H C")[1, 3, ..., 2], field[1, 3, :, :, 2].T)
    assert torch.equal(pack("b t y x c"), field)


@pytest.mark.parametrize("name", ["B T H W", "T B H W C", "B T H W C C", "B T H W Q", ""])
def test_layouts_that_are_none_are_refused_with_examples(name: str) -> None:
    with pytest.raises(ConfigError, match=r"B T C H W once, but got .*'B \(T C\) H W'"):
        Layout.parse(name)


class InPlace(nn.Module):
    """A network that normalises what it is given where it stands, as many do."""

    def __init__(self, in_place: bool, frames: int = 4) -> None:
        super().__init__()
        self.in_place, self.frames = in_place, frames

    def forward(self, values: Tensor) -> Tensor:
        return values.sub_(1).mul_(0.9) if self.in_place else (values - 1) * 0.9


@pytest.mark.parametrize("one_step", [False, True])
@pytest.mark.parametrize("layout", ["B T H W C", "B C T H W", "B (T C) H W"])
def test_networks_that_write_into_their_input_change_nothing_else(layout, one_step) -> None:
    steps = {"one_step": one_step, "frames": 3 if one_step else 4}
    plain, writing = (operators.wrap(InPlace(w), layout, FIELDS, **steps) for w in (False, True))
    known = history()
    assert writing(known).equal(plain(known))
    assert known.equal(history())


def test_a_source_that_writes_into_its_history_forecasts_as_one_that_does_not(tmp_path) -> None:
    fields = [
        torch.randn(24, 6, 9, 2, generator=torch.Generator().manual_seed(n)) for n in range(6)
    ]
    train, fit = (ArrayWindows(part, 4, 4) for part in (fields[:2], fields[2:]))
    known = fit[0].history[None]
    plain, writing = (r2no.adapt(InPlace(w), train, fit, members=0) for w in (False, True))
    forecast = writing.predict(known)
    assert forecast.equal(plain.predict(known))
    assert known.equal(fit[0].history[None])
    assert writing.evaluate(fit)["rmse"] == plain.evaluate(fit)["rmse"]
    program = torch.export.load(writing.export(tmp_path / "model.pt2")).module()
    torch.testing.assert_close(program(known), forecast)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fields": ArrayWindows([torch.zeros(9, 6, 9, 2)], 4, 4)}, "`fields` must be a `Fields`"),
        ({"normaliser": Normaliser(shift=torch.zeros(2), scale=torch.ones(2))}, "`normaliser`"),
        ({"normaliser": ()}, "`normaliser` must be two, of history and of target, but got 0"),
    ],
)
def test_what_is_no_description_of_fields_or_units_is_named(change, message) -> None:
    arguments = {"fields": FIELDS, **change}
    as_users_call_it = inspect.unwrap(operators.wrap)  # without the tests' check of types
    with pytest.raises(ConfigError, match=message):
        as_users_call_it(nn.Identity(), "B T H W C", **arguments)


def mixing(layout: str, matrix: Tensor) -> nn.Module:
    """The operator y_{s,d} = Σ_{t,c} A_{sd,tc} x_{t,c}, written for one layout by hand."""
    tensor = matrix.reshape(4, 2, 4, 2)
    rules = {
        "B T H W C": "sdtc,bthwc->bshwd",
        "B C T H W": "sdtc,bcthw->bdshw",
        "B T C H W": "sdtc,btchw->bsdhw",
    }

    class Network(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            if layout in rules:
                return torch.einsum(rules[layout], tensor, values)
            ordered = matrix
            if layout.startswith("B (C T)"):
                ordered = tensor.permute(1, 0, 3, 2).reshape(8, 8)
            return nn.functional.conv2d(values, ordered[..., None, None])

    return Network()


@pytest.mark.parametrize(
    "layout", ["B T H W C", "B C T H W", "B T C H W", "B (T C) H W", "B (C T) H W"]
)
def test_one_operator_forecasts_the_same_in_every_layout(layout: str) -> None:
    matrix = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
    x = history()
    expected = torch.einsum("sdtc,bthwc->bshwd", matrix.reshape(4, 2, 4, 2), x)
    found = operators.wrap(mixing(layout, matrix), layout, FIELDS)(x)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("given", [1, 3])
def test_rolled_forward_network_equals_the_loop_by_hand(frames: int, given: int) -> None:
    """With a conditioning channel that the network sees at every step."""
    fields = Fields((6, 9), 4, 5, ("u", "v"), (0,), conditioning=("re",))
    x = history(fields)
    x[..., 2] = torch.arange(3.0)[:, None, None, None]
    network = FrameMix(3 * frames, 2 * given)
    operator = operators.wrap(network, "B (T C) H W", fields, one_step=True, frames=frames)
    known, expected = list(x.unbind(1)), []
    while len(expected) < 5:
        seen = torch.stack(known[-frames:], 1).permute(0, 1, 4, 2, 3).flatten(1, 2)
        answer = network(seen).unflatten(1, (given, 2)).permute(0, 1, 3, 4, 2)
        expected += list(answer.unbind(1))
        known += [torch.cat([new, x[:, -1, ..., 2:]], -1) for new in answer.unbind(1)]
    torch.testing.assert_close(operator(x), torch.stack(expected[:5], 1))


def test_network_without_conditioning_does_not_see_it() -> None:
    fields = Fields((6, 9), 4, 4, ("u", "v"), (0,), conditioning=("re",))
    operator = operators.wrap(FrameMix(), "B (T C) H W", fields, conditioning=False)
    plain = operators.wrap(FrameMix(), "B (T C) H W", FIELDS)
    x = history(fields)
    torch.testing.assert_close(operator(x), plain(x[..., :2]))


def test_given_normaliser_equals_a_physical_operator() -> None:
    statistics = Normaliser(torch.tensor([1.0, -2.0]), torch.tensor([2.0, 0.5]))
    network = mixing("B T H W C", torch.eye(8))
    wrapped = operators.wrap(network, "B T H W C", FIELDS, normaliser=(statistics, statistics))
    x = history()
    torch.testing.assert_close(wrapped(x), PhysicalOperator(network, statistics, statistics)(x))


def test_wrong_layout_says_what_came_and_which_would_fit() -> None:
    wrong = operators.wrap(FrameMix(), "B C T H W", FIELDS)
    with pytest.raises(LayoutError, match=r"\(3, 2, 4, 6, 9\).*'B C T H W'.*'B \(T C\) H W'"):
        wrong(history())

    class Channels(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            assert values.shape[1] == 2, "two channels"
            return values.flip(1)

    with pytest.raises(LayoutError, match=r"two channels\. Declare layout='B C T H W', which"):
        operators.wrap(Channels(), "B T H W C", FIELDS)(history())


def test_wrong_shape_of_the_answer_is_named() -> None:
    def coarse(values: Tensor) -> Tensor:
        return values[..., ::2]

    with pytest.raises(LayoutError, match=r"\(batch, 2, 4, 6, 9\).*gave shape \(3, 2, 4, 6, 5\)"):
        operators.wrap(coarse, "B C T H W", FIELDS)(history())
    with pytest.raises(ShapeError, match="returned a `tuple`"):
        operators.wrap(lambda x: (x, x), "B C T H W", FIELDS)(history())
    with pytest.raises(ShapeError, match=r"4 frames of the horizon, but gave 1\. Set `one_step"):
        operators.wrap(FrameMix(8, 2), "B (T C) H W", FIELDS)(history())
    with pytest.raises(ShapeError, match="but gave 0"):
        operators.wrap(FrameMix(8, 0), "B (T C) H W", FIELDS, one_step=True)(history())
    with pytest.raises(ShapeError, match=r"\(batch, 4, 6, 9, 2\)"):
        operators.wrap(FrameMix(), "B (T C) H W", FIELDS)(history()[:, :3])


def test_weights_that_are_not_finite_are_refused_by_name() -> None:
    network = FrameMix()
    network.weight.data[2, 3] = float("nan")
    with pytest.raises(NonFiniteError, match="`weight`"):
        operators.wrap(network, "B (T C) H W", FIELDS)


def test_more_frames_than_the_history_are_refused() -> None:
    with pytest.raises(ConfigError, match="between 1 and the 4"):
        operators.wrap(FrameMix(), "B (T C) H W", FIELDS, frames=5)
