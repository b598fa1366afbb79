"""Operators in physical units: a network with its normalisers, persistence, fingerprints."""

from typing import Any

import torch
from torch import Tensor, nn

from r2no import devices, storage
from r2no._types import Field, History, Operator
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields
from r2no.errors import NonFiniteError, ShapeError

#: Largest difference between two answers that rounding explains, relative to the largest value or,
#: if that is less, to the range of values: fields may lie on top of a large constant. Then the
#: rounding of that constant comes on top, too.
SAME_ANSWER = 1e-4
_OF_THE_CONSTANT = 32 * torch.finfo(torch.float32).eps


class Normalised(nn.Module):
    """An operator with normalisers, whose numbers are buffers: they move and load with the rest."""

    history_shift: Tensor
    history_scale: Tensor
    target_shift: Tensor
    target_scale: Tensor

    def keep(self, history: Normaliser, target: Normaliser) -> None:
        """Take the numbers of both."""
        for name, statistics in (("history", history), ("target", target)):
            self.register_buffer(f"{name}_shift", statistics.shift)
            self.register_buffer(f"{name}_scale", statistics.scale)

    @property
    def history_normaliser(self) -> Normaliser:
        """Of what the network is given."""
        return Normaliser.trusted(self.history_shift, self.history_scale)

    @property
    def target_normaliser(self) -> Normaliser:
        """Of what the network answers."""
        return Normaliser.trusted(self.target_shift, self.target_scale)

    @property
    def normalisers(self) -> tuple[Normaliser, Normaliser]:
        """That of histories and that of targets."""
        return self.history_normaliser, self.target_normaliser


class PhysicalOperator(Normalised):
    """A network between normalisers: physical history in, physical prediction out."""

    def __init__(self, network: nn.Module, history: Normaliser, target: Normaliser) -> None:
        super().__init__()
        self.network = network
        self.keep(history, target)

    def __repr__(self) -> str:
        number = sum(parameter.numel() for parameter in self.network.parameters())
        return f"PhysicalOperator({type(self.network).__name__}, {number:,} parameters)"

    def forward(self, history: History) -> Field:
        """The forecast for a history, both in physical units."""
        return self.target_normaliser.inverse(self.network(self.history_normaliser(history)))


class Persistence(nn.Module):
    """The last frame of the history, repeated: the forecast every method must beat."""

    def __init__(self, horizon: int, channels: int) -> None:
        super().__init__()
        self.horizon, self.channels = horizon, channels

    @classmethod
    def of(cls, fields: Fields) -> "Persistence":
        """For windows of these fields."""
        return cls(fields.horizon_frames, len(fields.channels))

    def __repr__(self) -> str:
        return f"Persistence({self.horizon} frames of {self.channels} channels)"

    def forward(self, history: History) -> Field:
        """The forecast for a history, both in physical units."""
        last = history[:, -1:, ..., : self.channels]
        return last.expand(-1, self.horizon, *[-1] * (history.ndim - 2)).contiguous()


@torch.no_grad()
def asked(source: Operator, history: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The source's forecast for a history, in the history's precision.

    Raises:
        ShapeError: unless it is one tensor (batch, *shape).
        NonFiniteError: if a value is NaN or infinite.
    """
    answer: Any = devices.answer(source, history)
    if not isinstance(answer, Tensor):
        raise ShapeError(
            f"`source` must return one tensor, but returned a `{type(answer).__name__}`. Wrap it "
            "in a function that picks the forecast and turns it into a tensor."
        )
    if tuple(answer.shape) != (len(history), *shape):
        raise ShapeError(
            f"`source` must return (batch, {', '.join(map(str, shape))}) for these windows, "
            f"but gave shape {tuple(answer.shape)} for {len(history)}. Adapt its layout, frames or "
            "channels."
        )
    if answer.is_complex():
        raise ShapeError("`source` returned complex numbers. Return a real field.")
    if not torch.isfinite(answer).all():
        raise NonFiniteError(
            "`source` returned NaN or infinity. Check its weights and whether it expects "
            "normalised input (`normaliser` of `r2no.operators.wrap`)."
        )
    return answer.detach().to(history.dtype)


def operator_identity(operator: Operator) -> str:
    """Hash of what an operator is made of, whatever the machine: not of its answers.

    A plain callable has no state to hash; its attribute ``fingerprint``, if it has one, identifies
    it, else only its answers do (:func:`same_answer`).
    """
    return storage.fingerprint(operator_state(operator), *_own_fingerprint(operator))


def same_answer(first: Tensor, second: Tensor) -> bool:
    """Whether two answers are one but for rounding on another processor, or by more threads."""
    if first.shape != second.shape:
        return False
    first, second = first.detach().cpu().double(), second.detach().cpu().double()
    finite = second[second.isfinite()]
    largest = float(finite.abs().max()) if len(finite) else 0.0
    span = float(finite.max() - finite.min()) if len(finite) else 0.0
    tolerance = SAME_ANSWER * min(largest, span) + _OF_THE_CONSTANT * largest
    return torch.allclose(first, second, rtol=0, atol=tolerance, equal_nan=True)


def operator_fingerprint(operator: Operator, probe: Tensor) -> str:
    """Hash of an operator and of the bits of its answer to ``probe``; of use on one machine only.

    Artifacts of format 1 know their source by it.
    """
    with torch.no_grad():
        answer = devices.answer(operator, probe)
    return storage.fingerprint(operator_state(operator), answer, *_own_fingerprint(operator))


def _own_fingerprint(operator: Operator) -> list[str]:
    return [operator.fingerprint] if hasattr(operator, "fingerprint") else []


def operator_state(operator: Operator) -> dict[str, Tensor]:
    """The tensors of an operator's state, where it has one; other packages add notes to theirs."""
    state: dict[str, Any] = dict(operator.state_dict()) if isinstance(operator, nn.Module) else {}
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}
