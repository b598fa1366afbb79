"""Networks from outside: by the import name of a factory, or from an exported program; weights.

Networks remember how they were made, so that an artifact can make them again. Weights are read
without running code and compared strictly.
"""

import contextlib
import importlib.util
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2no import storage, torch_files
from r2no._repr import first_line
from r2no._types import PathLike
from r2no.errors import CheckpointMismatchError, ConfigError, FileDamagedError
from r2no.reading import regular_file
from r2no.torch_files import a_few, dense, is_safetensors, misfits, read_torch
from r2no.training.operator import operator_state

#: Attribute under which a network remembers how it was made, so an artifact can make it again.
RECIPE = "r2no_recipe"
#: Where files keep their weights, if not alone.
_KEYS = ("model_state_dict", "state_dict", "model")
#: Entries that are no weights by convention: neuraloperator notes its settings under this name.
_NOTES = ("_metadata",)


def from_python(name: str, /, checkpoint: PathLike | None = None, **arguments: Any) -> nn.Module:
    """Build a network with ``package.module:factory`` and fill it with weights.

    Naming a factory runs its code, as importing it would; the checkpoint never does. An artifact
    of a model adapted from this network can bring it along if the arguments are plain values.

    Args:
        name: Import name of the factory, a class or function that returns a module.
        checkpoint: Weights as safetensors or a PyTorch state dict; all must fit.
        arguments: Passed to the factory.

    Raises:
        ConfigError: if there is no such module or factory, or it fails or returns no module.
        CheckpointMismatchError: if the weights do not fit.
    """
    factory = import_factory(name)
    try:
        network = factory(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"`{name}` does not take these arguments ({', '.join(arguments) or 'none'}): {error}."
        ) from error
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"`{name}` must return a `torch.nn.Module`, but returned a "
            f"`{type(network).__name__}`. Name a class or a function that builds the network."
        )
    if checkpoint is not None:
        set_weights(network, read_weights(checkpoint), str(checkpoint))
    setattr(network, RECIPE, {"kind": "python", "factory": name, "arguments": arguments})
    return network.eval()


def import_factory(name: str) -> Callable[..., Any]:
    """Import ``package.module:factory``; from the working folder if it is nowhere else."""
    module, separator, attribute = name.partition(":")
    if not (separator and attribute and all(map(str.isidentifier, module.split(".")))):
        raise ConfigError(
            f"A factory is named `package.module:factory`, but got {name!r}. Put a colon between "
            "the module and the class or function in it."
        )
    try:
        with _working_folder(module.split(".")[0]):
            found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"There is no module `{error.name}`, which `{name}` needs. Install its package, "
            "or put its folder on PYTHONPATH; the module itself may also lie in the working folder."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"`{module}` has no `{attribute}`. Check the name of the factory.")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"`{name}` is a `{type(found).__name__}`, which cannot be called.")
    return found  # type: ignore[no-any-return]


@contextlib.contextmanager
def _working_folder(package: str) -> Iterator[None]:
    """Look in the working folder too, last and only now, for a package that is nowhere else.

    Nothing else is ever imported from there: a folder of data must not bring code along.
    """
    folder = os.getcwd()
    known = package in sys.modules or importlib.util.find_spec(package) is not None
    if known or folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        importlib.invalidate_caches()
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


class ExportedNetwork(nn.Module):
    """An exported program; it was traced in one mode, so ``train`` and ``eval`` do nothing."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, values: Tensor) -> Tensor:
        """What the program answers."""
        answer: Tensor = self.program(values)
        return answer

    def train(self, mode: bool = True) -> "ExportedNetwork":
        """Nothing: the program has no modes."""
        del mode
        return self


def from_exported(path: PathLike, *, trust: bool = False) -> nn.Module:
    """Open a program written by ``torch.export.save`` (``.pt2``).

    ``torch.export.load`` unpickles parts of the file (weights and constants that are marked so,
    and example inputs, where it falls back to ``weights_only=False``), and evaluates the
    expressions of its shapes. So a file from a stranger can run any code, and it is opened only
    with ``trust=True``. Weights in safetensors with :func:`from_python` need no such trust.

    Raises:
        ConfigError: without ``trust=True``, or if there is no such file.
        FileDamagedError: if it is not an exported program.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"There is no exported program `{path}`.")
    if not trust:
        raise ConfigError(
            f"Opening `{path}` can run code that is in it, since PyTorch unpickles parts of "
            "exported programs. If you made the file or trust who did, pass `trust=True` "
            "(`trust: true` in a config)."
        )
    try:
        program = torch.export.load(path)
    except Exception as error:  # the reader raises whatever the archive's parts make it
        reason = first_line(error)
        raise FileDamagedError(
            f"`{path}` is not an exported program, or damaged: {reason}. Write it again with "
            "`torch.export.save`."
        ) from error
    network = ExportedNetwork(program.module())
    sha256 = storage.file_sha256(path)
    setattr(network, RECIPE, {"kind": "exported", "path": str(path), "sha256": sha256})
    return network


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


def set_weights(network: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Load ``weights`` into ``network``, all of them or none; ``name`` is for messages.

    Raises:
        CheckpointMismatchError: listing what is missing, unexpected or of another shape.
    """
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
