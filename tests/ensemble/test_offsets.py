"""A constant added to a channel (pressure of 1e5 Pa) changes nothing of the default fit."""

import pytest
import torch

from r2no import FourierCells, SpectralEnsemble
from r2no.ensemble import FitBatch, Readouts

GRID = (16, 24)
CELLS = FourierCells.polar(GRID, radial=8, angular=4)
FOLDS = (((0, 1), (2, 3)), ((2, 3), (0, 1)))
OFFSETS = (1e3, 1e4, 1e5)


def smooth(values):
    """Most of the energy at small wavenumbers, as in pressure fields."""
    spectrum = torch.fft.rfft2(values, dim=(2, 3))
    rows = torch.fft.fftfreq(values.shape[2], 1 / values.shape[2], dtype=values.dtype)
    columns = torch.fft.rfftfreq(values.shape[3], 1 / values.shape[3], dtype=values.dtype)
    decay = 1 / (1 + rows[:, None] ** 2 + columns[None, :] ** 2)
    return torch.fft.irfft2(spectrum * decay[..., None], s=values.shape[2:4], dim=(2, 3))


def pressure(offset, dtype=torch.float64, windows=24):
    """A source too strong by a tenth, and repairs that know half of what is wrong with it."""
    generator = torch.Generator().manual_seed(3)

    def noise(*more):
        shape = (*more, windows, 3, *GRID, 2)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return smooth(drawn.flatten(0, -5)).reshape(shape) * 50

    size = 0.5 + torch.arange(windows, dtype=torch.float64)[:, None, None, None, None] / windows
    target = noise() * size
    source = 1.1 * target + 0.5 * noise()
    iterates = source + 0.5 * (target - source) + 0.2 * noise(1, 2)
    fields = [(field + offset).to(dtype) for field in (source, iterates, target)]
    return fields


def fitted(offset, ridge="auto", *, dtype=torch.float64, mask=None, **more):
    source, iterates, target = pressure(offset, dtype)
    group = torch.arange(len(source)) * 4 // len(source)
    batch = FitBatch(source, iterates, target, mask, group)
    return SpectralEnsemble(CELLS, ridge, (0, 1), **more).fit([batch], folds=FOLDS)


def gain(model, offset, dtype=torch.float64):
    """Share of the source's squared error that is removed."""
    source, iterates, target = (field.double() for field in pressure(offset, dtype))
    after = (model.predict(source.to(dtype), iterates.to(dtype)).double() - target).square().sum()
    return 1 - float(after / (source - target).square().sum())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("ridge", ["auto", "nested"])
def test_gain_does_not_depend_on_an_offset(ridge, dtype):
    plain = fitted(0.0, ridge, dtype=dtype)
    assert gain(plain, 0.0, dtype) > 0.5
    for offset in OFFSETS:
        moved = fitted(offset, ridge, dtype=dtype)
        assert gain(moved, offset, dtype) == pytest.approx(gain(plain, 0.0, dtype), rel=1e-3)
        assert moved.held_out_score == pytest.approx(plain.held_out_score, rel=1e-3)


def test_weights_do_not_depend_on_an_offset_under_a_mask():
    mask = torch.rand(24, 3, *GRID, 2, generator=torch.Generator().manual_seed(1)) > 0.2
    plain, moved = fitted(0.0, mask=mask), fitted(1e5, mask=mask)
    torch.testing.assert_close(moved.weights_, plain.weights_, rtol=1e-4, atol=1e-5)


def test_the_base_column_still_shrinks_a_source_that_is_too_strong():
    assert gain(fitted(1e5), 1e5) > gain(fitted(1e5, base_column=False), 1e5) + 0.01


def test_a_given_penalty_is_the_published_fit():
    """λ tr(G)/J over all columns, the base column -h_0 with its mean, windows weighted by ‖y‖."""
    source, iterates, target = pressure(100.0)
    model = fitted(100.0, 0.01)
    spectra = torch.fft.rfft2(torch.cat([iterates[0] - source, -source[None]]), dim=(3, 4))
    weight = target.flatten(1).norm(dim=1)[:, None, None, None] ** -1
    cell = CELLS.index == 0
    count = CELLS.multiplicity[cell] / (GRID[0] * GRID[1])
    columns = spectra[..., 0][..., cell]  # column, window, frame, coefficient
    residual = torch.fft.rfft2(target - source, dim=(2, 3))[..., 0][..., cell]
    scaled = columns * (weight[..., 0] * count)
    gram = torch.einsum("iwtk,jwtk->ij", scaled, columns.conj()).real
    rhs = torch.einsum("iwtk,wtk->i", scaled, residual.conj()).real
    penalty = 0.01 * gram.diagonal().mean() * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(model.weights_[0, 0], torch.linalg.solve(gram + penalty, rhs))


def test_a_constant_window_weighs_nothing():
    source, iterates, target = pressure(1e5)
    target[0] = source[0] = 1e5
    iterates[:, :, 0] = 1e5
    group = torch.arange(len(source)) * 4 // len(source)
    whole = SpectralEnsemble(CELLS, "auto", (0, 1)).fit(
        [FitBatch(source, iterates, target, None, group)], folds=FOLDS
    )
    rest = SpectralEnsemble(CELLS, "auto", (0, 1)).fit(
        [FitBatch(source[1:], iterates[:, :, 1:], target[1:], None, group[1:])], folds=FOLDS
    )
    torch.testing.assert_close(whole.weights_, rest.weights_)


def test_centred_fits_are_stored_derived_and_composed_together(tmp_path):
    source, iterates, _ = pressure(1e3)
    model = fitted(1e3)
    model.save(tmp_path / "centred.safetensors")
    again = SpectralEnsemble.load(tmp_path / "centred.safetensors")
    assert torch.equal(again.predict(source, iterates), model.predict(source, iterates))
    chosen = {
        "fine": model,
        "one": model.derive(cells=FourierCells.single(GRID)),
        "published": fitted(1e3, 0.01),
    }
    joint = Readouts({n: e.fitted_.spread for n, e in chosen.items()}).compose(source)
    for depth in (1, 2):
        joint.add(0, depth, iterates[0, depth - 1])
    for name, found in joint.results():
        torch.testing.assert_close(found, chosen[name].predict(source, iterates))


def test_cells_without_more_than_rounding_keep_the_source():
    """Fields without small scales, a target that has some: nothing to compose it from."""
    generator = torch.Generator().manual_seed(0)
    shape = (12, 2, *GRID, 1)

    def large_scales(*more):
        spectrum = torch.fft.rfft2(torch.randn(*more, *shape, generator=generator), dim=(-3, -2))
        low = CELLS.index // CELLS.angular < 3
        return torch.fft.irfft2(spectrum * low[..., None], s=GRID, dim=(-3, -2)).float()

    source = 10 + large_scales()
    iterates = source + 0.3 * large_scales(1, 3)
    target = source + 0.3 * large_scales() + 0.5 * torch.randn(shape, generator=generator)
    for ridge in (0.0, 1e-8):
        model = SpectralEnsemble(CELLS, ridge, (0,)).fit([(source, iterates, target)])
        bands = torch.arange(CELLS.num_cells) // CELLS.angular
        assert model.weights_[(bands >= 3) & CELLS.occupied].abs().max() == 0
        assert model.weights_[bands < 3].abs().max() > 0
