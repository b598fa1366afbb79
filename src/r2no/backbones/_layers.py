"""Layers of several networks: convolution by minimal filtering, and factorised attention.

The convolution has kernel 3 in three dimensions, and takes the way of minimal filtering on a CPU.
Winograd's algorithm F(m, 3) computes m neighbouring outputs of a filter g from m + 2 inputs d as
Aᵀ [(G g) ⊙ (Bᵀ d)], with m + 2 products instead of 3 m. Here F(2, 3) runs along height and F(4, 3)
along width, so a tile of 2 × 4 outputs takes 24 products per time step of the kernel instead of 72.
Its rounding errors are as small as those of the direct sum, which larger tiles would not keep.

Attention is over time and over space in turn, as the U-Net uses it.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

#: Tiles transformed at once by a thread, few enough to stay in the cache.
_TILES = 512
#: Fewer channels, or less than half as many out as in, do not repay the transforms.
LEAST_CHANNELS = 16


def _matrix(*rows: tuple[int | float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32, device="cpu")


_B2 = _matrix((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
_G2 = _matrix((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1))
_A2 = _matrix((1, 1, 1, 0), (0, 1, -1, -1))
_B4 = _matrix(
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_G4 = _matrix(
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_A4 = _matrix((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
_INPUT, _OUTPUT = torch.kron(_B2, _B4), torch.kron(_A2, _A4)  # both axes at once


class Conv3(nn.Conv3d):
    """A convolution of kernel 3 with a bias that keeps the grid."""

    bias: Tensor

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(channels_in, channels_out, 3, padding=1)

    def forward(
        self, x: Float[Tensor, "batch channel time height width"]
    ) -> Float[Tensor, "batch channel_out time height width"]:
        """Convolve by :func:`conv3`."""
        return conv3(x, self.weight, self.bias)


def conv3(
    x: Float[Tensor, "batch channel time height width"],
    weight: Float[Tensor, "channel_out channel 3 3 3"],
    bias: Float[Tensor, " channel_out"],
) -> Float[Tensor, "batch channel_out time height width"]:
    """``F.conv3d(x, weight, bias, padding=1)``, up to rounding.

    Minimal filtering needs a CPU, float32 and no gradients; everything else is the direct sum.
    """
    if not _pays(x, weight):
        return F.conv3d(x, weight, bias, padding=1)
    batch, _, time, height, width = x.shape
    tiles = (-(-height // 2), -(-width // 4))
    out = x.new_empty(batch, time, 2 * tiles[0], 4 * tiles[1], len(weight))
    kernels = torch.einsum("ua,vb,octab->tuvco", _G2, _G4, weight).flatten(1, 2)
    for sample, result in zip(x.movedim(1, -1), out, strict=True):
        _filter(sample, kernels, bias, result)
    return out[:, :, :height, :width].contiguous().movedim(-1, 1)


def _pays(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and weight.shape[1] >= LEAST_CHANNELS
        and 2 * weight.shape[0] >= weight.shape[1]
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _filter(
    x: Float[Tensor, "time height width channel"],
    kernels: Float[Tensor, "3 24 channel channel_out"],
    bias: Float[Tensor, " channel_out"],
    out: Float[Tensor, "time rows columns channel_out"],
) -> None:
    """Write the convolution of one sample, some rows of tiles at a time."""
    time, (rows, columns) = len(x), (out.shape[1] // 2, out.shape[2] // 4)
    right, below = out.shape[2] - x.shape[2] + 1, out.shape[1] - x.shape[1] + 1
    tiles = F.pad(x, (0, 0, 1, right, 1, below, 1, 1)).unfold(1, 4, 2).unfold(2, 6, 4)
    out = out.view(time, rows, 2, columns, 4, -1)
    step = max(1, _TILES * torch.get_num_threads() // (time * columns))
    for row in range(0, rows, step):
        part = tiles[:, row : row + step].permute(4, 5, 0, 1, 2, 3).flatten(0, 1)
        filtered = _multiply((_INPUT @ part.flatten(1)).view(part.shape), kernels)
        result = (_OUTPUT @ filtered.flatten(1)).view(2, 4, time, -1, columns, len(bias))
        out[:, row : row + step] = (result + bias).permute(2, 3, 0, 4, 1, 5)


def _multiply(
    x: Float[Tensor, "24 frames rows columns channel"],
    kernels: Float[Tensor, "3 24 channel channel_out"],
) -> Float[Tensor, "24 tiles channel_out"]:
    """Products of transformed tiles and kernels, summed over channels and three frames."""
    frame, x = x.shape[2] * x.shape[3], x.flatten(1, 3)
    size = x.shape[1] - 2 * frame
    total = torch.bmm(x[:, :size], kernels[0])
    for step in (1, 2):
        total.baddbmm_(x[:, step * frame :][:, :size], kernels[step])
    return total


HEADS, HEAD_DIM = 4, 32
INNER = HEADS * HEAD_DIM
BUCKETS = 32
#: Tokens that one call of an attention handles on a CPU, few enough to stay in the cache.
_TOKENS = 8192


class Rotary(nn.Module):
    """Rotates channels 2j and 2j + 1 of frame p by the angle p f_j."""

    def __init__(self) -> None:
        super().__init__()
        exponent = torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM
        self.freqs = nn.Parameter(1.0 / 10000**exponent, requires_grad=False)

    def forward(
        self, x: Float[Tensor, "*axes time head size"]
    ) -> Float[Tensor, "*axes time head size"]:
        """Rotate every head."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        angle = torch.arange(x.shape[-3], device=x.device)[:, None] * self.freqs.to(exact.dtype)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        pairs = torch.view_as_complex(exact.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Softmax attention between the tokens of each row."""

    def __init__(self, channels: int, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.rotary_emb = rotary
        self.to_qkv = nn.Linear(channels, 3 * INNER, bias=False)
        self.to_out = nn.Linear(INNER, channels, bias=False)

    def forward(
        self,
        x: Float[Tensor, "row token channel"],
        bias: Float[Tensor, "head token token"] | None = None,
    ) -> Float[Tensor, "row token channel"]:
        """``bias`` is added to the logits of every row."""
        qk, v = self.to_qkv(x).unflatten(-1, (3, HEADS, HEAD_DIM)).split((2, 1), dim=2)
        if self.rotary_emb is not None:
            qk = self.rotary_emb(qk.transpose(1, 2)).transpose(1, 2)
        q, k, v = (part.transpose(1, 2) for part in (*qk.unbind(2), v.squeeze(2)))
        mask = None if bias is None else bias.to(q.dtype)[None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.to_out(out.transpose(1, 2).flatten(2))


class AlongTime(nn.Module):
    """Attention between the frames at each point."""

    def __init__(self, fn: Attention) -> None:
        super().__init__()
        self.fn = fn

    def forward(
        self,
        x: Float[Tensor, "batch time height width channel"],
        bias: Float[Tensor, "head time time"],
    ) -> Float[Tensor, "batch time height width channel"]:
        """``bias`` depends on the distance between frames."""
        rows = x.movedim(1, 3)
        out = _by_parts(lambda part: self.fn(part, bias), rows.flatten(0, 2))
        return out.view(rows.shape).movedim(3, 1)


class AlongSpace(nn.Module):
    """Attention between the points of each frame."""

    def __init__(self, fn: Attention) -> None:
        super().__init__()
        self.fn = fn

    def forward(
        self, x: Float[Tensor, "batch time height width channel"]
    ) -> Float[Tensor, "batch time height width channel"]:
        """Frames do not see each other."""
        return _by_parts(self.fn, x.flatten(2, 3).flatten(0, 1)).view(x.shape)


class SpatialLinearAttention(nn.Module):
    """Linear attention between the points of each frame.

    With q softmaxed over channels and k over points, the output is q (kᵀ v) and never forms a
    matrix of points by points. The output projection joins the small product kᵀ v.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.to_qkv = nn.Conv2d(channels, 3 * INNER, 1, bias=False)
        self.to_out = nn.Conv2d(INNER, channels, 1)

    def forward(
        self, x: Float[Tensor, "batch time height width channel"]
    ) -> Float[Tensor, "batch time height width channel"]:
        """Frames do not see each other."""
        return _by_parts(self._attend, x.flatten(2, 3).flatten(0, 1)).view(x.shape)

    def _attend(
        self, x: Float[Tensor, "frame point channel"]
    ) -> Float[Tensor, "frame point channel"]:
        q, k, v = (F.linear(x, weight) for weight in self.to_qkv.weight.flatten(1).chunk(3))
        q = q.unflatten(-1, (HEADS, HEAD_DIM)).softmax(-1).flatten(2) * HEAD_DIM**-0.5
        k, v = (part.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for part in (k.softmax(1), v))
        project = self.to_out.weight.flatten(1).T.unflatten(0, (HEADS, HEAD_DIM))
        return q @ (k.mT @ v @ project).flatten(1, 2) + self.to_out.bias


def _by_parts(
    function: Callable[[Tensor], Tensor], rows: Float[Tensor, "row token channel"]
) -> Float[Tensor, "row token channel"]:
    """Apply a function of independent rows, on a CPU in parts that fit its cache."""
    if rows.device.type != "cpu" or torch.compiler.is_compiling():  # traced for any batch size
        return function(rows)
    parts = rows.split(max(1, _TOKENS // rows.shape[1]))
    return torch.cat([function(part) for part in parts])


class RelativeBias(nn.Module):
    """A learned bias per head for each signed distance between frames, in growing buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.relative_attention_bias = nn.Embedding(BUCKETS, HEADS)

    def forward(self, frames: int) -> Float[Tensor, "head frames frames"]:
        """The bias of query frame i and key frame j."""
        index = _distance_buckets(frames).to(self.relative_attention_bias.weight.device)
        return self.relative_attention_bias(index).movedim(-1, 0)


def _distance_buckets(frames: int) -> Int[Tensor, "{frames} {frames}"]:
    """Buckets of (i, j): the first half for j ≤ i, then j > i; logarithmic from distance 8 on."""
    half, exact = BUCKETS // 2, BUCKETS // 4
    offset = torch.arange(frames, device="cpu") - torch.arange(frames, device="cpu")[:, None]
    distance = offset.abs()
    far = (distance.clamp(min=exact) / exact).log() / math.log(BUCKETS / exact) * (half - exact)
    bucket = torch.where(distance < exact, distance, (exact + far.long()).clamp(max=half - 1))
    return bucket + half * (offset > 0)
