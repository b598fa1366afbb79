import base64
from dataclasses import replace

import numpy as np
import pytest
import torch

from r2no import FourierCells
from r2no.adaptation import StoredModel, readouts, score_readouts
from r2no.data.window import Fields
from r2no.ensemble import Columns, FittedEnsemble, retention
from r2no.errors import ConfigError
from r2no.report import (
    ReportData,
    ScoringWatch,
    collect,
    evaluate,
    plots,
    render,
)
from r2no.report.cells import cells_json, effects, weight_tables
from r2no.report.data import pack, unpack
from r2no.report.watch import border, example_json
from tests.support import adapted as toy


@pytest.fixture(scope="module")
def data() -> ReportData:
    return collect(toy.model(), evaluation=toy.evaluation(gaps=True))


# -- the numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gaps", [False, True], ids=["complete", "gappy"])
def test_lead_times_and_regions_add_up_to_the_rmse(gaps):
    windows = toy.split(range(20, 22), gaps=gaps)
    found = toy.evaluation(gaps)
    fields = windows.fields
    masks = torch.stack(
        [
            torch.ones_like(w.target, dtype=torch.bool) if w.mask is None else w.mask
            for w in (windows[n] for n in range(len(windows)))
        ]
    ).double()
    by_frame = masks.sum((0, 2, 3, 4))
    near = border(fields, found.regions["width"]).reshape(fields.grid)
    points = {"edge": masks[:, :, near].sum(), "interior": masks[:, :, ~near].sum()}
    for role, name in found.roles.items():
        squared = found.scores[name]["rmse"] ** 2
        lead = torch.tensor(found.lead[role]).double() ** 2
        assert float((lead * by_frame).sum() / by_frame.sum()) == pytest.approx(squared, rel=1e-3)
        rows = [row for row in found.regions["rows"] if row["channel"] == "all"]
        total = sum(float(points[row["region"]]) * row[role] ** 2 for row in rows)
        assert total / float(masks.sum()) == pytest.approx(squared, rel=1e-3)
    assert found.gaps == pytest.approx(1 - float(masks.mean()), abs=1e-9)


def test_spectra_hold_the_whole_error():
    """Parseval: rings, each with its number of coefficients, sum to the squared error."""
    found, fields = toy.evaluation(), toy.model().fields
    rings = FourierCells.bands(fields.grid, num_bands=len(found.spectra["radius"]))
    for role, name in found.roles.items():
        power = torch.tensor([v or 0.0 for v in found.spectra[role]]).double() ** 2
        mean = float((power * rings.sizes).sum() / rings.sizes.sum())
        assert mean == pytest.approx(found.scores[name]["rmse"] ** 2, rel=1e-3)


class Disguised:
    """The same windows with other numbers under the mask."""

    def __init__(self, windows, value):
        self._windows, self._value = windows, value
        self.fields, self.origins = windows.fields, windows.origins
        self.fingerprint = windows.fingerprint

    def __len__(self):
        return len(self._windows)

    def __getitem__(self, index):
        window = self._windows[index]
        hidden = torch.where(window.mask, window.target, torch.tensor(self._value))
        return window._replace(target=hidden)


def test_values_under_the_mask_change_nothing_of_the_evaluation():
    windows = toy.split(range(20, 22), gaps=True)
    changed = evaluate(toy.model(), Disguised(windows, 7.5))
    assert changed.to_json() == toy.evaluation(gaps=True).to_json()


def test_example_shows_gaps_as_missing_and_forecasts_everywhere():
    windows = toy.split(range(20, 22), gaps=True)
    example = toy.evaluation(gaps=True).example
    mask = windows[example["window"]].mask.numpy()
    for number, channel in enumerate(example["channels"]):
        target = unpack(channel["fields"]["target"])[:, ::-1]
        np.testing.assert_array_equal(np.isfinite(target), mask[..., number])
        assert np.isfinite(unpack(channel["fields"]["r2no"])).all()


def test_example_is_the_models_own_forecast():
    windows, example = toy.split(range(20, 22)), toy.evaluation().example
    history = windows[example["window"]].history[None]
    expected = toy.model().predict(history)[0].flip(1)
    for number, channel in enumerate(example["channels"]):
        found = torch.from_numpy(unpack(channel["fields"]["r2no"]))
        torch.testing.assert_close(found.float(), expected[..., number], atol=2e-4, rtol=0)


def test_large_examples_are_thinned_below_their_limit():
    fields = Fields(
        grid=(600, 700), history_frames=1, horizon_frames=4, channels=("u",), measured=(0,)
    )
    values = torch.zeros(4, 600, 700, 1)
    found = example_json({"target": values, "r2no": values}, fields, number=0, origin=[0, 0])
    assert found["stride"] == 2
    assert found["channels"][0]["fields"]["target"]["shape"] == [4, 300, 350]


@pytest.mark.parametrize("grid", [(9,), (4, 5, 6)], ids=["1-D", "3-D"])
def test_other_grids_become_pictures(grid):
    fields = Fields(grid=grid, history_frames=1, horizon_frames=2, channels=("u",), measured=(0,))
    found = example_json({"target": torch.rand(2, *grid, 1)}, fields, number=0, origin=[0, 0])
    shape = found["channels"][0]["fields"]["target"]["shape"]
    assert shape == ([2, 1, 9] if len(grid) == 1 else [2, 5, 6])


def test_packing_is_exact_to_half_a_step(rng):
    values = torch.randn(50, generator=rng).double()
    values[7] = torch.nan
    again = torch.from_numpy(unpack(pack(values)))
    step = float(values.nan_to_num(0).max() - values.nan_to_num(0).min()) / 65534
    torch.testing.assert_close(again, values, atol=0.51 * step, rtol=0, equal_nan=True)
    constant = torch.full((3,), 2.5)
    assert unpack(pack(constant)).tolist() == [2.5, 2.5, 2.5]
    assert np.isnan(unpack(pack(torch.full((3,), torch.nan)))).all()


def test_watch_names_the_readout_that_was_not_scored():
    model, windows = toy.model(), toy.split(range(20, 22))
    chosen = {name: found for name, found in readouts(model).items() if name != "irno_selected"}
    with pytest.raises(ConfigError, match="irno_selected"):
        score_readouts(model, windows, chosen, observers=[ScoringWatch(model, windows)])


# -- the retention map ---------------------------------------------------------------------------


def numbers(packed, kind):
    return np.frombuffer(base64.b64decode(packed["data"]), kind).reshape(packed["shape"])


@pytest.mark.parametrize("cells", ["auto", "published"])
def test_map_holds_the_weights_of_every_wavenumber(cells):
    ensemble = toy.model(cells).ensemble
    found = cells_json(ensemble, ["u", "v"], frames=4)
    plane, weights = numbers(found["plane"], "<u2"), numbers(found["weights"], "<f4")
    height, width = ensemble.cells.grid
    leads = ensemble.plan.lead_groups
    stored = ensemble.weights[ensemble.cells.index].unflatten(2, (2, leads))
    assert len(weights) == (leads + 1 if leads > 1 else 1)
    for row in range(height):
        for column in range(width // 2):  # wavenumbers 0..width/2 - 1, right of the centre
            cell = plane[height - 1 - (row + height // 2) % height, column + width // 2]
            expected = stored[row, column].movedim(1, 0).numpy()  # lead time, channel, column
            np.testing.assert_allclose(weights[-leads:, :, cell], expected, rtol=1e-5, atol=1e-7)
            mean = expected.mean(0)
            np.testing.assert_allclose(weights[0, :, cell], mean, rtol=1e-5, atol=1e-6)


def test_shares_and_gains_add_up_to_the_gain_of_the_fit():
    ensemble = toy.model().ensemble
    found = cells_json(ensemble, ["u", "v"], frames=4)
    share, gain = (np.array(found[name][0], dtype=float) for name in ("share", "gain"))
    assert np.nansum(share) == pytest.approx(1, abs=1e-3)
    sums = ensemble.sums.total()
    weights = ensemble.weights
    repaired = torch.einsum("bci,bcij,bcj->", weights, sums.gram[0], weights)
    removed = 2 * (weights * sums.rhs[0]).sum() - repaired
    expected = float(removed / sums.energy[0].sum())
    assert np.nansum(share * gain) == pytest.approx(expected, abs=1e-4)


def test_groups_of_lead_time_get_maps_of_their_own(rng):
    ensemble = toy.by_hand(FourierCells.polar((6, 8), radial=3, angular=2), 3, rng)
    found = cells_json(ensemble, ["u", "v"], frames=10)
    runs = ["frames 1 to 3", "frames 4 to 7", "frames 8 to 10"]
    assert found["leads"] == ["all forecast frames", *runs]
    weights = numbers(found["weights"], "<f4")
    occupied = ensemble.cells.occupied
    for lead in range(3):
        for channel in range(2):
            expected = ensemble.weights[occupied, 3 * channel + lead].numpy()
            np.testing.assert_allclose(weights[lead + 1, channel], expected, rtol=1e-6)


def test_effects_are_those_of_the_retention_map(rng):
    """Each group of lead time alone; all together are weighed by their energies."""
    cells = FourierCells.polar((6, 8), radial=3, angular=2)
    ensemble = toy.by_hand(cells, 3, rng)
    found, expected = effects(ensemble, 3), retention(ensemble)
    for name in ("gain", "change", "share"):
        values = getattr(expected, name).unflatten(1, (2, 3)).movedim(2, 0).movedim(1, 2)
        torch.testing.assert_close(found[name][1:], values, equal_nan=True)
    share, gain = found["share"][1:], found["gain"][1:]
    torch.testing.assert_close(found["share"][0], share.sum(0), equal_nan=True)
    mean = (share * gain).sum(0) / share.sum(0)
    torch.testing.assert_close(found["gain"][0], mean, equal_nan=True)


def test_parts_are_the_energies_of_the_groups(rng):
    cells = FourierCells.polar((6, 8), radial=3, angular=2)
    ensemble = toy.by_hand(cells, 1, rng)
    parts = effects(ensemble, 1)["parts"][0]  # channel, cell, group
    gram = ensemble.sums.total().gram[0]
    occupied = int(cells.occupied.nonzero()[0])
    weights, block = ensemble.weights[occupied, 1], gram[occupied, 1]
    repair = weights[:2] @ block[:2, :2] @ weights[:2]
    base = weights[2] ** 2 * block[2, 2]
    expected = torch.stack([repair, base]) / (repair + base)
    torch.testing.assert_close(parts[1, occupied], expected)
    zero = replace(ensemble, weights=torch.zeros_like(ensemble.weights))
    assert cells_json(zero, ["u", "v"], frames=2)["leading"][0][0][0] is None
    leading = cells_json(ensemble, ["u", "v"], frames=2)["leading"][0][1][0]
    assert leading == int(expected.argmax())


def test_every_column_has_one_place_in_the_tables():
    for model in (toy.model(), toy.model("published"), toy.instant()):
        found = cells_json(model.ensemble, ["u", "v"], frames=4)
        tables = found["tables"]
        places = [p for table in tables for row in table["rows"] for p in row["places"]]
        known = sorted(place for place in places if place is not None)
        assert known == list(range(model.ensemble.columns.number))
        grouped = sorted(p for group in found["groups"] for p in group["own"] + group["shifted"])
        assert grouped == known
        assert all(len(row["places"]) == len(t["heads"]) for t in tables for row in t["rows"])


def test_columns_are_named_by_their_labels():
    columns = Columns(1, (1, 3), further=("recall:1", "recall:2", "cno"), partners=("recall:2",))
    repair, recall, cno, base = weight_tables(columns)
    assert repair["heads"] == ["depth 1", "depth 3"]
    assert repair["rows"] == [{"name": "member 1", "places": [0, 1]}]
    assert [row["name"] for row in recall["rows"]] == ["last frame", "last frame but 1"]
    assert [row["places"] for row in recall["rows"]] == [[2, None], [3, 5]]
    assert (cno["title"], cno["rows"][0]["places"]) == ("cno", [4])
    assert (base["title"], base["rows"][0]["places"]) == ("Damping", [6])
    shifted = Columns(2, (1,), base=False, partners=("repair:1.1",))
    (table,) = weight_tables(shifted)
    assert [row["places"] for row in table["rows"]] == [[0], [1], [2]]


def test_figure_pools_lead_times(tmp_path, monkeypatch):
    """One row per channel, however many groups of lead time there are."""
    sizes = []

    def write(figure, path):
        sizes.append(len(figure.axes))
        return path

    monkeypatch.setattr(plots, "_write", write)
    plots.plot_retention(toy.model().ensemble, tmp_path / "a.png", channel_names=["u", "v"])
    assert toy.model().ensemble.plan.lead_groups > 1
    assert sizes == [2 * 2 * 2]  # panels and their colour bars


def test_map_of_a_line_is_a_row_of_bands(rng):
    ensemble = toy.by_hand(FourierCells.polar((16,), radial=4, angular=1), 1, rng)
    found = cells_json(ensemble, ["u", "v"], frames=2)
    assert found["plane"]["shape"] == [1, len(found["cells"])]
    radii = [cell["radius"] for cell in found["cells"]]
    assert radii == sorted(radii)
    assert radii[-1][1] == 1.0


def test_map_without_sums_shows_the_weights_only(data):
    ensemble = FittedEnsemble.from_state(*toy.model().ensemble.state(sums=False))
    stored = StoredModel(
        ensemble,
        toy.model().fit_errors,
        toy.model().fields,
        toy.model().settings,
        toy.model().provenance,
        {"files": {}},
    )
    found = collect(stored)
    assert found.budget == found.learning == []
    assert found.retention["weights"] == data.retention["weights"]
    assert found.retention["gain"][0][0][0] is None
    assert "n/a" not in render(found).split('id="retention"')[0]
    assert "Cells with the largest share" not in render(found)
