"""Operators in physical units: a network with its normalisers, its file, its fingerprint.

r2no's own file rebuilds an operator without anything else: it holds weights, network config,
normalisers and history. The benchmark's dictionary holds the weights and the history of training,
but neither config nor statistics.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2no import backbones, devices, storage
from r2no._types import Field, History, Operator, PathLike
from r2no.backbones.formats import (
    Checkpoint,
    read_checkpoint,
    write_benchmark,
    write_safetensors,
)
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields
from r2no.errors import ConfigError, FileDamagedError, NonFiniteError, ShapeError

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


def save_operator(
    operator: PhysicalOperator,
    path: PathLike,
    *,
    backbone: str,
    history: Mapping[str, Any] | None = None,
    **context: Any,
) -> Path:
    """Write an operator whose network came from ``backbones.build``.

    Args:
        operator: The network with its normalisers.
        path: ``.safetensors`` for r2no's format, ``.pth`` for the benchmark's dictionary.
        backbone: Registry name of the network.
        history: Of training, as a file keeps it.
        context: JSON-able notes that go into r2no's format, such as the system.
    """
    path = Path(path)
    weights = operator.network.state_dict()
    if path.suffix in (".pth", ".pt"):
        write_benchmark(Checkpoint(path, "benchmark", weights, history or {}), path)
        return path
    if path.suffix != ".safetensors":
        raise ConfigError(
            f"`path` must end in .safetensors or .pth, but got `{path}`: the suffix chooses the "
            "format."
        )
    found: dict[str, Any] = {
        "backbone": backbone,
        "config": operator.network.config.model_dump(mode="json"),  # type: ignore[operator, union-attr]
        "normalisers": {
            "history": plain_normaliser(operator.history_normaliser),
            "target": plain_normaliser(operator.target_normaliser),
        },
        **context,
    }
    write_safetensors(Checkpoint(path, "safetensors", weights, history or {}, (), found), path)
    return path


def load_operator(path: PathLike) -> tuple[PhysicalOperator, dict[str, Any]]:
    """Rebuild the operator of a file in r2no's format; returns it and the file's notes.

    Raises:
        ConfigError: if the file holds weights only, such as the benchmark's.
        FileDamagedError: if it is damaged.
    """
    context = dict(read_checkpoint(path).context)
    if not context:
        raise ConfigError(
            f"`{path}` holds weights without a network config and statistics. Build the network, "
            "fill it with `backbones.load_checkpoint` and wrap it in `PhysicalOperator`."
        )
    try:
        normalisers = [
            normaliser_from_plain(context["normalisers"][side]) for side in ("history", "target")
        ]
        network = backbones.build(context["backbone"], config=context["config"])
    except (KeyError, TypeError) as error:
        raise FileDamagedError(f"The context of `{path}` lacks {error}. Write it again.") from error
    backbones.load_checkpoint(network, path)
    return PhysicalOperator(network, *normalisers).eval(), context


def plain_normaliser(normaliser: Normaliser) -> dict[str, list[float]]:
    """A normaliser as JSON."""
    return {"shift": normaliser.shift.tolist(), "scale": normaliser.scale.tolist()}


def normaliser_from_plain(content: Mapping[str, list[float]]) -> Normaliser:
    """Inverse of :func:`plain_normaliser`."""
    return Normaliser(torch.tensor(content["shift"]), torch.tensor(content["scale"]))
