"""Convolution of kernel 3 in three dimensions, by minimal filtering where that is faster.

Winograd's algorithm F(m, 3) computes m neighbouring outputs of a filter g from m + 2 inputs d as
Aᵀ [(G g) ⊙ (Bᵀ d)], with m + 2 products instead of 3 m. Here F(2, 3) runs along height and F(4, 3)
along width, so a tile of 2 × 4 outputs takes 24 products per time step of the kernel instead of 72.
Its rounding errors are as small as those of the direct sum, which larger tiles would not keep.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

#: Tiles transformed at once by a thread, few enough to stay in the cache.
CHUNK = 512
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
    step = max(1, CHUNK * torch.get_num_threads() // (time * columns))
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
