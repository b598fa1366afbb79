"""Attention over time and over space, factorised, as the U-Net uses it."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

HEADS, HEAD_DIM = 4, 32
INNER = HEADS * HEAD_DIM
BUCKETS = 32
#: Tokens that one call of an attention handles on a CPU, few enough to stay in the cache.
CHUNK = 8192


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
    parts = rows.split(max(1, CHUNK // rows.shape[1]))
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
