"""The levels of a folded RepairUNet in fewer operations, for roll-outs on a CPU.

Equal to the plain levels up to rounding. Three things differ: weights are laid out for the
processor once instead of at every call (oneDNN), GELU is applied while a convolution's results are
still in the cache, and the deep convolutions after an up-sampling are made before it, at a quarter
of the products (:func:`_exchanged`). Whatever this does not know exactly is left to the plain
levels: other processors, precisions, gradients, tracing, modules that were changed. The operators
are private to PyTorch; each process tries them once before it relies on them, and what they lay out
for its processor is never copied, stored or sent.
"""

import platform
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from r2no._types import PaddingMode

#: Products spent on up-sampling matrices per product of the convolution beyond which the exchange
#: does not pay; matrix products run at about half the speed of convolutions.
_MOST = 0.2
#: Narrower modules take the plain levels, which are about as fast:
#: ``python -m benchmarks.rollout --widths``.
_LEAST_WIDTH = 16


@dataclass(frozen=True, eq=False)
class _Convolution:
    """Weights laid out for the processor, with bias and padding."""

    weight: Tensor  # of a layout that only oneDNN reads
    bias: Tensor | None
    padding: int
    mode: PaddingMode

    @classmethod
    def of(
        cls, weight: Tensor, bias: Tensor | None, size: Sequence[int], mode: PaddingMode
    ) -> "_Convolution":
        """Lay out ``weight`` for inputs of (batch, height, width) = ``size``; others work too."""
        batch, *grid = size
        border = (weight.shape[-1] - 1) // 2
        padding = border if mode == "zeros" else 0
        grid = [points + 2 * (border - padding) for points in grid]
        laid_out = torch.ops.mkldnn._reorder_convolution_weight(
            weight.contiguous(), [padding] * 2, [1, 1], [1, 1], 1, [batch, weight.shape[1], *grid]
        )
        return cls(laid_out, bias, border, mode)

    def __call__(self, values: Tensor, *, gelu: bool = False) -> Tensor:
        padding = self.padding
        if padding and self.mode != "zeros":
            values, padding = F.pad(values, (padding,) * 4, mode=self.mode), 0
        after: tuple[str, list[float], str] = ("gelu", [], "none") if gelu else ("none", [], "")
        result: Tensor = torch.ops.mkldnn._convolution_pointwise(
            values, self.weight, self.bias, [padding] * 2, [1, 1], [1, 1], 1, *after
        )
        return result


@lru_cache(maxsize=64)
def _upsampling(
    points: int, mode: PaddingMode, kind: torch.dtype
) -> Float[Tensor, "twice three_points"]:
    """Doubled by linear interpolation, then shifted by each tap: columns run over (point, tap)."""
    unit = torch.eye(points, dtype=kind)[None]
    larger = F.interpolate(unit, scale_factor=2, mode="linear", align_corners=True)
    larger = F.pad(larger, (1, 1), mode="constant" if mode == "zeros" else mode)
    return larger[0].unfold(1, 3, 1).permute(1, 0, 2).reshape(2 * points, 3 * points)


def _exchanged(
    taps: Float[Tensor, "batch taps height width"],
    bias: Tensor,
    mode: PaddingMode,
) -> Float[Tensor, "batch channel twice_height twice_width"]:
    """A 3x3 convolution of an up-sampled field from the products of its taps before up-sampling.

    Up-sampling U acts on space, a tap's weights W_d on channels, so they commute, and

        Σ_d S_d (U v) W_d = Σ_d (S_d U) (v W_d),

    with S_d the shift (and padding) of tap d. U and S_d are products of one matrix per axis.
    ``taps`` holds v W_d, channels running over (tap of width, tap of height, channel).
    """
    batch, number, height, width = taps.shape
    channels = number // 9
    along_width = _upsampling(width, mode, taps.dtype)
    along_height = _upsampling(height, mode, taps.dtype)
    lines = taps.permute(0, 2, 3, 1).reshape(batch * height, 3 * width, 3 * channels)
    wide = torch.matmul(along_width, lines).view(batch, height, 2 * width, 3, channels)
    columns = wide.transpose(2, 3).reshape(batch, 3 * height, 2 * width * channels)
    large = torch.matmul(along_height, columns).view(batch, 2 * height, 2 * width, channels)
    return large.add_(bias).permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class _Up:
    """The up-sampling of one level and its convolutions."""

    conv: _Convolution
    bias: Tensor | None  # of an exchanged convolution, whose ``conv`` gives its taps
    blocks: tuple[_Convolution, _Convolution]

    @classmethod
    def of(cls, up: Any, size: Sequence[int]) -> "_Up":
        """For inputs of (batch, height, width) = ``size``."""
        batch, height, width = size
        twice, mode = (batch, 2 * height, 2 * width), up.conv.padding_mode
        weight, bias = up.conv.weight, up.conv.bias
        if _pays(height, width, weight.shape[1]):
            weight = weight.permute(3, 2, 0, 1).flatten(0, 2)[:, :, None, None]
            conv = _Convolution.of(weight, None, size, mode)
        else:
            conv, bias = _Convolution.of(weight, bias, twice, mode), None
        return cls(conv, bias, _double(up.blocks, twice))

    def __call__(self, values: Tensor, skip: Tensor) -> Tensor:
        if self.bias is None:
            values = F.interpolate(values, scale_factor=2, mode="bilinear", align_corners=True)
            values = self.conv(values)
        else:
            values = _exchanged(self.conv(values), self.bias, self.conv.mode)
        first, second = self.blocks
        return second(first(torch.cat([skip, values], 1), gelu=True), gelu=True)


def _pays(height: int, width: int, channels: int) -> bool:
    """Whether the matrices of :func:`_exchanged` cost little next to the convolution."""
    return (width / 2 + height / 3) / channels <= _MOST


def _whole(conv: nn.Conv2d, size: Sequence[int]) -> _Convolution:
    return _Convolution.of(conv.weight, conv.bias, size, conv.padding_mode)


def _double(blocks: Any, size: Sequence[int]) -> tuple[_Convolution, _Convolution]:
    first, second = blocks
    return _whole(first.conv, size), _whole(second.conv, size)


class Levels:
    """All levels of a folded RepairUNet, prepared for planes of one shape."""

    def __init__(self, module: Any, shape: torch.Size) -> None:
        batch, _, height, width = shape
        sizes = [(batch, height >> n, width >> n) for n in range(module.depth + 1)]
        first = module.first.conv
        of_field = first.weight[:, module.history_channels :]
        self._first = _Convolution.of(of_field, None, sizes[0], first.padding_mode)
        self._second = _whole(module.second.conv, sizes[0])
        self._down = [_double(*pair) for pair in zip(module.down, sizes[1:], strict=True)]
        self._up = [_Up.of(*pair) for pair in zip(module.up, reversed(sizes[1:]), strict=True)]
        self._last = _whole(module.last, sizes[0])

    def __call__(self, shared: Tensor, plane: Tensor) -> Tensor:
        """As the plain levels: the history's share of the first convolution, and the estimate."""
        values = F.gelu(self._first(plane).add_(shared))
        values = self._second(values, gelu=True)
        skips = []
        for first, second in self._down:
            skips.append(values)
            values = second(first(F.max_pool2d(values, 2), gelu=True), gelu=True)
        for up in self._up:
            values = up(values, skips.pop())
        return self._last(values)


class Kept:
    """Prepared levels, made again when a weight moved or changed; never copied or stored."""

    def __init__(self) -> None:
        self._kept: tuple[list[Tensor], list[int], torch.Size, Levels] | None = None

    def __deepcopy__(self, memo: Any) -> "Kept":
        return Kept()

    def __reduce__(self) -> tuple[type["Kept"], tuple[()]]:
        return Kept, ()

    def levels(self, module: nn.Module, plane: Tensor, parts: tuple[type, ...]) -> Levels | None:
        """The levels for this plane, or ``None`` where only the plain ones are sure to be right.

        ``parts`` are the types of which an unchanged module consists.
        """
        weights: list[Tensor] = list(module.parameters())
        if module.width < _LEAST_WIDTH:  # type: ignore[operator]
            return None
        if not _known(plane, weights) or not all(
            _as_built(part, parts) for part in module.modules()
        ):
            return None
        versions = [weight._version for weight in weights]
        if self._kept is not None:
            kept, before, shape, levels = self._kept
            same = len(kept) == len(weights) and all(map(_is, kept, weights))
            if same and before == versions and shape == plane.shape:
                return levels
        levels = Levels(module, plane.shape)
        self._kept = (weights, versions, plane.shape, levels)  # at once: another thread may look
        return levels


def _is(one: Tensor, other: Tensor) -> bool:
    return one is other


def _known(plane: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether this is plain arithmetic in float32 on a processor for which the layout is made."""
    return (
        not torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and type(plane) is Tensor
        and not torch._C._functorch.is_functorch_wrapped_tensor(plane)
        and torch.autograd.forward_ad.unpack_dual(plane).tangent is None
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and platform.machine().lower() in ("x86_64", "amd64")
        and plane.numel() > 0
        and all(
            each.device.type == "cpu"
            and each.dtype == torch.float32
            and each.layout == torch.strided
            and type(each) in (Tensor, nn.Parameter)
            for each in (*weights, plane)
        )
        and not any(weight.is_inference() for weight in weights)  # they count no changes
        and _operators_serve()
    )


@lru_cache(maxsize=1)
def _operators_serve() -> bool:
    """Whether oneDNN's operators do here what is asked of them; warns, once, if not."""
    generator = torch.Generator().manual_seed(0)
    values, weight = (torch.randn(n, 5, 3, 3, generator=generator) for n in (2, 16))
    values = values.contiguous(memory_format=torch.channels_last)
    bias = torch.randn(16, generator=generator)
    expected = F.gelu(F.conv2d(values, weight, bias, padding=1))
    try:
        found = _Convolution.of(weight, bias, (2, 3, 3), "zeros")(values, gelu=True)
        same = torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
        reason = "" if same else f"results differ by {float((found - expected).abs().max()):.1e}"
    except Exception as error:  # absent, of another signature, or for another processor
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if reason:
        warnings.warn(
            f"oneDNN's operators of PyTorch {torch.__version__} do not serve here ({reason}). "
            "Roll-outs take the plain levels: the same numbers, but slower.",
            RuntimeWarning,
            stacklevel=2,
        )
    return not reason


def _as_built(part: nn.Module, parts: tuple[type, ...]) -> bool:
    """Whether a part of the module computes what its type says."""
    hooks = part._forward_hooks or part._forward_pre_hooks or _has_any_global_hook()
    if type(part) not in parts or hooks or "forward" in part.__dict__:
        return False
    if not isinstance(part, nn.Conv2d):
        return True
    border = (part.kernel_size[0] - 1) // 2
    return (
        part.kernel_size in ((1, 1), (3, 3))
        and part.padding == (border, border)
        and part.stride == part.dilation == (1, 1)
        and part.groups == 1
    )
