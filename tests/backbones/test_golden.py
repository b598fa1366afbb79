"""The networks against stored outputs of RealPDEBench's, on weights filled by formula."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from r2no.backbones import build
from tests.support.filling import (
    GoldenCase,
    fill,
    golden_cases,
    gradient_norms,
    in_double,
    wave_input,
)

CASES = list(golden_cases())
IDS = ["-".join(case) for case in CASES]

#: Cases without random dropout.
TRAINED = [case for case in CASES if "y_train" in GoldenCase(*case)]


#: Where the stored gradients, in float32, have a unit on the other side of the kink of its leaky
#: ReLU than exact arithmetic: (call of the activation, flat place). Each is within 4e-6 of zero,
#: in standard deviations of its layer, and moves norms by 1e-5 to 2e-3.
ACROSS = {
    ("cno", "base", "eval"): (10, 16793),
    ("cno", "ctrl_t2", "eval"): (4, 23030),
    ("cno", "channels_first_quirk", "train"): (9, 10125),
}

#: Relative error of norms: (float64 against stored, float32 against stored). Smooth activations
#: leave rounding. Of DeepONet's millions of ReLUs a few lie across, each worth 1e-5 in float64; in
#: float32 they, and CNO's, lie where the processor's rounding puts them: noise of 1e-7 in the input
#: moves norms of DeepONet by up to 5e-4.
NORM_ERROR = {"cno": (1e-5, 4e-3), "deeponet": (3e-5, 2e-3)}
SMOOTH = (1e-5, 1e-5)


def network(case: GoldenCase) -> nn.Module:
    return fill(build(case.backbone, config=case.facts("config")))


def assert_close_fields(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 5e-5 * expected.std()


def assert_close_norms(actual: dict, expected: dict, error: float) -> None:
    """Within a relative error, but for gradients that vanish in exact arithmetic.

    Those are of biases before a norm; in float32 they are rounding of the largest.
    """
    assert actual.keys() == expected.keys()
    noise = 2e-6 * max(norm for norm in expected.values() if norm is not None)
    for key, norm in expected.items():
        if norm is None:
            assert actual[key] is None, key
        else:
            assert actual[key] == pytest.approx(norm, rel=error, abs=noise), key


class Across:
    """A leaky ReLU that takes one unit to be on the other side of zero."""

    def __init__(self, call: int, place: int) -> None:
        self.call, self.place, self.calls = call, place, 0

    def __call__(self, x: Tensor, slope: float, inplace: bool = False) -> Tensor:
        positive = x > 0
        if self.calls == self.call:
            at = np.unravel_index(self.place, x.shape)
            assert x[at].abs() < 4e-6 * x.std()
            positive[at] = ~positive[at]
        self.calls += 1
        return torch.where(positive, x, slope * x)


@pytest.mark.parametrize("names", CASES, ids=IDS)
def test_keys_shapes_and_types_are_those_of_the_benchmark(names: tuple[str, str]) -> None:
    case = GoldenCase(*names)
    state = network(case).state_dict()
    found = {key: [list(v.shape), str(v.dtype).removeprefix("torch.")] for key, v in state.items()}
    assert found == case.facts("state_dict")


@pytest.mark.parametrize("names", CASES, ids=IDS)
def test_prediction_and_gradients_in_eval_mode(names: tuple[str, str]) -> None:
    case = GoldenCase(*names)
    net, x = network(case).eval(), case.tensor("x")
    assert torch.equal(x, wave_input(tuple(x.shape)))
    y = net(x)
    assert_close_fields(y, case.tensor("y_eval"))
    error = NORM_ERROR.get(case.backbone, SMOOTH)[1]
    assert_close_norms(gradient_norms(net, y), case.facts("grad_norms_eval"), error)


@pytest.mark.parametrize(
    "names",
    [
        (*case, mode)
        for case in CASES
        for mode in ("eval", "train")
        if mode == "eval" or case in TRAINED
    ],
    ids="-".join,
)
def test_gradients_in_float64(names: tuple[str, str, str], monkeypatch) -> None:
    """The same on every processor, so that what is left is the rounding of the stored ones."""
    *which, mode = names
    case = GoldenCase(*which)
    if names in ACROSS:
        monkeypatch.setattr("torch.nn.functional.leaky_relu", Across(*ACROSS[names]))
    net = in_double(network(case)).train(mode == "train")
    y = net(case.tensor("x").double())
    assert y.dtype == torch.float64
    assert_close_fields(y, case.tensor(f"y_{mode}").double())
    error = NORM_ERROR.get(case.backbone, SMOOTH)[0]
    assert_close_norms(gradient_norms(net, y), case.facts(f"grad_norms_{mode}"), error)


@pytest.mark.parametrize("names", CASES, ids=IDS)
def test_prediction_does_not_depend_on_gradients_being_recorded(names: tuple[str, str]) -> None:
    case = GoldenCase(*names)
    with torch.inference_mode():
        y = network(case).eval()(case.tensor("x"))
    assert_close_fields(y, case.tensor("y_eval"))


@pytest.mark.parametrize("names", TRAINED, ids=["-".join(case) for case in TRAINED])
def test_prediction_gradients_and_statistics_in_train_mode(names: tuple[str, str]) -> None:
    case = GoldenCase(*names)
    net = network(case).train()
    y = net(case.tensor("x"))
    assert_close_fields(y, case.tensor("y_train"))
    error = NORM_ERROR.get(case.backbone, SMOOTH)[1]
    assert_close_norms(gradient_norms(net, y), case.facts("grad_norms_train"), error)
    if "bn_after_train_forward" in case:
        state = net.state_dict()
        for key, norm in case.facts("bn_after_train_forward").items():
            found = torch.linalg.vector_norm(state[key].double()).item()
            assert found == pytest.approx(norm, rel=1e-5), key
