"""Artifacts that bring their source, those that do not, and those of an older format."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.golden.artifacts.make_v1 import source as v1_source
from tests.support.adapting import (
    FIT,
    HISTORY,
    SETTINGS,
    TRAIN,
    Source,
    exported,
    factory_operator,
    own_operator,
)
from tests.support.networks import FrameMix
from torch import nn

import r2no
from r2no import operators, storage
from r2no.adaptation import AdaptedModel
from r2no.errors import ConfigError, FileDamagedError, FingerprintError
from r2no.training import save_operator

GOLDEN = Path(__file__).parents[1] / "golden" / "artifacts"
TOY = "tests.support.networks:FrameMix"


def adapted(source: Any) -> AdaptedModel:
    return r2no.adapt(source, TRAIN, FIT, members=1, settings=SETTINGS)


def test_artifact_of_format_1_still_predicts_what_it_did() -> None:
    expected, _ = storage.load_tensors(GOLDEN / "v1-expected.safetensors")
    assert storage.read_json(GOLDEN / "v1" / "manifest.json")["format"] == "r2no.artifact/1"
    model = r2no.load(GOLDEN / "v1", source=v1_source)
    found = model.predict(expected["history"])
    torch.testing.assert_close(found, expected["prediction"], rtol=1e-5, atol=1e-5)
    assert model.verdict is not None
    assert model.verdict.decision == "deploy"


def test_artifact_of_format_1_can_be_saved_in_the_present_format(tmp_path: Path) -> None:
    model = r2no.load(GOLDEN / "v1", source=v1_source)
    again = r2no.load(model.save(tmp_path / "new.r2no"), source=v1_source)
    assert torch.equal(again.predict(HISTORY), model.predict(HISTORY))


def test_own_operators_come_along(tmp_path: Path) -> None:
    model = adapted(own_operator())
    path = model.save(tmp_path / "model.r2no")
    assert "source.safetensors" in storage.read_json(path / "manifest.json")["files"]
    moved = shutil.move(path, tmp_path / "elsewhere")
    assert torch.equal(r2no.load(moved).predict(HISTORY), model.predict(HISTORY))


@pytest.mark.parametrize("kind", ["factory", "backbone", "bare"])
def test_networks_of_factories_come_along_but_need_consent(kind: str, tmp_path: Path) -> None:
    if kind == "factory":
        source: nn.Module = factory_operator()
    elif kind == "backbone":
        source = operators.wrap(own_operator().network, "B T H W C", FIT.fields)
    else:
        source = operators.from_python("tests.support.networks:LastFrame", frames=(4, 2))
    model = adapted(source)
    path = model.save(tmp_path / "model.r2no", include_source=True)
    if kind != "backbone":
        with pytest.raises(ConfigError, match=r"import and call `tests\.support\.networks"):
            r2no.load(path)
    again = r2no.load(path, trust_source=True)
    assert torch.equal(again.predict(HISTORY), model.predict(HISTORY))
    assert torch.equal(again.source(HISTORY), model.source(HISTORY))


def test_exported_programs_come_along_but_need_consent(tmp_path: Path) -> None:
    program = exported(tmp_path / "net.pt2", FrameMix(seed=4))
    network = operators.from_exported(program, trust=True)
    model = adapted(operators.wrap(network, "B (T C) H W", FIT.fields))
    path = model.save(tmp_path / "model.r2no", include_source=True)
    with pytest.raises(ConfigError, match="can hold any code"):
        r2no.load(path)
    program.unlink()
    again = r2no.load(path, trust_source=True)
    assert torch.equal(again.predict(HISTORY), model.predict(HISTORY))
    with pytest.raises(FileDamagedError, match=r"net\.pt2` is gone"):
        model.save(tmp_path / "other.r2no")


def test_source_that_cannot_come_along_is_referenced(tmp_path: Path) -> None:
    model = adapted(Source())
    with pytest.raises(ConfigError, match=r"a `Source`, cannot be included.*from_python"):
        model.save(tmp_path / "a.r2no", include_source=True)
    path = model.save(tmp_path / "a.r2no")
    with pytest.raises(ConfigError, match=r"does not bring its source.*`source`"):
        r2no.load(path)
    assert torch.equal(r2no.load(path, source=Source()).predict(HISTORY), model.predict(HISTORY))


def test_own_operator_can_be_left_out(tmp_path: Path) -> None:
    model = adapted(own_operator())
    path = model.save(tmp_path / "a.r2no", include_source=False)
    assert not (path / "source.safetensors").exists()
    with pytest.raises(ConfigError, match="does not bring its source"):
        r2no.load(path)
    again = r2no.load(path, source=own_operator().eval())
    assert torch.equal(again.predict(HISTORY), model.predict(HISTORY))


class Rounded(Source):
    """The same weights, an answer that differs as it would on another machine, or by more."""

    def __init__(self, change: float) -> None:
        super().__init__()
        self.change = change

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        return super().forward(history) * (1 + self.change)


def test_given_source_is_recognised_within_rounding(tmp_path: Path) -> None:
    path = adapted(Source()).save(tmp_path / "a.r2no")
    r2no.load(path, source=Rounded(1e-6))
    with pytest.raises(FingerprintError, match="not the operator"):
        r2no.load(path, source=Rounded(1e-2))


def test_damaged_source_is_refused_by_name(tmp_path: Path) -> None:
    path = adapted(own_operator()).save(tmp_path / "a.r2no")
    victim = path / "source.safetensors"
    content = bytearray(victim.read_bytes())
    content[-3] ^= 1
    victim.write_bytes(content)
    with pytest.raises(FileDamagedError, match=r"source\.safetensors"):
        r2no.load(path)


def test_source_written_beside_is_found_if_its_hash_is_noted(tmp_path: Path) -> None:
    """As the runs of `r2no adapt` on RealPDEBench leave it."""
    operator = own_operator()
    model = adapted(operator)
    path = save_operator(operator, tmp_path / "a" / "source.safetensors", backbone="fno")
    model.provenance["source_sha256"] = storage.file_sha256(path)
    model.save(tmp_path / "a", include_source=False)
    assert torch.equal(r2no.load(tmp_path / "a").predict(HISTORY), model.predict(HISTORY))


def test_later_formats_are_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v1", tmp_path / "a")
    manifest = storage.read_json(tmp_path / "a" / "manifest.json")
    (tmp_path / "a" / "manifest.json").write_text(json.dumps({**manifest, "format": "r2no/9"}))
    with pytest.raises(FileDamagedError, match=r"'r2no/9'.*Update r2no"):
        r2no.load(tmp_path / "a", source=v1_source)
