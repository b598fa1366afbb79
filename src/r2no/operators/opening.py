"""Networks from outside: by the import name of a factory, or from an exported program.

Both remember how they were made, so that an artifact can make them again.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2no import storage
from r2no._repr import first_line
from r2no._types import PathLike
from r2no.errors import ConfigError, FileDamagedError
from r2no.operators.weights import fill

#: Attribute under which a network remembers how it was made, so an artifact can make it again.
RECIPE = "r2no_recipe"
_TUPLE = "__tuple__"


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
        fill(network, checkpoint)
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


def to_plain(value: Any) -> Any:
    """An argument as JSON can hold it, tuples marked; ``TypeError`` for anything but plain values.

    Example:
        >>> from_plain(to_plain({"n_modes": (4, 4)}))
        {'n_modes': (4, 4)}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return {_TUPLE: [to_plain(item) for item in value]}
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: to_plain(item) for key, item in value.items()}
    raise TypeError(f"a `{type(value).__name__}` is no plain value")


def from_plain(value: Any) -> Any:
    """Inverse of :func:`to_plain`."""
    if isinstance(value, dict) and set(value) == {_TUPLE}:
        return tuple(from_plain(item) for item in value[_TUPLE])
    if isinstance(value, dict):
        return {key: from_plain(item) for key, item in value.items()}
    return [from_plain(item) for item in value] if isinstance(value, list) else value
