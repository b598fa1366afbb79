"""Weights and inputs by formula, so that stored outputs need no stored weights."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

GOLDEN = Path(__file__).parents[1] / "golden" / "backbones"
_PRIME = 65537


def _wave(count: int, position: int, phase: float) -> np.ndarray:
    """sin of a cubic hash of the flat index, so that filled matrices have full rank."""
    n = np.arange(min(count, _PRIME), dtype=np.int64)
    wave = np.sin(0.7310 * (n**3 % _PRIME + 1) + 0.37 * position + phase)
    return np.resize(wave, count)


def _filled(key: str, position: int, tensor: Tensor) -> np.ndarray:
    a = _wave(tensor.numel(), position, 0.0)
    shape = tuple(tensor.shape)
    last = key.rsplit(".", 1)[-1]
    if last == "running_var":
        value = 1 + 0.5 * np.abs(a)
    elif last == "temperature":
        value = 0.5 + 0.5 * a
    elif last == "gamma" or (last == "weight" and tensor.dim() < 2):
        value = 1 + 0.1 * a
    elif last in ("running_mean", "pos_embed", "b1", "b2") or tensor.dim() < 2:
        value = 0.1 * a
    else:
        fan = math.prod(shape[1:])
        if tensor.is_complex():
            fan, a = shape[0], a + 1j * _wave(tensor.numel(), position, 1.1)
        elif key.endswith(("filter.w1", "filter.w2")):
            fan = 2 * shape[-2]
        elif key.endswith("time_agg_layer.w"):
            fan = shape[0] * shape[1]
        value = a * (2 / math.sqrt(fan))
    return value.reshape(shape)


def fill(net: nn.Module) -> nn.Module:
    """Give every learned value of ``net`` a number that depends on its key and place alone."""
    state = net.state_dict()
    with torch.no_grad():
        for position, key in enumerate(sorted(state)):
            tensor = state[key]
            if key.endswith("rotary_emb.freqs") or not (
                tensor.is_floating_point() or tensor.is_complex()
            ):
                continue
            tensor.copy_(torch.from_numpy(_filled(key, position, tensor)).to(tensor.dtype))
    return net


def in_double(net: nn.Module) -> nn.Module:
    """All floating-point values in double precision; ``Module.double`` leaves complex ones."""

    def double(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        return tensor.double() if tensor.is_floating_point() else tensor

    return net._apply(double)


def wave_input(shape: tuple[int, ...]) -> Tensor:
    """The input of every golden case: sin(0.37 k + 0.5) over the flat index k."""
    k = np.arange(math.prod(shape), dtype=np.float64)
    return torch.from_numpy(np.sin(0.37 * k + 0.5).reshape(shape)).float()


def gradient_norms(net: nn.Module, y: Tensor) -> dict[str, float | None]:
    """Norm of d mean(y²)/dp per parameter, ``None`` where y does not depend on it."""
    named = [(key, p) for key, p in net.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad((y**2).mean(), [p for _, p in named], allow_unused=True)
    return {
        key: None if g is None else torch.linalg.vector_norm(g).item()
        for (key, _), g in zip(named, gradients, strict=True)
    }


class GoldenCase:
    """One stored case of one network."""

    def __init__(self, backbone: str, name: str) -> None:
        self.backbone, self.name = backbone, name
        self._archive = np.load(GOLDEN / f"{backbone}.npz")

    def __contains__(self, field: str) -> bool:
        return f"{self.name}/{field}" in self._archive.files

    def tensor(self, field: str) -> Tensor:
        return torch.from_numpy(self._archive[f"{self.name}/{field}"])

    def facts(self, field: str) -> Any:
        return json.loads(str(self._archive[f"{self.name}/{field}"]))


def golden_cases() -> Iterator[tuple[str, str]]:
    for path in sorted(GOLDEN.glob("*.npz")):
        with np.load(path) as archive:
            for name in json.loads(str(archive["cases"])):
                yield path.stem, name
