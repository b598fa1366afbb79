"""The two file formats of weights: RealPDEBench's dictionaries and r2no's safetensors.

No code in a file is ever run; see :mod:`r2no.torch_files`.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from r2no._types import PathLike
from r2no.errors import FileDamagedError
from r2no.reading import regular_file
from r2no.storage import fingerprint, load_tensors, save_tensors, write_bytes
from r2no.torch_files import dense, is_safetensors, read_torch, type_name

Format = Literal["benchmark", "state dict", "dpot pre-training", "safetensors"]

#: What a RealPDEBench checkpoint stores beside the weights.
HISTORY = ("train_losses", "val_losses", "iteration", "best_iteration", "best_val_loss")

#: What wrappers put before every name: DataParallel and its kin, and ``torch.compile``.
_WRAPPERS = ("module.", "_orig_mod.")

#: Where files keep their weights; without either key a file must be nothing but weights.
_WEIGHTS: dict[str, Format] = {"model_state_dict": "benchmark", "model": "dpot pre-training"}

#: Objects in public files that are dropped: DPOT's holds its settings.
_DROPPED = ("argparse.Namespace",)

_KIND = "r2no backbone weights, format 1"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a file, on the CPU."""

    path: Path
    format: Format
    weights: Mapping[str, Tensor]
    history: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()  # entries that are neither weights nor history
    context: Mapping[str, Any] = field(default_factory=dict)  # network, normalisers; r2no's only


def read_checkpoint(path: PathLike) -> Checkpoint:
    """Read a file of weights; its first bytes tell the format.

    Raises:
        FileDamagedError: if the file is damaged or holds anything but tensors and plain values.
    """
    path = regular_file(path)
    if is_safetensors(path):
        return _read_safetensors(path)
    return _sort_out(read_torch(path, inert=_DROPPED), path)


def write_benchmark(checkpoint: Checkpoint, target: PathLike) -> None:
    """Write the dictionary that RealPDEBench loads."""
    content = {"model_state_dict": dict(checkpoint.weights), **checkpoint.history}
    stream = io.BytesIO()  # PyTorch itself reports a full disk as an internal error
    torch.save(content, stream)
    write_bytes(target, stream.getvalue())


def write_safetensors(checkpoint: Checkpoint, target: PathLike) -> None:
    """Write r2no's format: the weights; history, context and a fingerprint as metadata."""
    weights = dict(checkpoint.weights)
    history = {key: _plain(value) for key, value in checkpoint.history.items()}
    metadata = {
        "kind": _KIND,
        "order": list(weights),
        "history": history,
        "context": dict(checkpoint.context),
        "fingerprint": fingerprint(weights, list(weights), history, checkpoint.context),
    }
    save_tensors(target, weights, metadata)


def _sort_out(content: Any, path: Path) -> Checkpoint:
    """Split the content of a PyTorch file into weights, history and the rest."""
    entries = content if isinstance(content, dict) else {}
    key = next((key for key in _WEIGHTS if key in entries), None)
    weights = entries if key is None else entries[key]
    if not (isinstance(weights, dict) and weights and _is_state_dict(weights)):
        raise FileDamagedError(
            f"`{path}` must hold tensors by name, under `model_state_dict` or `model` or alone, "
            f"but holds a `{type(content).__name__}` with entries {sorted(map(str, entries))[:8]}."
        )
    weights = _unwrapped({name: dense(name, value, path) for name, value in weights.items()})
    if key is None:
        return Checkpoint(path, "state dict", weights)
    history = {name: entries[name] for name in HISTORY if _is_plain(entries.get(name))}
    left_out = tuple(sorted(str(name) for name in entries if name not in (key, *history)))
    return Checkpoint(path, _WEIGHTS[key], weights, history, left_out)


def _is_state_dict(content: dict[Any, Any]) -> bool:
    return all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())


def _unwrapped(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights by the names they have in the bare network."""
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in weights):
            return _unwrapped({name.removeprefix(prefix): v for name, v in weights.items()})
    return weights


def _is_plain(value: Any) -> bool:
    """Whether JSON and both formats can hold a history entry."""
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return isinstance(value, (bool, int, float, str, Tensor))


def _read_safetensors(path: Path) -> Checkpoint:
    """Weights, history and context of r2no's own format, checked against its fingerprint."""
    weights, metadata = load_tensors(path)
    kind = metadata.get("kind") if isinstance(metadata, dict) else None
    if kind != _KIND:
        raise FileDamagedError(
            f"`{path}` is a safetensors file, but not of backbone weights: its kind is {kind!r} "
            f"where {_KIND!r} was expected."
        )
    try:
        order, stored = metadata["order"], metadata["history"]
        context = metadata.get("context", {})
        intact = fingerprint(weights, order, stored, context) == metadata["fingerprint"]
        weights = {key: weights[key] for key in order}
        history = {key: _unplain(value) for key, value in stored.items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileDamagedError(f"The metadata of `{path}` is damaged ({error!r}).") from error
    if not intact:
        raise FileDamagedError(
            f"`{path}` is damaged: its content changed after it was written. Convert it again."
        )
    return Checkpoint(path, "safetensors", weights, history, context=context)


def _plain(value: Any) -> Any:
    """A history entry as JSON; tensors keep their type."""
    if isinstance(value, Tensor):
        return {"tensor": value.tolist(), "dtype": type_name(value)}
    if isinstance(value, dict):
        return {"dict": {str(key): _plain(item) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _unplain(value: Any) -> Any:
    if isinstance(value, list):
        return [_unplain(item) for item in value]
    if isinstance(value, dict) and "tensor" in value:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
    if isinstance(value, dict):
        return {key: _unplain(item) for key, item in value["dict"].items()}
    return value
