"""from_python(): a network by the import name of its factory, with weights from a file."""

import importlib
from collections.abc import Callable
from typing import Any

from torch import nn

from r2no._types import PathLike
from r2no.errors import ConfigError
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
    """Import ``package.module:factory``."""
    module, separator, attribute = name.partition(":")
    if not (module and separator and attribute):
        raise ConfigError(
            f"A factory is named `package.module:factory`, but got {name!r}. Put a colon between "
            "the module and the class or function in it."
        )
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"There is no module `{error.name}`, which `{name}` needs. Install its package, "
            "or put its folder on PYTHONPATH; the commands also look in the working folder."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"`{module}` has no `{attribute}`. Check the name of the factory.")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"`{name}` is a `{type(found).__name__}`, which cannot be called.")
    return found  # type: ignore[no-any-return]


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
