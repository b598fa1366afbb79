"""Files of weights: what they give back, what is refused, and that nothing in them runs."""

import argparse
import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from r2no.backbones import (
    build,
    convert,
    describe,
    import_dpot_pretraining,
    load_checkpoint,
    names,
    small_config,
)
from r2no.backbones.formats import read_checkpoint
from r2no.errors import (
    CheckpointMismatchError,
    ConfigError,
    FileDamagedError,
    NonFiniteError,
    StorageError,
)
from r2no.storage import file_sha256
from tests.support.filling import GOLDEN, fill

SHAPE = (8, 16, 24, 3)


def small(name: str) -> nn.Module:
    return build(name, config=small_config(name, shape_in=SHAPE, shape_out=SHAPE)).eval()


def benchmark_dictionary(net: nn.Module) -> dict[str, Any]:
    return {
        "model_state_dict": net.state_dict(),
        "train_losses": [0.1, 1 / 3],
        "val_losses": {"rmse": [torch.tensor(0.7), torch.tensor(2 / 3)]},
        "iteration": 12000,
        "best_iteration": 9000,
        "best_val_loss": torch.tensor(2 / 3),
    }


def empty_weights(net: nn.Module) -> OrderedDict[str, Tensor]:
    """Weights of the right shapes whose file takes no room."""
    return OrderedDict(
        (key, torch.zeros((), dtype=value.dtype).expand(value.shape))
        for key, value in net.state_dict().items()
    )


def assert_same_weights(actual: nn.Module, expected: nn.Module) -> None:
    for key, value in expected.state_dict().items():
        assert torch.equal(actual.state_dict()[key], value), key


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A benchmark checkpoint of a small FNO, with complex weights."""
    path = tmp_path / "finetune.pth"
    torch.save(benchmark_dictionary(fill(small("fno"))), path)
    return path


@pytest.mark.parametrize("name", names())
def test_round_trip_keeps_every_bit(name: str, tmp_path: Path) -> None:
    source = fill(small(name))
    first, ours, back = (tmp_path / file for file in ("a.pth", "b.safetensors", "c.pth"))
    torch.save(benchmark_dictionary(source), first)
    convert(first, ours)
    convert(ours, back)
    x = torch.randn(1, *SHAPE)
    for path in (first, ours, back):
        net = small(name)
        record = load_checkpoint(net, path)
        assert_same_weights(net, source)
        assert torch.equal(net(x), source(x))
        assert (record.iteration, record.best_iteration) == (12000, 9000)
        assert record.best_val_loss == torch.tensor(2 / 3).item()
        assert record.sha256 == file_sha256(path)


def test_benchmark_dictionary_survives_conversion(released: Path, tmp_path: Path) -> None:
    convert(released, tmp_path / "ours.safetensors")
    convert(tmp_path / "ours.safetensors", tmp_path / "back.pth")
    before, after = (
        torch.load(path, weights_only=True) for path in (released, tmp_path / "back.pth")
    )
    assert list(before) == list(after)
    assert list(before["model_state_dict"]) == list(after["model_state_dict"])
    assert before["train_losses"] == after["train_losses"]
    assert before["val_losses"] == after["val_losses"]
    assert after["val_losses"]["rmse"][0].dtype == torch.float32
    assert torch.equal(before["best_val_loss"], after["best_val_loss"])


def test_plain_state_dict_loads_and_other_entries_are_named(tmp_path: Path) -> None:
    source = fill(small("fno"))
    torch.save(source.state_dict(), tmp_path / "plain.pth")
    net = small("fno")
    assert load_checkpoint(net, tmp_path / "plain.pth").iteration is None
    assert_same_weights(net, source)
    torch.save({**benchmark_dictionary(source), "optimizer": {"lr": 0.1}}, tmp_path / "more.pth")
    assert load_checkpoint(net, tmp_path / "more.pth").left_out == ("optimizer",)


def test_conversion_needs_a_known_suffix(released: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must end in"):
        convert(released, tmp_path / "weights.bin")


def test_mismatch_lists_keys_and_leaves_the_network_alone(released: Path, tmp_path: Path) -> None:
    content = torch.load(released, weights_only=True)
    weights = content["model_state_dict"]
    del weights["fc0.bias"]
    weights["extra"] = torch.zeros(2)
    weights["fc1.weight"] = torch.zeros(3, 3)
    weights["fc1.bias"] = weights["fc1.bias"].double()
    torch.save(content, released)
    net = small("fno")
    torch.manual_seed(0)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(CheckpointMismatchError) as caught:
        load_checkpoint(net, released)
    message = str(caught.value)
    assert "1 missing: `fc0.bias`" in message
    assert "1 unexpected: `extra`" in message
    assert "fc1.weight (float32[3, 3] for float32[128, 12])" in message
    assert "fc1.bias (float64[128] for float32[128])" in message
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (("cno", "combustion"), "These weights are of combustion/cno:"),
        (
            ("transolver", "fsi"),
            "These weights are of cylinder/transolver or fsi/transolver or foil/transolver:",
        ),
    ],
)
def test_mismatch_names_the_network_that_fits(
    pair: tuple[str, str], said: str, tmp_path: Path
) -> None:
    with torch.device("meta"):
        other = build(pair[0], system=pair[1])
    path = tmp_path / "finetune.pth"
    torch.save({"model_state_dict": empty_weights(other)}, path)
    with pytest.raises(CheckpointMismatchError, match=said):
        load_checkpoint(small("fno"), path)


def test_description_says_what_a_file_is(tmp_path: Path) -> None:
    with torch.device("meta"):
        other = build("fno", system="foil")
    path = tmp_path / "finetune.pth"
    history = benchmark_dictionary(other) | {"model_state_dict": empty_weights(other)}
    torch.save(history, path)
    found = describe(path)
    assert found.fits == (("cylinder", "fno"), ("foil", "fno"))
    assert found.parameters == 50_357_955
    assert found.tensors == 50
    assert found.record.format == "benchmark"
    assert found.record.iteration == 12000
    assert found.record.sha256 == file_sha256(path)


def test_description_of_an_unpublished_network_counts_its_parameters(released: Path) -> None:
    found = describe(released)
    assert found.fits == ()
    assert found.parameters == sum(p.numel() for p in small("fno").parameters())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(released: Path, value: float) -> None:
    content = torch.load(released, weights_only=True)
    content["model_state_dict"]["spectral_convs.0.weights1"][0, 0, 0, 0, 0] = complex(0, value)
    torch.save(content, released)
    with pytest.raises(NonFiniteError, match=r"spectral_convs\.0\.weights1"):
        load_checkpoint(small("fno"), released)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth"):
        load_checkpoint(small("fno"), tmp_path / "nowhere.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_truncated_file_is_refused_by_name(released: Path, suffix: str, share: float) -> None:
    path = released.with_name("cut" + suffix)
    convert(released, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(FileDamagedError, match="cut"):
        load_checkpoint(small("fno"), path)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_flipped_bit_is_refused_or_harmless(released: Path, suffix: str) -> None:
    path = released.with_name("flipped" + suffix)
    convert(released, path)
    whole = path.read_bytes()
    expected = small("fno")
    load_checkpoint(expected, path)
    refused = 0
    positions = [*range(0, 4000, 131), *range(4000, len(whole), len(whole) // 40)]
    for position in positions:
        altered = bytearray(whole)
        altered[position] ^= 1 << position % 8
        path.write_bytes(bytes(altered))
        net = small("fno")
        try:
            load_checkpoint(net, path)
        except (FileDamagedError, CheckpointMismatchError):
            refused += 1
        else:
            assert_same_weights(net, expected)
    assert refused > len(positions) // 2


@pytest.mark.parametrize(
    "content",
    [[1, 2], {}, {"model_state_dict": [1]}, {"model_state_dict": {"a": 1}}, {3: torch.zeros(1)}],
)
def test_file_of_something_else_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(FileDamagedError, match=r"other\.pth"):
        load_checkpoint(small("fno"), tmp_path / "other.pth")


@pytest.mark.parametrize("value", ["many", float("inf")])
def test_history_that_is_no_number_is_refused(released: Path, value: object) -> None:
    content = torch.load(released, weights_only=True)
    torch.save(content | {"iteration": value}, released)
    with pytest.raises(FileDamagedError, match="must hold numbers"):
        load_checkpoint(small("fno"), released)


def test_history_that_no_format_holds_is_left_out(released: Path, tmp_path: Path) -> None:
    content = torch.load(released, weights_only=True)
    strange = argparse.Namespace(rate=0.1)
    torch.save(content | {"train_losses": [strange], "val_losses": {1.0, 2.0}}, released)
    for target in (tmp_path / "a.safetensors", tmp_path / "a.pth"):
        assert convert(released, target).left_out == ("train_losses", "val_losses")
        assert load_checkpoint(small("fno"), target).iteration == 12000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
        (b"some notes about a network", "damaged, or no PyTorch file"),
    ],
)
def test_a_mistaken_file_is_told_from_a_damaged_one(
    content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / "finetune.pth").write_bytes(content)
    with pytest.raises(FileDamagedError, match=said) as raised:
        describe(tmp_path / "finetune.pth")
    assert "weights_only" not in str(raised.value)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_names_of_a_wrapped_network_are_those_of_the_bare_one(prefix: str, tmp_path: Path) -> None:
    source, net = fill(small("fno")), small("fno")
    torch.save({prefix + k: v for k, v in source.state_dict().items()}, tmp_path / "a.pth")
    load_checkpoint(net, tmp_path / "a.pth")
    assert_same_weights(net, source)


def test_weights_of_another_type_are_met_with_a_cast(released: Path) -> None:
    content = torch.load(released, weights_only=True)
    weights = {
        key: value.half() if value.is_floating_point() else value
        for key, value in content["model_state_dict"].items()
    }
    torch.save(weights, released)
    with pytest.raises(CheckpointMismatchError, match="Only types differ"):
        load_checkpoint(small("fno"), released)
    found = describe(released)
    assert "float16" in found.types
    assert found.network == "fno"


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_tensors_without_plain_memory_are_refused(kind: str, tmp_path: Path) -> None:
    weights = small("fno").state_dict()
    tensor = torch.ones(2, 2)
    weights["fc0.weight"] = tensor.to_sparse() if kind == "sparse" else tensor.to("meta")
    torch.save(weights, tmp_path / "a.pth")
    with pytest.raises(FileDamagedError, match=r"a\.pth"):
        load_checkpoint(small("fno"), tmp_path / "a.pth")


def test_conjugate_views_are_resolved_and_wide_complex_weights_named(tmp_path: Path) -> None:
    value = torch.randn(2, 3, dtype=torch.complex64)
    torch.save({"a": value.conj()}, tmp_path / "a.pth")
    convert(tmp_path / "a.pth", tmp_path / "a.safetensors")
    assert torch.equal(read_checkpoint(tmp_path / "a.safetensors").weights["a"], value.conj())
    torch.save({"a": value.to(torch.complex128)}, tmp_path / "b.pth")
    with pytest.raises(StorageError, match="complex128"):
        convert(tmp_path / "b.pth", tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()


def test_values_of_one_tensor_must_agree_under_all_its_names(tmp_path: Path) -> None:
    net = small("unet")
    weights = {key: value.clone() for key, value in net.state_dict().items()}
    shared = [key for key in weights if key.endswith("freqs")]
    assert len(shared) > 1
    weights[shared[-1]] += 1
    torch.save(weights, tmp_path / "a.pth")
    with pytest.raises(CheckpointMismatchError, match="one tensor of the network"):
        load_checkpoint(net, tmp_path / "a.pth")


def test_a_network_without_memory_is_refused(released: Path) -> None:
    with pytest.raises(ConfigError, match="meta device"):
        load_checkpoint(small("fno").to("meta"), released)


class Canary:
    """Leaves a trace if a loader runs it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


def poisoned(position: str, canary: Canary) -> Any:
    """A checkpoint with ``canary`` in one place."""
    content: dict[Any, Any] = benchmark_dictionary(fill(small("fno")))
    weights = content["model_state_dict"]
    match position:
        case "whole file":
            return canary
        case "first weight" | "last weight":
            weights[list(weights)[0 if position == "first weight" else -1]] = canary
        case "name of a weight":
            weights[canary] = torch.zeros(1)
        case "attribute of the weights":
            weights._metadata = canary
        case "settings":
            content["args"] = argparse.Namespace(lr=0.1, trap=[canary])
        case "list" | "dictionary":
            content["train_losses" if position == "list" else "val_losses"] = (
                [0.1, canary] if position == "list" else {"rmse": [canary]}
            )
        case "pre-training weights":
            content = {"args": argparse.Namespace(lr=0.1), "model": {"pos_embed": canary}}
        case _:
            content[position] = canary
    return content


POSITIONS = (
    "whole file",
    "model_state_dict",
    "first weight",
    "last weight",
    "name of a weight",
    "attribute of the weights",
    "list",
    "dictionary",
    "iteration",
    "best_iteration",
    "best_val_loss",
    "another entry",
    "settings",
    "pre-training weights",
)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("position", POSITIONS)
def test_code_in_a_file_never_runs(position: str, zipped: bool, tmp_path: Path) -> None:
    path, trace = tmp_path / "trap.pth", tmp_path / "trace"
    calls = [
        (os.mkdir, str(trace)),
        (os.system, f"mkdir {trace}"),
        (exec, f"import os; os.mkdir({str(trace)!r})"),
        (Path.mkdir, trace),
    ]
    for call in calls:
        content = poisoned(position, Canary(*call))
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        loads = (
            lambda: load_checkpoint(small("fno"), path),
            lambda: import_dpot_pretraining(small("dpot_s"), path),
            lambda: convert(path, tmp_path / "out.safetensors"),
            lambda: describe(path),
        )
        for load in loads:
            with pytest.raises(FileDamagedError, match=r"trap\.pth"):
                load()
        assert not trace.exists()


def test_canary_would_sing(tmp_path: Path) -> None:
    torch.save({"iteration": Canary(os.mkdir, str(tmp_path / "trace"))}, tmp_path / "trap.pth")
    torch.load(tmp_path / "trap.pth", weights_only=False)
    assert (tmp_path / "trace").exists()


def pretraining_weights() -> dict[str, Tensor]:
    facts = json.loads((GOLDEN / "manifests.json").read_text())
    kinds = next(f["state_dict"] for f in facts if f["systems"] == ["pretraining"])
    shapes = {key: json.loads(kind.removeprefix("float32")) for key, kind in kinds.items()}
    return {key: torch.full((), 0.5).expand(shape) for key, shape in shapes.items()}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("system", "share", "kept"),
    [
        ("cylinder", 0.492, {"time_agg_layer.w", "out_layer.4.weight", "out_layer.4.bias"}),
        (
            "controlled_cylinder",
            0.999,
            {"patch_embed.proj.0.weight", "out_layer.4.weight", "out_layer.4.bias"},
        ),
    ],
)
def test_pretraining_fills_the_part_that_fits(
    system: str, share: float, kept: set[str], zipped: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model_S.pth"
    settings = argparse.Namespace(lr=1e-3, layers=[1, 2], name="S")
    content = {"args": settings, "model": pretraining_weights(), "optimizer": {"state": {}}}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    net = build("dpot_s", system=system)
    record = import_dpot_pretraining(net, path)
    assert record.share == pytest.approx(share, abs=5e-4)
    assert {key.removeprefix("dpot_model.") for key in record.kept} == kept
    for key, value in net.state_dict().items():
        assert (key in record.loaded) == bool((value == 0.5).all())


@pytest.mark.parametrize("prefix", ["", "dpot_model.", "module.", "module.dpot_model."])
def test_pretraining_names_may_carry_prefixes(prefix: str, tmp_path: Path) -> None:
    source, net = fill(small("dpot_s")), small("dpot_s")
    weights = {
        prefix + key.removeprefix("dpot_model."): value
        for key, value in source.state_dict().items()
    }
    torch.save({"model": weights}, tmp_path / "model.pth")
    assert import_dpot_pretraining(net, tmp_path / "model.pth").share == 1
    assert_same_weights(net, source)


def test_pretraining_takes_weights_of_the_same_type_only(tmp_path: Path) -> None:
    net = small("dpot_s")
    weights = {key: value.clone() for key, value in net.state_dict().items()}
    changed = next(key for key in weights if key.endswith("bias"))
    weights[changed] = weights[changed].double() + 1e300
    torch.save({"model": weights}, tmp_path / "model_S.pth")
    record = import_dpot_pretraining(net, tmp_path / "model_S.pth")
    assert record.kept == (changed,)
    assert all(value.isfinite().all() for value in net.state_dict().values())


def test_pretraining_of_another_network_is_refused(released: Path) -> None:
    with pytest.raises(CheckpointMismatchError, match="No weight in"):
        import_dpot_pretraining(small("dpot_s"), released)


def test_pretraining_file_is_pointed_to_its_loader(tmp_path: Path) -> None:
    path = tmp_path / "model_S.pth"
    torch.save({"args": argparse.Namespace(lr=1), "model": pretraining_weights()}, path)
    assert read_checkpoint(path).left_out == ("args",)
    assert describe(path).record.format == "dpot pre-training"
    with pytest.raises(CheckpointMismatchError, match="import_dpot_pretraining"):
        load_checkpoint(small("dpot_s"), path)


@pytest.mark.parametrize(("blocks", "hint"), [(3, "2 higher"), (1, "2 lower")])
def test_a_neck_of_another_length_is_named(blocks, hint, tmp_path):
    def network(neck):
        config = small_config("cno", shape_in=SHAPE, shape_out=SHAPE)
        return build("cno", config=config.model_copy(update={"N_res_neck": neck}))

    path = tmp_path / "cno.pth"
    torch.save(network(blocks).state_dict(), path)
    with pytest.raises(CheckpointMismatchError, match=f"`N_res_neck` {hint}"):
        load_checkpoint(network(4 - blocks), path)
