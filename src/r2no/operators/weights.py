"""Weights of other people's networks: read without running code, compared strictly."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2no import storage, torch_files
from r2no._types import PathLike
from r2no.errors import CheckpointMismatchError, FileDamagedError
from r2no.reading import regular_file
from r2no.torch_files import a_few, dense, is_safetensors, misfits, read_torch
from r2no.training.operator import operator_state

#: Where files keep their weights, if not alone.
_KEYS = ("model_state_dict", "state_dict", "model")
#: Entries that are no weights by convention: neuraloperator notes its settings under this name.
_NOTES = ("_metadata",)


def read_weights(path: PathLike) -> dict[str, Tensor]:
    """The tensors in a safetensors file or a PyTorch file of a state dict.

    PyTorch files are read with ``weights_only=True``, and any object in them other than tensors
    and plain values is replaced by an inert one, so no code of the file runs. A file whose
    weights themselves are such objects (a whole pickled module, say) is refused.

    Raises:
        FileDamagedError: if the file is damaged or holds no state dict.
        NonFiniteError: if a weight is NaN or infinite.
    """
    path = regular_file(path)
    weights = storage.load_tensors(path)[0] if is_safetensors(path) else _read_torch(path)
    torch_files.check_finite(weights, f"`{path}`")
    return weights


def fill(network: nn.Module, path: PathLike) -> None:
    """Load the weights in ``path`` into ``network``, all of them or none.

    Raises:
        CheckpointMismatchError: listing what is missing, unexpected or of another shape.
    """
    weights = read_weights(path)
    set_weights(network, weights, str(path))


def set_weights(network: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """As :func:`fill`, from tensors; ``name`` is for messages."""
    expected = operator_state(network)
    if problems := misfits(expected, weights, types=False):
        raise CheckpointMismatchError(
            f"`{name}` does not fit the network. It has {problems}. Build the network with the "
            "arguments it was trained with."
        )
    with torch.no_grad():
        for key, value in expected.items():
            value.copy_(weights[key])


def check_finite(network: nn.Module) -> None:
    """Refuse a network with weights that are NaN or infinite.

    Raises:
        NonFiniteError: naming the tensors.
    """
    torch_files.check_finite(operator_state(network), "`network`")


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Tensors of a ``torch.save`` file, read without running anything in it."""
    if not zipfile.is_zipfile(path):
        raise FileDamagedError(
            f"`{path}` is neither a safetensors file nor a `torch.save` file of PyTorch 1.6 or "
            "later, or it was cut short. Save the state dict again, or copy the file again."
        )
    content = read_torch(path, inert=None)
    entries: Any = content if isinstance(content, Mapping) else {}
    entries = next((entries[key] for key in _KEYS if key in entries), entries)
    rest = [
        key
        for key, value in (entries.items() if isinstance(entries, Mapping) else ())
        if not isinstance(value, Tensor) and key not in _NOTES
    ]
    if not isinstance(entries, Mapping) or not entries or rest:
        raise FileDamagedError(
            f"`{path}` must hold tensors by name, alone or under {', '.join(_KEYS)}, but holds a "
            f"`{type(content).__name__}`{f' with {a_few(rest)}' if rest else ''}. Save "
            "`network.state_dict()` instead of the whole object."
        )
    return {
        str(key): dense(str(key), value, path)
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }
