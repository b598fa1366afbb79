"""An independent dense NumPy version of (M5)-(M8), one mask per cell on the full plane."""

import numpy as np


def full_index(cells):
    height, width = cells.grid
    index = cells.index.numpy()
    full = np.zeros((height, width), dtype=int)
    for i in range(height):
        for j in range(width):
            full[i, j] = index[i, j] if j <= width // 2 else index[-i % height, width - j]
    return full


def columns_of(source, iterates, base=True):
    """(column, batch, time, height, width, channel)."""
    members, depths = iterates.shape[:2]
    found = [iterates[m, d] - source for m in range(members) for d in range(depths)]
    return np.stack([*found, -source] if base else found)


def project(values, mask):
    return np.fft.ifft2(
        np.fft.fft2(values, axes=(2, 3)) * mask[None, None, :, :, None], axes=(2, 3)
    )


def gram_and_rhs(source, iterates, target, cells, measured, exponent, base=True):
    """G (cell, channel, J, J), r (cell, channel, J), summed over windows."""
    full = full_index(cells)
    columns, residual = columns_of(source, iterates, base), target - source
    number, channels = len(columns), len(measured)
    gram = np.zeros((cells.num_cells, channels, number, number))
    rhs = np.zeros((cells.num_cells, channels, number))
    norm = np.sqrt((target[..., list(measured)] ** 2).sum((1, 2, 3, 4)))
    weight = (norm**-exponent)[:, None, None, None, None]
    for cell in range(cells.num_cells):
        mask = full == cell
        if not mask.any():
            continue
        projected = [project(column, mask).real for column in columns]
        wanted = project(residual, mask).real
        for c, channel in enumerate(measured):
            for j in range(number):
                rhs[cell, c, j] = (weight * wanted * projected[j])[..., channel].sum()
                for k in range(number):
                    gram[cell, c, j, k] = (weight * projected[j] * projected[k])[..., channel].sum()
    return gram, rhs


def predict(source, iterates, weights, cells, measured, base=True):
    full, columns = full_index(cells), columns_of(source, iterates, base)
    result = source.copy()
    for cell in range(cells.num_cells):
        for j, column in enumerate(columns):
            part = project(column, full == cell).real
            for c, channel in enumerate(measured):
                result[..., channel] += weights[cell, c, j] * part[..., channel]
    return result
