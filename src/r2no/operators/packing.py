"""A source inside an artifact: what can be brought along, how it is written and made again.

r2no's own operators and factories with plain arguments come back from names, numbers and
safetensors. A factory imports code and an exported program may hold some, so these two need the
reader's consent.
"""

import shutil
from pathlib import Path
from typing import Any

from torch import nn

from r2no import backbones, storage
from r2no._types import Operator
from r2no.backbones.base import network_class
from r2no.data.window import Fields
from r2no.errors import ConfigError, FileDamagedError
from r2no.operators.opening import RECIPE, from_exported, from_python, set_weights
from r2no.operators.wrapped import WrappedOperator, wrap
from r2no.training import PhysicalOperator, load_operator, save_operator
from r2no.training.operator import normaliser_from_plain, operator_state, plain_normaliser

SOURCE_STEM = "source"
SOURCE_FILE = f"{SOURCE_STEM}.safetensors"
SOURCE_FILES = (SOURCE_FILE, f"{SOURCE_STEM}.pt2")
#: Kinds that run code other than r2no's when they are opened.
_FOREIGN = ("python", "exported")
_TUPLE = "__tuple__"


def describe_source(source: Operator) -> dict[str, Any] | None:
    """How to make ``source`` again, as JSON; ``None`` if that is not known."""
    if isinstance(source, PhysicalOperator):
        name = _backbone_name(source.network)
        return None if name is None else {"kind": "operator", "backbone": name}
    network = source.network if isinstance(source, WrappedOperator) else source
    found = _describe_network(network) if isinstance(network, nn.Module) else None
    if found is None or not isinstance(source, WrappedOperator):
        return found
    return {**found, "wrap": _describe_wrap(source)}


def check_describable(source: Operator) -> dict[str, Any]:
    """The description of ``source``.

    Raises:
        ConfigError: if it is not known how to make it again.
    """
    found = describe_source(source)
    if found is None:
        raise ConfigError(
            f"The source, a `{type(source).__name__}`, cannot be included: it is not known how to "
            "make it again. Build it with `operators.from_python`, with plain values as arguments, "
            "or save with `include_source=False` and give it to `r2no.load`."
        )
    return found


def save_source(
    source: Operator, folder: Path, *, stem: str = SOURCE_STEM
) -> tuple[dict[str, Any], list[str]]:
    """Write ``source`` into ``folder``; returns its description and the names of its files.

    Files begin with ``stem``, so that a folder can hold several operators.
    """
    found, weights, program = check_describable(source), f"{stem}.safetensors", f"{stem}.pt2"
    if isinstance(source, PhysicalOperator):
        save_operator(source, folder / weights, backbone=found["backbone"])
        return found, [weights]
    network: Any = source.network if isinstance(source, WrappedOperator) else source
    if found["kind"] == "exported":
        _copy_program(getattr(network, RECIPE), folder / program)
        return found, [program]
    storage.save_tensors(folder / weights, operator_state(network), {"kind": found["kind"]})
    return found, [weights]


def load_source(
    folder: Path, found: dict[str, Any], fields: Fields, *, trust: bool, stem: str = SOURCE_STEM
) -> Operator:
    """Make the source of an artifact again, or another operator in its folder.

    Raises:
        ConfigError: if that runs foreign code and ``trust`` is not given.
    """
    if found["kind"] in _FOREIGN and not trust:
        what = (
            f"import and call `{found['factory']}`"
            if found["kind"] == "python"
            else f"open the exported program `{folder / stem}.pt2`, which can hold any code"
        )
        raise ConfigError(
            f"To make the source of `{folder}` r2no would {what}. If you trust the artifact, pass "
            "`trust_source=True` (on the command line `--trust-source`), or give the operator as "
            "`source`."
        )
    if found["kind"] not in (*_FOREIGN, "operator", "backbone"):
        raise FileDamagedError(
            f"`{folder}` has a source of the unknown kind {found['kind']!r}. Update r2no, or give "
            "the operator as `source`."
        )
    if found["kind"] == "operator":
        return load_operator(folder / f"{stem}.safetensors")[0]
    network = _make_network(folder / stem, found)
    if "wrap" not in found:
        return network.eval()
    settings = dict(found["wrap"])
    if (statistics := settings["normaliser"]) is not None:
        both = (statistics["history"], statistics["target"])
        settings["normaliser"] = tuple(map(normaliser_from_plain, both))
    return wrap(network, fields=fields, **settings)


def _make_network(path: Path, found: dict[str, Any]) -> nn.Module:
    """A network from files whose names begin with ``path``."""
    if found["kind"] == "exported":
        return from_exported(path.with_name(f"{path.name}.pt2"), trust=True)
    if found["kind"] == "python":
        network = from_python(found["factory"], **from_plain(found["arguments"]))
    else:
        network = backbones.build(found["backbone"], config=found["config"])
    file = path.with_name(f"{path.name}.safetensors")
    weights, _ = storage.load_tensors(file)
    set_weights(network, weights, str(file))
    return network


def _describe_network(network: nn.Module) -> dict[str, Any] | None:
    """How to make the network anew; ``None`` if nobody can know."""
    recipe = getattr(network, RECIPE, None)
    if recipe is None:
        name = _backbone_name(network)
        if name is None:
            return None
        config: Any = network.config
        return {"kind": "backbone", "backbone": name, "config": config.model_dump(mode="json")}
    if recipe["kind"] == "exported":
        return {"kind": "exported", "sha256": recipe["sha256"]}
    try:
        return {**recipe, "arguments": to_plain(recipe["arguments"])}
    except TypeError:
        return None


def _describe_wrap(source: WrappedOperator) -> dict[str, Any]:
    """The arguments of :func:`wrap`, as a file holds them."""
    arguments = {"layout": str(source.layout), **source.arguments}
    if source.normaliser is not None:
        named = zip(("history", "target"), source.normaliser, strict=True)
        arguments["normaliser"] = {name: plain_normaliser(of) for name, of in named}
    return arguments


def _backbone_name(network: nn.Module) -> str | None:
    fits = [name for name in backbones.names() if network_class(name) is type(network)]
    return fits[0] if fits else None


def _copy_program(recipe: dict[str, Any], target: Path) -> None:
    path = Path(recipe["path"])
    if not path.is_file() or storage.file_sha256(path) != recipe["sha256"]:
        raise FileDamagedError(
            f"`{path}` is gone or was changed since it was opened, so it cannot be included. "
            "Restore it, or save with `include_source=False`."
        )
    with storage.atomic_path(target) as temporary:
        shutil.copyfile(path, temporary)


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
