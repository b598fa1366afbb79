"""Tell which published network a set of weights belongs to, from the shapes alone."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from r2no.backbones.base import build, names, systems


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
