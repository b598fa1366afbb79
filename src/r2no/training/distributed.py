"""Gradients and normalisation over several processes, so that N of them train as one would."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from r2no import ranks

#: Loss of a batch, as it was read, with terms to log.
LossFunction = Callable[[Any], tuple[Tensor, Mapping[str, Tensor]]]


class Gradients:
    """Loss of a batch with its gradients, each process taking its share of the windows.

    Losses count by windows, where there are gaps by points. Without a window of its own a process
    computes the batch's first one and counts for nothing, since all must take part in every sum.
    """

    def __init__(self, module: nn.Module, loss: LossFunction) -> None:
        self._module, self._loss, self._own = module, loss, loss
        if ranks.world_size() > 1:
            self._loss = DistributedDataParallel(_Step(module, loss), find_unused_parameters=True)

    def __call__(self, batch: Any, numbers: list[int]) -> tuple[float, dict[str, float]]:
        """Leave the gradients in the parameters; returns the loss of the whole batch, and terms.

        ``batch`` is what was read of this process's share of the ``numbers`` (:func:`own_share`).
        """
        weight = len(ranks.share(numbers)) / len(numbers)
        with synchronised(self._module, counts=weight > 0), ranks.computing(weight):
            loss, terms = self._loss(batch)
            (loss * (weight * ranks.world_size())).backward()  # which are averaged
        values = torch.stack([loss, *terms.values()]).tolist()  # waits for a GPU once
        total = ranks.weighted(dict(zip(("", *terms), values, strict=True)), weight)
        return total.pop(""), total

    def attempt(self, batch: Any) -> None:
        """The work of a batch of this process alone, for nothing but to see whether it fits."""
        self._own(batch)[0].backward()


def own_share(numbers: list[int]) -> list[int]:
    """The windows of a batch that this process computes; see :class:`Gradients`."""
    return list(ranks.share(numbers)) or numbers[:1]


class _Step(nn.Module):
    """A loss as a module, whose forward is one pass however often it calls the network.

    Some networks have parameters that only fill a place in released files, so unused ones are
    looked for; and then gradients are not regrouped after the first update, so that a resumed run
    adds them up in the same order. ``idle`` is there to be found: nothing warns of a vain search.
    """

    def __init__(self, module: nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.module, self._loss = module, loss
        self.idle = nn.Parameter(next(module.parameters()).new_zeros(1))

    def forward(self, batch: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
        return self._loss(batch)


@contextlib.contextmanager
def synchronised(module: nn.Module, *, counts: bool = True) -> Iterator[None]:
    """Let BatchNorm use the statistics of all processes' windows, or of those that count."""
    norms = [one for one in module.modules() if isinstance(one, _BatchNorm)]
    if ranks.world_size() == 1:
        norms = []
    for norm in norms:
        norm.forward = partial(_normalised, norm, counts)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _normalised(norm: _BatchNorm, counts: bool, values: Tensor) -> Tensor:
    """What BatchNorm gives in training, with the moments of all processes."""
    if not norm.training:
        plain: Tensor = type(norm).forward(norm, values)
        return plain
    found: tuple[Tensor, ...] = _SharedMoments.apply(values, norm.eps, counts)  # type: ignore[no-untyped-call]
    scaled, mean, variance, number = found
    if norm.track_running_stats and norm.running_mean is not None:
        _remember(norm, mean, variance * number / (number - 1).clamp_min(1))
    if not norm.affine:
        return scaled
    shape = (1, -1, *[1] * (values.ndim - 2))
    moved: Tensor = torch.addcmul(norm.bias.view(shape), scaled, norm.weight.view(shape))
    return moved


@torch.no_grad()
def _remember(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Move the running statistics towards those of the batch."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    share = norm.momentum
    if share is None:
        share = 1.0 / float(norm.num_batches_tracked)
    norm.running_mean.mul_(1 - share).add_(mean.to(norm.running_mean.dtype), alpha=share)
    norm.running_var.mul_(1 - share).add_(variance.to(norm.running_var.dtype), alpha=share)


class _SharedMoments(torch.autograd.Function):
    """Values less their mean, by their standard deviation, both over all processes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, eps: float, counts: bool) -> tuple[Tensor, ...]:
        """Also the mean, the variance and the number of values; sums travel in float64."""
        axes = [axis for axis in range(values.ndim) if axis != 1]
        variance, mean = (one.double() for one in torch.var_mean(values, axes, correction=0))
        number = torch.full_like(mean[:1], values.numel() // values.shape[1])
        sums = torch.cat([number, number * mean, number * (variance + mean**2)]) * float(counts)
        ranks.add_up(sums)
        number, (mean, squares) = sums[:1], (sums[1:] / sums[:1]).unflatten(0, (2, -1))
        variance = squares - mean**2
        shape = (1, -1, *[1] * (values.ndim - 2))
        inverse = (variance + eps).rsqrt().to(values.dtype).view(shape)
        scaled = (values - mean.to(values.dtype).view(shape)) * inverse
        ctx.save_for_backward(scaled, inverse, number)
        ctx.counts, ctx.axes = counts, axes
        ctx.mark_non_differentiable(mean, variance, number)
        return scaled, mean, variance, number

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient at the values, whose mean and spread depend on all processes."""
        scaled, inverse, number = ctx.saved_tensors
        gradient = gradients[0]
        sums = torch.stack([gradient.sum(ctx.axes), (gradient * scaled).sum(ctx.axes)])
        ranks.add_up(sums)
        of_mean, of_spread = (sums / number * float(ctx.counts)).to(gradient.dtype)
        shape = inverse.shape
        return (
            inverse * (gradient - of_mean.view(shape) - scaled * of_spread.view(shape)),
            None,
            None,
        )
