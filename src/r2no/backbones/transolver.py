"""Transolver on a structured 3-D mesh: attention between a few learned slices of the volume."""

import math
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, PositiveInt, model_validator
from pydantic import Field as Bounded
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv3d_weight

from r2no.backbones._layers import Conv3, conv3
from r2no.backbones.base import check_input

#: Tokens that pass through the pointwise layers at once, few enough to stay in the cache.
CHUNK = 4096


class TransolverConfig(BaseModel, frozen=True, extra="forbid"):
    """``space_dim`` and ``out_dim`` count channels; ``H``, ``W``, ``D`` shape the token volume.

    ``ref`` has no effect. Fields of one possible value are in the published configs and stand here
    so that those can be read.
    """

    space_dim: PositiveInt
    out_dim: PositiveInt
    H: PositiveInt
    W: PositiveInt
    D: PositiveInt
    n_layers: PositiveInt
    n_hidden: PositiveInt
    n_head: PositiveInt
    slice_num: PositiveInt
    mlp_ratio: PositiveInt = 4
    dropout: Annotated[float, Bounded(ge=0, lt=1)] = 0.0
    ref: int = 4
    fun_dim: Literal[0] = 0
    act: Literal["gelu"] = "gelu"
    Time_Input: Literal[False] = False
    unified_pos: Literal[False] = False

    @model_validator(mode="after")
    def _check(self) -> "TransolverConfig":
        if self.n_hidden % self.n_head:
            raise ValueError(
                "`n_hidden` must be a multiple of `n_head`, "
                f"but got {self.n_hidden} and {self.n_head}."
            )
        return self

    @property
    def volume(self) -> tuple[int, int, int]:
        """The grid on which the convolutions see the tokens."""
        return self.H, self.W, self.D


class MLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width_in: int, hidden: int, width_out: int) -> None:
        super().__init__()
        self.linear_pre = nn.Sequential(nn.Linear(width_in, hidden), nn.GELU())
        self.linear_post = nn.Linear(hidden, width_out)

    def forward(self, x: Float[Tensor, "*token width_in"]) -> Float[Tensor, "*token width_out"]:
        """Apply both layers to every token."""
        return self.linear_post(self.linear_pre(x))


class _Correlate(torch.autograd.Function):
    """G[a, c, k] = Σ_n s[a, n] x[c, n + k] over the 27 neighbours k, zero outside the volume.

    This is the weight gradient of a convolution, whose own derivative PyTorch would build from a
    kernel as large as the volume; here the two adjoints are convolutions with G's gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, s: Tensor) -> Tensor:
        ctx.save_for_backward(x, s)
        shape = (s.shape[1], x.shape[1], 3, 3, 3)
        return conv3d_weight(x, shape, s, padding=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, s = ctx.saved_tensors
        return F.conv_transpose3d(s, grad, padding=1), F.conv3d(x, grad, padding=1)


class SliceAttention(nn.Module):
    """Pool the tokens of each head into slices, attend between slices, and spread them again.

    With slice weights s of a head and token features f, the slices are
    z_g = Σ_n s[n, g] f[n] / (Σ_n s[n, g] + 1e-5).
    """

    def __init__(self, config: TransolverConfig) -> None:
        super().__init__()
        self.volume, self.heads, self.dropout = config.volume, config.n_head, config.dropout
        width, size = config.n_hidden, config.n_hidden // config.n_head
        self.temperature = nn.Parameter(torch.full((1, config.n_head, 1, 1), 0.5))
        self.in_project_x = Conv3(width, width)
        self.in_project_fx = Conv3(width, width)
        self.in_project_slice = nn.Linear(size, config.slice_num)
        self.to_q = nn.Linear(size, size, bias=False)
        self.to_k = nn.Linear(size, size, bias=False)
        self.to_v = nn.Linear(size, size, bias=False)
        self.to_out = nn.Sequential(nn.Linear(width, width), nn.Dropout(config.dropout))

    def forward(
        self, x: Float[Tensor, "batch token width"]
    ) -> tuple[Float[Tensor, "batch token head_slice"], Float[Tensor, "batch head_slice width"]]:
        """Slice weights, and what each slice of each head adds to the output per unit of weight."""
        # Tokens run over (time, height, width) of the data and are read as (H, W, D) of the config
        # without a transpose, so neighbours are scrambled; the published weights depend on it.
        volume = x.unflatten(1, self.volume).movedim(-1, 1)
        weights = self._slice_weights(volume)
        z = self._slices(volume, weights)
        dropout = self.dropout if self.training else 0.0
        z = F.scaled_dot_product_attention(self.to_q(z), self.to_k(z), self.to_v(z), None, dropout)
        linear: Any = self.to_out[0]
        values = z @ linear.weight.unflatten(1, (self.heads, -1)).permute(1, 2, 0)
        return weights.movedim(1, -1).flatten(1, 3), values.flatten(1, 2)

    def spread(
        self,
        weights: Float[Tensor, "batch token head_slice"],
        values: Float[Tensor, "batch head_slice width"],
    ) -> Float[Tensor, "batch token width"]:
        """The output of the attention at some tokens, from their slice weights."""
        linear: Any
        linear, dropout = self.to_out
        return dropout(weights @ values + linear.bias)

    def _slice_weights(
        self, x: Float[Tensor, "batch width h w d"]
    ) -> Float[Tensor, "batch head_slice h w d"]:
        """Softmax over the slices of each head.

        Convolution, slice projection and temperature are linear, so they are multiplied first and
        act as one convolution with as many outputs as there are slices.
        """
        project, conv = self.in_project_slice, self.in_project_x
        heat = self.temperature.clamp(0.1, 5.0).view(-1, 1, 1)
        kernel = project.weight @ conv.weight.flatten(1).unflatten(0, (self.heads, -1)) / heat
        bias = conv.bias.view(self.heads, 1, -1) @ project.weight.T + project.bias
        kernel = kernel.flatten(0, 1).unflatten(1, conv.weight.shape[1:])
        logits = conv3(x, kernel, (bias / heat).flatten())
        logits = logits.movedim(1, -1).unflatten(-1, (self.heads, -1))
        return logits.softmax(-1).flatten(-2).movedim(-1, 1)

    def _slices(
        self,
        x: Float[Tensor, "batch width h w d"],
        weights: Float[Tensor, "batch head_slice h w d"],
    ) -> Float[Tensor, "batch head slice size"]:
        """Slices z of the features f = conv(x).

        The pooled convolution Σ_n s[n, g] f[n] equals the kernel applied to the correlation of s
        with x, so f is never formed. That takes one window at a time; an exported program, which
        must not depend on the number of windows, forms f.
        """
        x = x.to(weights.dtype)
        if torch.compiler.is_exporting():
            return self._direct_slices(x, weights)
        moments = [
            _Correlate.apply(*pair)  # type: ignore[no-untyped-call]
            for pair in zip(x.split(1), weights.split(1), strict=True)
        ]
        conv = self.in_project_fx
        kernel = conv.weight.flatten(1).unflatten(0, (self.heads, -1))
        mass = weights.sum((2, 3, 4)).unflatten(1, (self.heads, -1))[..., None]
        pooled = torch.stack(moments).flatten(2).unflatten(1, (self.heads, -1)) @ kernel.mT
        return (pooled + mass * conv.bias.view(self.heads, 1, -1)) / (mass + 1e-5)

    def _direct_slices(
        self,
        x: Float[Tensor, "batch width h w d"],
        weights: Float[Tensor, "batch head_slice h w d"],
    ) -> Float[Tensor, "batch head slice size"]:
        features = self.in_project_fx(x).flatten(2).unflatten(1, (self.heads, -1))
        by_head = weights.flatten(2).unflatten(1, (self.heads, -1))
        return by_head @ features.mT / (by_head.sum(-1, keepdim=True) + 1e-5)


class Block(nn.Module):
    """Slice attention and an MLP, each after a layer norm and with a residual."""

    def __init__(self, config: TransolverConfig, *, last: bool) -> None:
        super().__init__()
        width = config.n_hidden
        self.ln_1 = nn.LayerNorm(width)
        self.Attn = SliceAttention(config)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = MLP(width, width * config.mlp_ratio, width)
        self.last = last
        if last:
            self.ln_3 = nn.LayerNorm(width)
            self.mlp2 = nn.Linear(width, config.out_dim)

    def forward(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token out"]:
        """Update all tokens; the last block also maps them to the output channels."""
        weights, values = self.Attn(self.ln_1(x))
        parts = zip(x.split(CHUNK, 1), weights.split(CHUNK, 1), strict=True)
        updates = [self._update(part, self.Attn.spread(w, values)) for part, w in parts]
        return torch.cat(updates, dim=1)

    def _update(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + attended
        x = x + self.mlp(self.ln_2(x))
        return self.mlp2(self.ln_3(x)) if self.last else x


class Transolver(nn.Module):
    """Transolver, from a window to the next one of the same number of frames."""

    def __init__(self, config: TransolverConfig) -> None:
        super().__init__()
        self.config = config
        width, layers = config.n_hidden, config.n_layers
        self.preprocess = MLP(config.space_dim, 2 * width, width)
        self.blocks = nn.ModuleList(Block(config, last=i + 1 == layers) for i in range(layers))
        self.placeholder = nn.Parameter(torch.rand(width) / width)
        self.apply(_initialise)

    def forward(
        self, x: Float[Tensor, "batch time height width channel"]
    ) -> Float[Tensor, "batch time height width channel_out"]:
        """Predict the next window, in normalised units."""
        self._check(x)
        tokens = [self.preprocess(part) for part in x.flatten(1, 3).split(CHUNK, 1)]
        h = torch.cat(tokens, dim=1) + self.placeholder
        for block in self.blocks:
            h = block(h)
        return h.unflatten(1, x.shape[1:4])

    def _check(self, x: Tensor) -> None:
        """Refuse windows of another number of points or channels."""
        channels, volume = self.config.space_dim, self.config.volume
        check_input(
            x,
            f"{channels} channels and {' · '.join(map(str, volume))} points (`H`, `W`, `D`)",
            lambda: x.shape[-1] == channels and x.shape[1:4].numel() == math.prod(volume),
        )


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
