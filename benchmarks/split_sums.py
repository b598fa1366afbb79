"""Gram sums without a device's float64 products: do exact slices pay?

    python -m benchmarks.split_sums [--device cuda] [--brief]

Sums are products of float64 columns (M6), which many cards multiply at 1/64 of their float32 rate.
The other way, after Ozaki and others: cut each value, relative to the largest of its row, into
seven integers of 9 bits; products of those are exact in float32, in TF32 too, for 64 observations
at a time; add them up by order of magnitude. Both are compared with long double on near-collinear
columns, then timed on the columns of a published fit: K = 38, 640 observations a cell. r2no does
not use the slices: see docs/devices.md for the reason; a measurement on a card may change that.
"""

import statistics
import time

import numpy as np
import torch

from benchmarks import parser, print_conditions
from r2no import devices

SLICES, BITS, EXACT = 7, 9, 64


def plain(values):
    """Products of float64, as r2no makes them: (cell, column, observation) to Gram matrices."""
    return values @ values.transpose(-1, -2)


def split(values):
    """The same from exact float32 products; float64 only adds and, four times a value, prepares."""
    largest = values.abs().amax(-1, keepdim=True)
    mantissa = torch.frexp(largest).mantissa
    scale = torch.where(largest > 0, largest / mantissa, 1.0)  # powers of two, exactly
    scaled = values / scale
    high = scaled.float()
    rests = [high, (scaled - high).float()]
    factor, slices = 2.0 ** (BITS - 1), []
    for _ in range(SLICES):
        rests = [rest * factor for rest in rests]
        whole = [rest.round() for rest in rests]
        rests = [rest.sub_(part) for rest, part in zip(rests, whole, strict=True)]
        slices.append(whole[0].add_(whole[1]))
        factor = 2.0**BITS
    missing = -values.shape[-1] % EXACT
    parts = torch.nn.functional.pad(torch.stack(slices, 1), (0, missing))
    parts = parts.unflatten(-1, (-1, EXACT)).movedim(-2, 1)  # cell, piece, slice, column, 64
    return _together(parts) * scale * scale.transpose(-1, -2)


def _together(parts):
    """Products of slices s and t weigh 2^-(9 (s + t) + 16); those beyond s + t = 6 are left out."""
    number = parts.shape[-2]
    levels = [0.0] * SLICES
    for s in range((SLICES + 1) // 2):
        others = parts[:, :, s : SLICES - s].flatten(2, 3)
        found = (parts[:, :, s] @ others.transpose(-1, -2)).double().sum(1)
        for t, one in enumerate(found.split(number, -1), start=s):
            levels[s + t] = levels[s + t] + (one if s == t else one + one.transpose(-1, -2))
    total = levels[-1]
    for level in reversed(levels[:-1]):
        total = level + total * 2.0**-BITS
    return total * 2.0 ** (-2 * (BITS - 1))


def columns(cells, number, observations):
    """Columns that differ by a millionth of themselves: their Gram matrix has condition 1e12."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(cells, 1, observations, generator=generator)
    more = torch.randn(cells, number, observations, generator=generator)
    weights = torch.rand(cells, 1, observations, generator=generator).double()
    return (first + 1e-6 * more).double() * weights.sqrt()


def error(found, values):
    """Largest error, in units of the product of norms and of 2^-53."""
    wide = values.numpy().astype(np.longdouble)
    exact = np.einsum("can,cbn->cab", wide, wide)
    norms = np.sqrt(np.einsum("can,can->ca", wide, wide))
    apart = np.abs(found.cpu().numpy().astype(np.longdouble) - exact)
    return float((apart / norms[:, :, None] / norms[:, None]).max() * 2**53)


def best(action, device, repeats):
    """Median of seconds: of the processor on the CPU, of the clock elsewhere."""
    clock, taken = time.process_time if device.type == "cpu" else time.perf_counter, []
    for _ in range(repeats + 1):
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        begin = clock()
        action()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        taken.append(clock() - begin)
    return statistics.median(taken[1:])


def main():
    options = parser(__doc__)
    options.add_argument("--device", default="auto")
    options.add_argument("--repeats", type=int, default=5)
    given = options.parse_args()
    print_conditions(brief=given.brief)
    device = devices.choose(given.device)
    small = columns(2, 4, 640)
    large = columns(2 if given.brief else 128, 38, 640).to(device)
    print(f"On {devices.describe(device)}; error in units of 2^-53 of the columns' norms\n")
    print("| products | error, condition 1e12 | seconds | ratio |\n|---|---|---|---|")
    seconds = {}
    for name, way in (("float64", plain), ("slices", split)):
        seconds[name] = best(lambda way=way: way(large), device, given.repeats)
        found = error(way(small.to(device)), small)
        ratio = seconds[name] / seconds["float64"]
        print(f"| {name} | {found:.2f} | {seconds[name]:.4f} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
