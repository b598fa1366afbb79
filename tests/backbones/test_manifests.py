"""All 30 published networks: keys, shapes, types and sizes, built without memory."""

import json

import pytest
import torch

from r2no.backbones import build, identify, names, published_config, systems
from r2no.backbones.checkpoints import signature
from r2no.errors import ConfigError
from tests.support.filling import GOLDEN

MANIFESTS = {
    (system, facts["backbone"]): facts
    for facts in json.loads((GOLDEN / "manifests.json").read_text())
    for system in facts["systems"]
    if system != "pretraining"
}


def test_every_pair_is_published() -> None:
    assert set(MANIFESTS) == {(system, name) for system in systems() for name in names()}
    assert len(MANIFESTS) == 30


@pytest.mark.parametrize("pair", MANIFESTS, ids="-".join)
def test_network_matches_its_manifest(pair: tuple[str, str]) -> None:
    system, name = pair
    facts = MANIFESTS[pair]
    with torch.device("meta"):
        net = build(name, system=system)
    state = {
        key: f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}".replace(" ", "")
        for key, value in net.state_dict().items()
    }
    assert state == facts["state_dict"]
    parameters = list(net.parameters())
    assert sum(p.numel() for p in parameters) == facts["parameters"]
    assert sum(p.numel() for p in parameters if p.requires_grad) == facts["trainable"]


@pytest.mark.parametrize("pair", MANIFESTS, ids="-".join)
def test_shapes_identify_the_network(pair: tuple[str, str]) -> None:
    system, name = pair
    same = [(other, name) for other in systems() if other in MANIFESTS[pair]["systems"]]
    assert identify(signature(name, system).shapes) == same


def test_unknown_shapes_identify_nothing() -> None:
    assert identify({"weight": (3, 3)}) == []
    short = dict(signature("fno", "cylinder").shapes)
    short.pop("fc0.bias")
    assert identify(short) == []


@pytest.mark.parametrize(
    ("given", "meant"), [("fon", "fno"), ("DPOT", "dpot_s"), ("u-net", "unet")]
)
def test_misspelt_network_is_met_with_the_right_name(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{meant}'"):
        build(given, system="cylinder")


def test_misspelt_system_is_met_with_the_right_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'combustion'"):
        build("fno", system="combution")


def test_build_needs_exactly_one_source_of_settings() -> None:
    with pytest.raises(ConfigError, match="either `system`"):
        build("fno")
    with pytest.raises(ConfigError, match="width"):
        build("fno", config={"modes1": 2})
    with pytest.raises(ConfigError, match="FNOConfig"):
        build("fno", config=published_config("deeponet", "cylinder"))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("transolver", {"dropout": 1.0}, "dropout"),
        ("dpot_s", {"mlp_ratio": -1.0}, "mlp_ratio"),
        ("dpot_s", {"mlp_ratio": float("nan")}, "mlp_ratio"),
        ("dpot_s", {"patch_size": 7}, r"'img_size': 128.*'patch_size': 7"),
        ("deeponet", {"input_channels": 4}, "but got 4"),
    ],
)
def test_bad_settings_are_named(name: str, changes: dict[str, object], said: str) -> None:
    settings = published_config(name, "cylinder").model_dump()
    with pytest.raises(ConfigError, match=said):
        build(name, config=settings | changes)
