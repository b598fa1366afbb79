"""Columns of any forecast, and their quadrature partners (M13)."""

from dataclasses import replace

import pytest
import torch

from r2no import FourierCells
from r2no.ensemble import Columns, FitPlan, FittedEnsemble, GramAccumulator
from r2no.ensemble.columns import group_of, repair_label
from r2no.errors import ConfigError
from r2no.spectral.transforms import forward, quadrature_partner, quadrature_sign

GRIDS = [(6, 8), (5, 8), (6, 7), (5, 7)]


@pytest.mark.parametrize("grid", [*GRIDS, (9,), (4, 5, 6)], ids=str)
def test_partner_of_a_partner_is_minus_the_field_off_the_self_conjugate_lines(grid, rng):
    field = torch.randn(3, *grid, generator=rng, dtype=torch.float64)
    twice = quadrature_partner(quadrature_partner(field, grid), grid)
    moving = forward(field, len(grid)) * (quadrature_sign(grid) != 0)
    expected = -torch.fft.irfftn(moving, s=grid, dim=tuple(range(-len(grid), 0)), norm="ortho")
    torch.testing.assert_close(twice, expected)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_partner_is_orthogonal_to_its_field_and_as_large_on_moving_waves(grid, rng):
    field = torch.randn(*grid, generator=rng, dtype=torch.float64)
    partner = quadrature_partner(field, grid)
    assert float((field * partner).sum().abs()) < 1e-12 * float(field.square().sum())
    again = quadrature_partner(partner, grid)
    torch.testing.assert_close(partner.square().sum(), again.square().sum())


def test_a_wave_and_its_partner_give_every_phase():
    x = torch.arange(16, dtype=torch.float64) * 2 * torch.pi / 16
    wave = torch.cos(3 * x).expand(4, 16)
    for phase in (0.3, 1.0, 2.5):
        shifted = torch.cos(3 * x + phase).expand(4, 16)
        pair = torch.stack([wave.flatten(), quadrature_partner(wave, (4, 16)).flatten()], 1)
        weights = torch.linalg.lstsq(pair, shifted.reshape(-1, 1)).solution
        torch.testing.assert_close(pair @ weights, shifted.reshape(-1, 1))


def test_labels_name_groups_and_survive_a_file():
    partners = ("recall:1", repair_label(1, 2), "base")
    columns = Columns(2, (1, 2), further=("recall:1", "recall:2", "mean"), partners=partners)
    assert columns.number == len(columns.labels) == 2 * 2 + 3 + 3 + 1
    assert columns.groups()["recall"] == [4, 5, 7]
    assert group_of("~recall:1") == "recall"
    assert Columns.of(columns.json(), centred=False) == columns
    fewer = columns.restricted(1, without=("mean",))
    assert fewer.labels == (
        "repair:0.1",
        "repair:0.2",
        "recall:1",
        "recall:2",
        "~recall:1",
        "~base",
        "base",
    )
    assert [columns.labels[place] for place in columns.positions(fewer)] == list(fewer.labels)
    assert columns.restricted(0).members == 0
    assert columns.restricted(without=("repair", "base")).labels[0] == "recall:1"


@pytest.mark.parametrize(
    "wrong",
    [
        {"members": -1, "depths": ()},
        {"members": 1, "depths": ()},
        {"members": 0, "depths": (1,)},
        {"members": 0, "depths": (), "base": False},
        {"members": 0, "depths": (), "further": ("mean", "mean")},
        {"members": 0, "depths": (), "partners": ("mean",)},
    ],
    ids=str,
)
def test_columns_that_contradict_themselves_are_named(wrong):
    with pytest.raises(ConfigError):
        Columns(**wrong)


def problem(grid, rng, windows=6):
    shape = (windows, 3, *grid, 2)
    source, target, recalled, mean = torch.randn(4, *shape, generator=rng, dtype=torch.float64)
    return source, target, {"recall:1": recalled, "mean": mean}


def fitted(grid, rng, *, mask=None, ridge=1e-6):
    source, target, forecasts = problem(grid, rng)
    columns = Columns(0, (), further=tuple(forecasts), partners=("recall:1", "base"))
    cells = FourierCells.polar(grid, radial=3, angular=2)
    sums = GramAccumulator(columns, cells, measured=(0, 1), exponents=(1.0,), groups=1)
    spectra = sums.begin(source, target, mask)
    for label, forecast in forecasts.items():
        spectra.put(label, forecast)
    sums.add(torch.zeros(len(source), dtype=torch.long))
    plan = FitPlan(ridge, (0, 1))
    return FittedEnsemble.solve(cells, plan, columns, sums.sums[1.0]), source, target, forecasts


def composed(ensemble, source, forecasts):
    composition = ensemble.compose(source)
    for label, forecast in forecasts.items():
        composition.put(label, forecast)
    return composition.result()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_forecast_is_the_weighted_sum_of_columns_and_partners(grid, rng):
    ensemble, source, _, forecasts = fitted(grid, rng)
    fields = {**{name: field - source for name, field in forecasts.items()}, "base": -source}
    expected = source.clone()
    for place, label in enumerate(ensemble.columns.labels):
        column = fields[label.removeprefix("~")].movedim(-1, 2)
        if label.startswith("~"):
            column = quadrature_partner(column, grid)
        weights = ensemble.weights[:, :, place][ensemble.cells.index].movedim(-1, 0)
        part = torch.fft.irfft2(forward(column) * weights, s=grid, norm="ortho")
        expected = expected + part.movedim(2, -1)
    torch.testing.assert_close(composed(ensemble, source, forecasts), expected)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_fit_is_a_stationary_point(grid, rng):
    """Moving any weight of any cell a little does not lower the weighted error."""
    ensemble, source, target, forecasts = fitted(grid, rng, ridge=0.0)
    norms = target.flatten(1).norm(dim=1)

    def error(weights):
        found = composed(replace(ensemble, weights=weights), source, forecasts)
        return float(((found - target).flatten(1).square().sum(1) / norms).sum())

    best = error(ensemble.weights)
    for place in range(ensemble.columns.number):
        for step in (1e-3, -1e-3):
            moved = ensemble.weights.clone()
            moved[..., place] += step
            assert error(moved) >= best - 1e-12


def test_zero_weights_are_the_source_bit_for_bit(rng):
    ensemble, source, _, forecasts = fitted((6, 8), rng)
    nothing = replace(ensemble, weights=torch.zeros_like(ensemble.weights))
    assert torch.equal(composed(nothing, source, forecasts), source)


def test_values_under_a_mask_change_no_bit_of_the_sums(rng):
    source, target, forecasts = problem((6, 8), rng)
    mask = torch.rand(target.shape, generator=rng) > 0.2
    found = []
    for hidden in (0.0, 1e6):
        columns = Columns(0, (), further=tuple(forecasts), partners=("mean",))
        cells = FourierCells.polar((6, 8), radial=3, angular=2)
        sums = GramAccumulator(columns, cells, measured=(0, 1), exponents=(1.0,), groups=1)
        spectra = sums.begin(source, torch.where(mask, target, hidden), mask)
        for label, forecast in forecasts.items():
            spectra.put(label, forecast)
        sums.add(torch.zeros(len(source), dtype=torch.long))
        found.append(sums.sums[1.0].moments)
    assert torch.equal(*found)


def test_further_columns_merge_derive_and_survive_a_file(rng, tmp_path):
    ensemble, source, _, forecasts = fitted((6, 8), rng)
    ensemble.save(tmp_path / "e.safetensors")
    again = FittedEnsemble.load(tmp_path / "e.safetensors")
    assert again.columns == ensemble.columns
    assert torch.equal(composed(again, source, forecasts), composed(ensemble, source, forecasts))
    twice = ensemble.merge(again)
    torch.testing.assert_close(twice.weights, ensemble.weights)
    assert ensemble.derive(base_column=False).columns.labels == ("recall:1", "mean", "~recall:1")
