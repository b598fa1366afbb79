"""Load, convert and describe files of weights, and tell which published network they are of.

A network is touched only after its file has been read, checked and compared in full. Public
pre-training weights of DPOT fill what they fit of a network of another shape.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2no._repr import brief_repr
from r2no._types import PathLike
from r2no.backbones.base import build, names, systems
from r2no.backbones.formats import (
    Checkpoint,
    Format,
    read_checkpoint,
    write_benchmark,
    write_safetensors,
)
from r2no.errors import CheckpointMismatchError, ConfigError, FileDamagedError
from r2no.storage import file_sha256
from r2no.torch_files import check_finite, misfits, type_name

_DPOT = "dpot_model."  # before the names of its weights


@dataclass(frozen=True)
class CheckpointRecord:
    """Where weights came from and how far their training had got."""

    path: str
    format: Format
    sha256: str
    iteration: int | None
    best_iteration: int | None
    best_val_loss: float | None
    left_out: tuple[str, ...]  # entries of the file that are neither weights nor history


@dataclass(frozen=True)
class CheckpointDescription:
    """A checkpoint at a glance: its origin, its size, and the published networks it fits."""

    record: CheckpointRecord
    fits: tuple[tuple[str, str], ...]  # (system, network)
    network: str | None  # by the names of the weights, whatever their shapes
    types: tuple[str, ...]  # of the weights
    parameters: int
    tensors: int
    context: Mapping[str, Any] = field(default_factory=dict)  # what r2no's own format adds

    __repr__ = brief_repr


@dataclass(frozen=True)
class PretrainingRecord:
    """How much of a network came from a pre-training file."""

    path: str
    sha256: str
    loaded: tuple[str, ...]
    kept: tuple[str, ...]  # keys of the network that the file does not fit; fresh weights stay
    share: float  # of the network's values, from 0 to 1

    __repr__ = brief_repr


def load_checkpoint(net: nn.Module, path: PathLike) -> CheckpointRecord:
    """Fill ``net`` with the weights in ``path``, all of them or none.

    Args:
        net: a network of :func:`r2no.backbones.build`.
        path: a RealPDEBench ``.pth`` file, a plain state dict, or a file of :func:`convert`.

    Raises:
        CheckpointMismatchError: listing what is missing, unexpected or of another shape or type,
            and the published network that the weights do fit.
        FileDamagedError: if the file is damaged or holds anything but tensors and plain values.
        NonFiniteError: if a weight is NaN or infinite.
    """
    checkpoint = read_checkpoint(path)
    own = net.state_dict()
    if any(value.is_meta for value in own.values()):
        raise ConfigError(
            "`net` must have memory for its weights, but lives on the meta device. "
            'Call `net.to_empty(device="cpu")` first.'
        )
    check_finite(checkpoint.weights, f"`{path}`")
    _check_fit(own, checkpoint)
    _check_shared(own, checkpoint)
    record = _record(checkpoint)
    net.load_state_dict(checkpoint.weights, strict=True)
    return record


def import_dpot_pretraining(net: nn.Module, path: PathLike) -> PretrainingRecord:
    """Fill a DPOT network with those weights of ``model_S.pth`` whose name, shape and type agree.

    The file is that of ``hzk17/DPOT`` on Hugging Face. About half of a 20-frame network fits,
    since the sum over time was trained for 10 frames, and nearly all of a 10-frame one. Training
    settings in the file are dropped unread; any other object in it is refused, and none is run.

    Raises:
        CheckpointMismatchError: if nothing fits.
        FileDamagedError: if the file is damaged or asks for code.
        NonFiniteError: if a weight that fits is NaN or infinite.
    """
    stored = {_dpot_name(key): value for key, value in read_checkpoint(path).weights.items()}
    own = net.state_dict()
    fitting = {
        key: stored[key]
        for key, value in own.items()
        if key in stored and (stored[key].shape, stored[key].dtype) == (value.shape, value.dtype)
    }
    if not fitting:
        raise CheckpointMismatchError(
            f"No weight in `{path}` fits the network by name, shape and type. "
            'Build the network with `build("dpot_s", ...)`, and check that the file is DPOT-S.'
        )
    check_finite(fitting, f"`{path}`")

    def values(weights: Mapping[str, Tensor]) -> int:
        return sum(value.numel() for value in weights.values())

    net.load_state_dict(fitting, strict=False)
    return PretrainingRecord(
        path=str(path),
        sha256=file_sha256(path),
        loaded=tuple(fitting),
        kept=tuple(key for key in own if key not in fitting),
        share=values(fitting) / values(own),
    )


def _dpot_name(key: str) -> str:
    """The name of a weight here: one prefix of distributed training off, that of DPOT on."""
    return _DPOT + key.removeprefix("module.").removeprefix(_DPOT)


def convert(source: PathLike, target: PathLike) -> CheckpointRecord:
    """Rewrite a checkpoint in the format that the suffix of ``target`` names.

    ``.safetensors`` gives r2no's format, ``.pth`` or ``.pt`` the benchmark's dictionary. Weights
    and training history survive bit for bit, in both directions.

    Returns:
        The record of ``source``; its ``left_out`` names entries that were not carried over.

    Raises:
        ConfigError: if the suffix is another one.
        FileDamagedError: if ``source`` is damaged.
    """
    writers = {".safetensors": write_safetensors, ".pth": write_benchmark, ".pt": write_benchmark}
    suffix = Path(target).suffix
    if suffix not in writers:
        raise ConfigError(
            f"`target` must end in {', '.join(writers)}, but got `{target}`: "
            "the suffix chooses the format."
        )
    checkpoint = read_checkpoint(source)
    record = _record(checkpoint)
    writers[suffix](checkpoint, target)
    return record


def describe(path: PathLike) -> CheckpointDescription:
    """Say what a checkpoint holds, without a network to load it into."""
    checkpoint = read_checkpoint(path)
    fits = identify(_shapes(checkpoint.weights))
    if fits:
        system, name = fits[0]
        parameters = signature(name, system).parameters
    else:
        parameters = sum(
            value.numel()
            for key, value in checkpoint.weights.items()
            if not key.endswith(("running_mean", "running_var", "num_batches_tracked"))
        )
    record = _record(checkpoint)
    return CheckpointDescription(
        record=record,
        fits=tuple(fits),
        network=likely_network(checkpoint.weights),
        types=tuple(sorted({type_name(value) for value in checkpoint.weights.values()})),
        parameters=parameters,
        tensors=len(checkpoint.weights),
        context=checkpoint.context,
    )


@dataclass(frozen=True)
class Signature:
    """What the weights of one published network look like."""

    shapes: Mapping[str, tuple[int, ...]]
    parameters: int


@cache
def signature(name: str, system: str) -> Signature:
    """Keys and shapes of a published network, read from one built without memory."""
    with torch.device("meta"):
        net = build(name, system=system)
    shapes = {key: tuple(value.shape) for key, value in net.state_dict().items()}
    return Signature(shapes, sum(parameter.numel() for parameter in net.parameters()))


@cache
def _name_patterns(name: str) -> frozenset[str]:
    """Keys of a network with every number left open, over all published configs."""
    keys = {key for system in systems() for key in signature(name, system).shapes}
    return frozenset(re.sub(r"\d+", "#", key) for key in keys)


def likely_network(keys: Iterable[str]) -> str | None:
    """The network whose weights have such names in any config, or ``None``."""
    found = {re.sub(r"\d+", "#", key) for key in keys}
    shared = {name: len(found & _name_patterns(name)) / len(found) for name in names()}
    best = max(names(), key=lambda name: shared[name])
    return best if shared[best] > 0.9 else None


def identify(shapes: Mapping[str, Sequence[int]]) -> list[tuple[str, str]]:
    """Pairs (system, network) whose published weights have exactly these keys and shapes.

    Several systems share one architecture, so the answer may hold more than one pair; it is empty
    for any other network.
    """
    wanted = {key: tuple(shape) for key, shape in shapes.items()}
    return [
        (system, name)
        for name in names()
        for system in systems()
        if signature(name, system).shapes == wanted
    ]


def _record(checkpoint: Checkpoint) -> CheckpointRecord:
    """Origin and progress of a checkpoint; notes that are no numbers mean a damaged file."""
    history = checkpoint.history
    numbers: dict[str, Any] = {}
    try:
        for name, kind in (("iteration", int), ("best_iteration", int), ("best_val_loss", float)):
            numbers[name] = None if history.get(name) is None else kind(history[name])
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise FileDamagedError(
            f"`{checkpoint.path}` must hold numbers under `iteration`, `best_iteration` and "
            f"`best_val_loss` ({error})."
        ) from error
    return CheckpointRecord(
        path=str(checkpoint.path),
        format=checkpoint.format,
        sha256=file_sha256(checkpoint.path),
        left_out=checkpoint.left_out,
        **numbers,
    )


def _check_fit(expected: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Refuse weights with missing, unexpected or mismatched names, listing all three."""
    if problems := misfits(expected, checkpoint.weights, types=True):
        raise CheckpointMismatchError(
            f"The weights in `{checkpoint.path}` do not fit the network: {problems}. "
            f"{_remedy(expected, checkpoint)}"
        )


def _check_shared(own: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Refuse different values under names that are one tensor here: only the last would count."""
    weights, first = checkpoint.weights, dict[int, str]()
    for key, value in own.items():
        other = first.setdefault(value.data_ptr(), key)
        if value.numel() and not torch.equal(weights[key], weights[other]):
            raise CheckpointMismatchError(
                f"`{key}` and `{other}` are one tensor of the network, but differ in "
                f"`{checkpoint.path}`. Its weights were edited; fetch it again."
            )


def _remedy(expected: Mapping[str, Tensor], checkpoint: Checkpoint) -> str:
    """What to build instead, by what the weights look like."""
    if _shapes(expected) == _shapes(checkpoint.weights):
        return "Only types differ: cast the tensors to those of the network and save them again."
    fits = [f"{system}/{name}" for system, name in identify(_shapes(checkpoint.weights))]
    if fits:
        return f"These weights are of {' or '.join(fits)}: build that network."
    if checkpoint.format == "dpot pre-training":
        return "Use `import_dpot_pretraining` to load the part that fits."
    name = likely_network(checkpoint.weights)
    if name == "cno" and (more := _blocks(checkpoint.weights) - _blocks(expected)):
        return (
            "They look like a cno with another number of residual blocks: build it with "
            f"`N_res_neck` {abs(more)} {'higher' if more > 0 else 'lower'}."
        )
    kind = f"They look like a {name} of another config" if name else "They fit no published network"
    return f"{kind}: build one with the config they were trained with."


def _blocks(weights: Mapping[str, Tensor]) -> int:
    """Residual blocks of a CNO, those of its neck among them."""
    parts = (key.split(".") for key in weights if key.startswith("res_nets."))
    return len({part[1] for part in parts})


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in weights.items()}
