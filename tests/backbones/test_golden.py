"""The networks against stored outputs of RealPDEBench's, on weights filled by formula."""

import pytest
import torch
from torch import Tensor, nn

from r2no.backbones import build
from tests.support.filling import GoldenCase, fill, golden_cases, gradient_norms, wave_input

CASES = list(golden_cases())
IDS = ["-".join(case) for case in CASES]

#: Cases without random dropout.
TRAINED = [case for case in CASES if "y_train" in GoldenCase(*case)]


def network(case: GoldenCase) -> nn.Module:
    return fill(build(case.backbone, config=case.facts("config")))


def assert_close_fields(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 5e-5 * expected.std()


def assert_close_norms(actual: dict, expected: dict) -> None:
    """Within 4e-3, but for gradients that vanish in exact arithmetic (biases before a norm).

    The stored norms are in float32; those in float64 differ by up to 1.5e-3 (CNO in train mode),
    and so do those of processors without AVX2.
    """
    assert actual.keys() == expected.keys()
    noise = 2e-6 * max(norm for norm in expected.values() if norm is not None)
    for key, norm in expected.items():
        if norm is None:
            assert actual[key] is None, key
        else:
            assert actual[key] == pytest.approx(norm, rel=4e-3, abs=noise), key


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
    assert_close_norms(gradient_norms(net, y), case.facts("grad_norms_eval"))


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
    assert_close_norms(gradient_norms(net, y), case.facts("grad_norms_train"))
    if "bn_after_train_forward" in case:
        state = net.state_dict()
        for key, norm in case.facts("bn_after_train_forward").items():
            found = torch.linalg.vector_norm(state[key].double()).item()
            assert found == pytest.approx(norm, rel=1e-5), key
