"""The repair loop (M3), written once: training, validation, fitting and prediction all read it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from r2no import checks
from r2no._types import Field, History, Number
from r2no.errors import ShapeError


@runtime_checkable
class RepairModule(Protocol):
    """Φ_θ: a history and an estimate in, a correction of the estimate's shape out.

    A module that can use the history once for many estimates also has
    ``at(history) -> Callable[[estimate], correction]``.
    """

    def __call__(self, history: Tensor, estimate: Tensor, /) -> Tensor:
        """The correction Φ_θ(X, h) of an estimate, before it is scaled by the step."""
        ...


def correction_at(module: RepairModule, history: Tensor) -> Callable[[Tensor], Tensor]:
    """Φ_θ(X, ·) for a fixed history, prepared once where the module knows how to."""
    prepare = getattr(module, "at", None)
    return partial(module, history) if prepare is None else prepare(history)


def repair_steps(
    module: RepairModule,
    history: History,
    estimate: Field,
    *,
    steps: int,
    step_size: Number,
) -> Iterator[Field]:
    """Iterate (M3), h_{ℓ+1} = h_ℓ + α Φ_θ(X, h_ℓ), and yield h_0, h_1, ..., h_L as they appear.

    Memory does not grow with depth unless the caller keeps them. Non-finite values are passed on;
    callers raise or report them.
    """
    correction = correction_at(module, history)
    yield estimate
    for _ in range(steps):
        # the correction first: the sum then lies in memory as the module likes its input
        estimate = correction(estimate).mul(step_size).add_(estimate)
        yield estimate


def repair(
    module: RepairModule,
    history: History,
    estimate: Field,
    *,
    steps: int = 12,
    step_size: Number = 0.2,
) -> Float[Tensor, "iterate batch time *space_channel"]:
    """All iterates of (M3) in one tensor; entry 0 is ``estimate``."""
    history, estimate = checks.tensor("history", history), checks.tensor("estimate", estimate)
    steps, step_size = checks.whole("steps", steps, least=0), checks.real("step_size", step_size)
    if history.shape[:1] != estimate.shape[:1] or estimate.ndim == 0:
        raise ShapeError(
            "`history` and `estimate` must hold the same windows, but have shapes "
            f"{tuple(history.shape)} and {tuple(estimate.shape)}."
        )
    trajectory = repair_steps(module, history, estimate, steps=steps, step_size=step_size)
    return torch.stack(list(trajectory))
