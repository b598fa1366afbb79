"""Lower precision of products: the loop's state and everything around keep theirs."""

import pytest
import torch

from r2no.adaptation import AdaptSettings
from r2no.errors import ConfigError
from r2no.repair_loop import RepairObjective, RepairUNet, repair


def module(precision):
    torch.manual_seed(0)
    made = RepairUNet(4, 4, width=4, depth=1).eval()
    with torch.no_grad():
        made.last.weight.mul_(10)
    made.precision = precision
    return made


@pytest.fixture
def fields():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 2, 8, 8, 2, generator=generator) for _ in range(3)]


def test_iterates_are_never_rounded_to_bf16(fields):
    history, estimate, _ = fields
    with torch.no_grad():
        exact, rough = (repair(module(p), history, estimate) for p in ("float32", "bf16"))
    assert rough.dtype == torch.float32
    assert torch.equal(rough[0], estimate)
    assert not torch.equal(rough[-1], rough[-1].bfloat16().float())  # it holds more digits
    assert not torch.equal(rough, exact)  # the products were rounded
    assert float((rough - exact).norm() / exact.norm()) < 1e-2


def test_gradients_of_bf16_point_where_those_of_float32_do(fields):
    found = {}
    for precision in ("float32", "bf16"):
        made = module(precision).train()
        terms = RepairObjective(steps=3)(made, *fields, measured=(0, 1))
        assert terms.total.dtype == torch.float32
        terms.total.backward()
        weights = [p.grad.flatten() for p in made.parameters() if p.grad is not None]
        assert {w.dtype for w in weights} == {torch.float32}
        found[precision] = torch.cat(weights)
    alike = torch.nn.functional.cosine_similarity(*found.values(), dim=0)
    assert 0.99 < float(alike) < 1 - 1e-9


def test_tf32_is_float32_where_there_is_none(fields):
    history, estimate, _ = fields
    with torch.no_grad():
        exact, same = (repair(module(p), history, estimate) for p in ("float32", "tf32"))
    assert torch.equal(exact, same)


def test_settings_give_modules_their_precision_and_keep_old_keys():
    assert AdaptSettings(precision="bf16").module(2, 2).precision == "bf16"
    assert "precision" not in AdaptSettings().model_dump(mode="json")
    assert AdaptSettings(precision="tf32").model_dump(mode="json")["precision"] == "tf32"
    with pytest.raises(ConfigError, match="precision"):
        AdaptSettings(precision="float16")
