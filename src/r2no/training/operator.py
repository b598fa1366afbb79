"""Operators in physical units: a network with its normalisers, persistence, fingerprints."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from r2no import storage
from r2no._types import Operator
from r2no.data.normalise import Normaliser


class PhysicalOperator(nn.Module):
    """A network between normalisers: physical history in, physical prediction out."""

    def __init__(self, network: nn.Module, history: Normaliser, target: Normaliser) -> None:
        super().__init__()
        self.network = network
        self.history_normaliser, self.target_normaliser = history, target
        for name, statistics in (("history", history), ("target", target)):
            self.register_buffer(f"{name}_shift", statistics.shift)
            self.register_buffer(f"{name}_scale", statistics.scale)

    def forward(
        self, history: Float[Tensor, "batch history_time *space_history_channel"]
    ) -> Float[Tensor, "batch time *space_channel"]:
        """The forecast."""
        return self.target_normaliser.inverse(self.network(self.history_normaliser(history)))


class Persistence(nn.Module):
    """The last frame of the history, repeated: the forecast every method must beat."""

    def __init__(self, horizon: int, channels: int) -> None:
        super().__init__()
        self.horizon, self.channels = horizon, channels

    def forward(
        self, history: Float[Tensor, "batch history_time *space_history_channel"]
    ) -> Float[Tensor, "batch time *space_channel"]:
        """The forecast."""
        last = history[:, -1:, ..., : self.channels]
        return last.expand(-1, self.horizon, *[-1] * (history.ndim - 2)).contiguous()


def operator_fingerprint(operator: Operator, probe: Tensor) -> str:
    """Hash of an operator: its state, where it has one, and its answer to ``probe``.

    A plain callable has no state to hash, so what it answers to the first window identifies it,
    and its attribute ``fingerprint`` if it has one.
    """
    with torch.no_grad():
        answer = operator(probe)
    return storage.fingerprint(operator_state(operator), answer, *_own_fingerprint(operator))


def operator_identity(operator: Operator) -> str:
    """Hash of what an operator is made of, whatever the machine: not of its answers."""
    return storage.fingerprint(operator_state(operator), *_own_fingerprint(operator))


def _own_fingerprint(operator: Operator) -> list[str]:
    return [operator.fingerprint] if hasattr(operator, "fingerprint") else []


def operator_state(operator: Operator) -> dict[str, Tensor]:
    """The tensors of an operator's state, where it has one; other packages add notes to theirs."""
    state: dict[str, Any] = dict(operator.state_dict()) if isinstance(operator, nn.Module) else {}
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}
