"""The training objective of a repair module, term by term (M4).

    mean over ℓ = 1..L of [ ‖h_ℓ - y‖² + β_spe L_spe^ℓ ] + β_fp ‖Φ(X, y)‖²,

where ‖·‖² is the mean square over measured channels, frames and grid, in normalised units.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from r2no import ranks
from r2no._repr import brief_repr
from r2no._types import Field, Grid, HalfPlane, History, Number
from r2no.repair_loop.module import RepairModule, correction_at, repair_steps
from r2no.spectral import wavenumber_radius
from r2no.spectral.transforms import channel_picker, space_last

SpectralNorm = Literal["ortho", "forward"]


class LossTerms(NamedTuple):
    """The objective and its three terms, before the weights β are applied to the latter."""

    total: Float[Tensor, ""]
    spatial: Float[Tensor, ""]
    spectral: Float[Tensor, ""]
    fixed_point: Float[Tensor, ""]

    def __repr__(self) -> str:
        return brief_repr(self)


@lru_cache(maxsize=32)
def spectral_weight(grid: Grid, *, depth: int, steps: int) -> HalfPlane:
    """μ_ℓ(k) ∝ 1 + ρ(k)^η_ℓ with unit mean over the half-plane, η_ℓ = 1 + (ℓ-1)/(L-1).

    The corner of a 2-D grid weighs 1 + 2^(η/2) times the zero wavenumber: 2.41 at the first
    iterate, 3.00 at the last. A single iterate (L = 1) has η = 1.
    """
    exponent = 1 + (depth - 1) / max(steps - 1, 1)
    weight = 1 + wavenumber_radius(grid) ** exponent
    return weight / weight.mean()


@dataclass(frozen=True)
class RepairObjective:
    """The three-term objective (M4) over the iterates of the loop (M3).

    Attributes:
        steps: L.
        step_size: α.
        spectral: β_spe.
        fixed_point: β_fp; the term is evaluated once per batch, at the target.
        norm: Scale of the spectral term: "ortho" is the equation, "forward" divides coefficients
            by the number of grid points, as the paper's appendix words it.
        checkpointing: Recompute each step's activations in the backward pass to save memory.
    """

    steps: int = 12
    step_size: Number = 0.2
    spectral: Number = 1.0
    fixed_point: Number = 0.01
    norm: SpectralNorm = "ortho"
    checkpointing: bool = False

    def __call__(
        self,
        module: RepairModule,
        history: History,
        source: Field,
        target: Field,
        *,
        measured: tuple[int, ...],
        mask: Tensor | None = None,
    ) -> LossTerms:
        """Evaluate the objective on one batch, in normalised units.

        Where nothing was measured (unmeasured channels, gaps under ``mask``) the source stands in
        for the target, and no term counts those points.
        """
        if self.checkpointing:
            module = _Checkpointed(module)
        target, known = completed_target(target, source, measured=measured, mask=mask)
        scored = _Scored(target, measured, None if mask is None else known, self.norm)
        spatial, spectral = target.new_zeros(()), target.new_zeros(())
        trajectory = repair_steps(
            module, history, source, steps=self.steps, step_size=self.step_size
        )
        for depth, iterate in enumerate(trajectory):
            if depth > 0:
                values = scored.select(iterate)
                spatial = spatial + scored.spatial(values)
                spectral = spectral + scored.spectral(values, depth, self.steps)
        still = scored.mean_square(scored.select(module(history, target)))
        spatial, spectral = spatial / self.steps, spectral / self.steps
        total = spatial + self.spectral * spectral + self.fixed_point * still
        return LossTerms(total, spatial, spectral, still)


def completed_target(
    target: Field,
    source: Field,
    *,
    measured: tuple[int, ...],
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The target as training sees it, and where it was measured.

    In unmeasured channels and in gaps the source stands in.
    """
    known = torch.zeros_like(target, dtype=torch.bool)
    known[..., list(measured)] = True
    if mask is not None:
        known &= mask
    return torch.where(known, target, source), known


class _Scored:
    """The measured part of a target, and the residuals against it."""

    def __init__(
        self, target: Tensor, measured: tuple[int, ...], known: Tensor | None, norm: SpectralNorm
    ) -> None:
        self._measured, self._norm = channel_picker(measured), norm
        self._known = None if known is None else space_last(known[..., self._measured])
        self._target = self.select(target)
        self._count = ranks.fair_count(self._known, self._target)
        self._grid = tuple(self._target.shape[3:])
        self._magnitude = self._spectrum(self._target)

    def select(self, field: Tensor) -> Tensor:
        values = space_last(field[..., self._measured])
        return values if self._known is None else torch.where(self._known, values, 0)

    def mean_square(self, values: Tensor) -> Tensor:
        return (
            values.square().mean() if self._count is None else values.square().sum() / self._count
        )

    def spatial(self, values: Tensor) -> Tensor:
        return self.mean_square(values - self._target)

    def spectral(self, values: Tensor, depth: int, steps: int) -> Tensor:
        weight = spectral_weight(self._grid, depth=depth, steps=steps).to(values)
        return (weight * (self._spectrum(values) - self._magnitude).square()).mean()

    def _spectrum(self, values: Tensor) -> Tensor:
        axes = tuple(range(3 - values.ndim, 0))
        result: Tensor = torch.fft.rfftn(values, dim=axes, norm=self._norm).abs()
        return result


class _Checkpointed:
    """A repair module whose steps keep no activations; BatchNorm statistics update only once."""

    def __init__(self, module: RepairModule) -> None:
        self._module = module

    def __call__(self, history: Tensor, estimate: Tensor) -> Tensor:
        return self.at(history)(estimate)

    def at(self, history: Tensor) -> Callable[[Tensor], Tensor]:
        correction = correction_at(self._module, history)

        def contexts() -> tuple[
            contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]
        ]:
            return contextlib.nullcontext(), _frozen_statistics(self._module)

        return lambda estimate: checkpoint(
            correction, estimate, use_reentrant=False, context_fn=contexts
        )


@contextlib.contextmanager
def _frozen_statistics(module: RepairModule) -> Iterator[None]:
    """Leave BatchNorm's running statistics alone while a step is recomputed.

    Momentum 0 keeps their bits, and the graph the same as in the first pass.
    """
    modules = module.modules() if isinstance(module, nn.Module) else ()
    norms = [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, (_, tracked) in zip(norms, before, strict=True):
        norm.momentum = 0.0
        norm.num_batches_tracked = None if tracked is None else tracked.clone()
    try:
        yield
    finally:
        for norm, (momentum, tracked) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, tracked
