"""Networks from factories and files, and what such files must not be able to do."""

import io
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from r2no import operators, storage
from r2no.errors import CheckpointMismatchError, ConfigError, FileDamagedError, NonFiniteError
from tests.support.adapting import exported
from tests.support.networks import FrameMix

TOY = "tests.support.networks:FrameMix"


class Attack:
    """Unpickled as it is, it would make a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (shutil.copyfile, (__file__, str(self.marker)))


@pytest.mark.parametrize("form", ["state dict", "nested", "safetensors"])
def test_factory_and_file_give_the_network_back(form: str, tmp_path: Path) -> None:
    network = FrameMix(6, 4, seed=3)
    path = tmp_path / "weights"
    if form == "safetensors":
        storage.save_tensors(path, network.state_dict())
    else:
        state = network.state_dict()
        torch.save(state if form == "state dict" else {"state_dict": state, "epoch": 3}, path)
    found = operators.from_python(TOY, path, channels_in=6, channels_out=4)
    assert torch.equal(found.weight, network.weight)
    assert not found.training


def test_weights_must_fit_in_full(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"weight": torch.zeros(8, 7), "extra": torch.zeros(1)}, path)
    with pytest.raises(
        CheckpointMismatchError, match=r"unexpected: `extra`.*\(8, 7\) for \(8, 8\)"
    ):
        operators.from_python(TOY, path)
    torch.save({"other": torch.zeros(1)}, path)
    with pytest.raises(CheckpointMismatchError, match="missing: `weight`"):
        operators.from_python(TOY, path)
    torch.save({"weight": torch.full((8, 8), float("inf"))}, path)
    with pytest.raises(NonFiniteError, match="`weight`"):
        operators.from_python(TOY, path)


def test_code_in_a_checkpoint_never_runs(tmp_path: Path) -> None:
    """Notes beside the weights are dropped unread; objects in place of weights are refused."""
    marker, path = tmp_path / "ran", tmp_path / "weights.pt"
    weights = FrameMix(seed=1).state_dict()
    torch.save({**weights, "_metadata": {"hook": Attack(marker)}}, path)
    found = operators.from_python(TOY, path)
    assert torch.equal(found.weight, weights["weight"])
    torch.save({"weight": Attack(marker)}, path)
    with pytest.raises(FileDamagedError, match="`weight`"):
        operators.from_python(TOY, path)
    torch.save(Attack(marker), path)
    with pytest.raises(FileDamagedError):
        operators.from_python(TOY, path)
    assert not marker.exists()
    torch.load(path, weights_only=False)  # the attack itself is real
    assert marker.exists()


def test_damaged_checkpoints_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(FrameMix().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(FileDamagedError, match=r"weights\.pt"):
        operators.read_weights(path)
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        operators.read_weights(tmp_path / "none.pt")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tests.support.networks", "package.module:factory"),
        ("tests.operators.nothing:Net", "no module `tests.operators.nothing`"),
        ("tests.support.networks:Nothing", "has no `Nothing`"),
        ("tests.support.networks:CONSTANT", "cannot be called"),
        ("tests.support.networks:not_a_module", "must return a `torch.nn.Module`"),
    ],
)
def test_factories_that_are_none_are_named(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        operators.from_python(name)


def test_arguments_a_factory_does_not_take_are_named() -> None:
    with pytest.raises(ConfigError, match=r"does not take these arguments \(depth\)"):
        operators.from_python(TOY, depth=3)


def test_exported_program_answers_as_the_network(tmp_path: Path) -> None:
    network = FrameMix(seed=4)
    path = exported(tmp_path / "net.pt2", network)
    found = operators.from_exported(path, trust=True)
    values = torch.randn(5, 8, 8, 12)
    torch.testing.assert_close(found(values), network(values))
    found.eval().requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in found.parameters())


def test_exported_program_is_not_opened_without_trust(tmp_path: Path) -> None:
    """PyTorch would run code from such a file, here from its example inputs."""
    path, marker = exported(tmp_path / "net.pt2", FrameMix()), tmp_path / "ran"
    payload = io.BytesIO()
    torch.save((Attack(marker),), payload)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, value in content.items():
            archive.writestr(name, payload.getvalue() if "sample_inputs" in name else value)
    with pytest.raises(ConfigError, match="trust=True"):
        operators.from_exported(path)
    assert not marker.exists()


def test_files_that_are_no_programs_are_named(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(FileDamagedError, match=r"net\.pt2"):
        operators.from_exported(path, trust=True)
    with pytest.raises(ConfigError, match="no exported program"):
        operators.from_exported(tmp_path / "none.pt2", trust=True)


def test_any_callable_can_be_wrapped(windows: Any) -> None:
    fields = windows["fit"].fields

    def last_frame(values: Tensor) -> Tensor:
        return values[:, :, -1:].expand(-1, -1, 4, -1, -1)

    operator = operators.wrap(last_frame, "B C T H W", fields)
    window = windows["fit"][0]
    expected = window.history[-1:].expand(4, -1, -1, -1)
    assert torch.equal(operator(window.history[None])[0], expected)
