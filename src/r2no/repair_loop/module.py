"""The repair loop (M3), written once, and RepairUNet, the weight-shared module Φ_θ it iterates.

Training, validation, fitting and prediction all read this loop; the U-Net is that of the iterative
refinement baseline.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from r2no import checks, devices
from r2no._types import Field, History, Number, PaddingMode
from r2no.errors import ShapeError
from r2no.repair_loop.inference import Kept


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


class _ConvBlock(nn.Module):
    """3x3 convolution, BatchNorm, GELU."""

    def __init__(self, channels_in: int, channels_out: int, padding: PaddingMode) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, padding_mode=padding)
        self.norm: nn.Module = nn.BatchNorm2d(channels_out)

    def forward(self, values: Tensor) -> Tensor:
        return F.gelu(self.norm(self.conv(values)))

    def fold(self) -> None:
        """Move the normalisation's fixed statistics into the convolution (evaluation only)."""
        if isinstance(self.norm, nn.BatchNorm2d):
            self.conv = fuse_conv_bn_eval(self.conv, self.norm)
            self.norm = nn.Identity()


class _FirstBlock(_ConvBlock):
    """The first block, linear in its input, so the history's share is computed once per window."""

    def split(self, values: Tensor, start: int) -> Tensor:
        """Convolve with the weights of the input channels from ``start`` on; no bias."""
        weight = self.conv.weight[:, start : start + values.shape[1]]
        mode = self.conv.padding_mode
        if mode != "zeros":
            values = F.pad(values, (1, 1, 1, 1), mode=mode)
        return F.conv2d(values, weight, padding=1 if mode == "zeros" else 0)

    def bias(self) -> Tensor:
        assert self.conv.bias is not None
        return self.conv.bias

    def finish(self, values: Tensor) -> Tensor:
        return F.gelu(self.norm(values))


def _channels_last(module: "RepairUNet") -> "RepairUNet":
    """Lay the convolutions' weights out as their inputs are; in place."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _double(channels_in: int, channels_out: int, padding: PaddingMode) -> nn.Sequential:
    first = _ConvBlock(channels_in, channels_out, padding)
    return nn.Sequential(first, _ConvBlock(channels_out, channels_out, padding))


class _Up(nn.Module):
    """Bilinear up-sampling and 3x3 convolution, skip by concatenation, two blocks."""

    def __init__(self, channels_in: int, channels_out: int, padding: PaddingMode) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, padding_mode=padding)
        self.blocks = _double(2 * channels_out, channels_out, padding)

    def forward(self, values: Tensor, skip: Tensor) -> Tensor:
        larger = F.interpolate(values, scale_factor=2, mode="bilinear", align_corners=True)
        result: Tensor = self.blocks(torch.cat([skip, self.conv(larger)], dim=1))
        return result


class RepairUNet(nn.Module):
    """Φ_θ of (M3): history and estimate in, correction out, over all frames at once.

    Input channels are history frames x channels, then estimate frames x channels; with 60 + 60 of
    them, width 32 and depth 4 it has 8,672,028 parameters. Grids that 2^depth does not divide are
    padded at the end (zeros, wrapped, or edge values, after ``padding``) and cropped. Fields of
    another precision than the weights' are taken, and corrections given in that of the estimate.

    Args:
        history_channels: Frames times channels of the history.
        field_channels: Frames times channels of the estimate and the correction.
        width: Channels of the first level, doubled at each further one.
        depth: Number of 2x2 poolings.
        padding: Padding mode of the convolutions.
    """

    def __init__(
        self,
        history_channels: int,
        field_channels: int,
        width: int = 32,
        depth: int = 4,
        *,
        padding: PaddingMode = "zeros",
    ) -> None:
        super().__init__()
        history_channels = checks.whole("history_channels", history_channels)
        field_channels = checks.whole("field_channels", field_channels)
        width, depth = checks.whole("width", width), checks.whole("depth", depth)
        self.history_channels, self.field_channels = history_channels, field_channels
        self.width, self.depth, self.padding = width, depth, padding
        #: How products are rounded; fields and corrections keep their own precision.
        self.precision: devices.Precision = "float32"
        widths = [width * 2**level for level in range(depth + 1)]
        self.first = _FirstBlock(history_channels + field_channels, width, padding)
        self.second = _ConvBlock(width, width, padding)
        self.down = nn.ModuleList(_double(a, b, padding) for a, b in pairwise(widths))
        pairs = zip(reversed(widths[1:]), reversed(widths[:-1]), strict=True)
        self.up = nn.ModuleList(_Up(a, b, padding) for a, b in pairs)
        self.last = nn.Conv2d(width, field_channels, 1)
        nn.init.xavier_uniform_(self.last.weight, gain=0.1)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]
        self._kept: Kept | None = None  # of a folded module
        _channels_last(self)

    def __repr__(self) -> str:
        number = sum(parameter.numel() for parameter in self.parameters())
        return (
            f"RepairUNet({self.history_channels} + {self.field_channels} -> {self.field_channels} "
            f"channels, width {self.width}, depth {self.depth}, {number:,} parameters)"
        )

    def forward(
        self,
        history: Float[Tensor, "batch history_time height width history_channel"],
        estimate: Float[Tensor, "batch time height width channel"],
    ) -> Float[Tensor, "batch time height width channel"]:
        """Φ_θ(X, h)."""
        return self.at(history)(estimate)

    def at(
        self, history: Float[Tensor, "batch history_time height width history_channel"]
    ) -> Callable[[Tensor], Tensor]:
        """Φ_θ(X, ·) for a fixed history, whose share of the first convolution is computed once."""
        plane = self._plane("history", history, self.history_channels)
        with devices.precise(self.precision, plane.device):
            shared = self.first.split(plane, 0) + self.first.bias()[:, None, None]
        return lambda estimate: self.correct(shared, estimate)

    def correct(self, shared: Tensor, estimate: Tensor) -> Tensor:
        """The correction of ``estimate``, given the history's share of the first convolution."""
        _, time, height, width, channels = estimate.shape
        plane = self._plane("estimate", estimate, self.field_channels)
        with devices.precise(self.precision, plane.device):
            result = self._network(shared, plane)[..., :height, :width].to(estimate.dtype)
        answer: Tensor = (
            result.permute(0, 2, 3, 1).unflatten(-1, (time, channels)).permute(0, 3, 1, 2, 4)
        )
        return answer

    def _network(self, shared: Tensor, plane: Tensor) -> Tensor:
        """The levels down and up, on planes."""
        fast = None if self._kept is None else self._kept.levels(self, plane, _PARTS)
        if fast is not None:
            return fast(shared, plane)
        values = self.first.finish(shared + self.first.split(plane, self.history_channels))
        values = self.second(values)
        skips = []
        for down in self.down:
            skips.append(values)
            values = down(F.max_pool2d(values, 2))
        for up in self.up:
            values = up(values, skips.pop())
        result: Tensor = self.last(values)
        return result

    def folded(self) -> "RepairUNet":
        """A copy for evaluation with BatchNorm folded into the convolutions.

        On a CPU its levels are prepared once for many calls, see :mod:`r2no.repair_loop.inference`;
        weights can still be loaded, changed and moved.
        """
        fast = copy.deepcopy(self).eval().requires_grad_(False)
        for block in fast.modules():
            if isinstance(block, _ConvBlock):
                block.fold()
        fast._kept = Kept()
        return _channels_last(fast)

    def _plane(self, name: str, field: Tensor, channels: int) -> Tensor:
        """(batch, time, height, width, channel) to padded (batch, time·channel, height, width).

        In memory the result is (batch, height, width, time, channel); a field that already lies
        so, such as every iterate after the first, is not copied.
        """
        field = checks.tensor(name, field)
        if field.ndim != 5 or field.shape[1] * field.shape[4] != channels or 0 in field.shape[2:4]:
            raise ShapeError(
                f"`{name}` must be (batch, time, height, width, channel) with time x channel = "
                f"{channels}, but got shape {tuple(field.shape)}. Build `RepairUNet` for these "
                "frames and channels."
            )
        plane = field.permute(0, 2, 3, 1, 4).flatten(3).permute(0, 3, 1, 2)
        plane = plane.to(self.last.weight.dtype)
        for axis in (2, 3):
            plane = self._pad(plane, axis)
        return plane.contiguous(memory_format=torch.channels_last)

    def _pad(self, plane: Tensor, axis: int) -> Tensor:
        size, multiple = plane.shape[axis], 2**self.depth
        missing = -size % multiple
        if missing == 0:
            return plane
        if self.padding == "zeros":
            return F.pad(plane, (0, 0, 0, missing) if axis == 2 else (0, missing))
        places = torch.arange(size + missing, device=plane.device)
        places = places % size if self.padding == "circular" else places.clamp(max=size - 1)
        return plane.index_select(axis, places)


#: Of what a folded module consists; one with other parts computes by them alone.
_PARTS = (
    RepairUNet,
    _FirstBlock,
    _ConvBlock,
    _Up,
    nn.Sequential,
    nn.ModuleList,
    nn.Conv2d,
    nn.Identity,
)
