"""Columns that cost nothing: any group merges, truncates, saves and exports as iterates do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.adapting import Source

import r2no
from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairSettings, read_stored
from r2no.adaptation.groups import ColumnGroup, MeanField, Recall
from r2no.data import ArrayWindows
from r2no.data.window import collate
from r2no.errors import ConfigError, FingerprintError, NonFiniteError, ShapeError
from r2no.training import TrainSettings

HISTORY, HORIZON, GRID = 4, 4, (8, 12)
TRAIN = TrainSettings(epochs=None, updates=2, batch_size=4, validations=1)
SETTINGS = AdaptSettings(
    members=0,
    repair=RepairSettings(width=2, depth=2, steps=3, train=TRAIN),
    ensemble=EnsembleSettings(radial=8, angular=4),
)


def waves(seed, frames=40, mask=None):
    """Travelling waves, two channels, the second of which is not measured."""
    random = np.random.default_rng(seed)
    time, y, x = np.meshgrid(*(np.arange(n) for n in (frames, *GRID)), indexing="ij")
    phase = 2 * np.pi * (x / GRID[1] + 2 * y / GRID[0] - time / 9 + random.random())
    field = np.stack([np.cos(phase) + 0.3 * np.cos(2 * phase), 0 * phase], -1)
    return (field + 0.05 * random.standard_normal(field.shape)).astype(np.float32)


def split(seeds):
    return ArrayWindows([waves(seed) for seed in seeds], HISTORY, HORIZON, measured=(0,))


class Trend:
    """The last frame and the change before it, continued: a group in ten lines."""

    name, labels, partners = "trend", ("trend:1", "trend:2"), ("trend:1",)

    def forecasts(self, history, source):
        step = history[:, -1:] - history[:, -2:-1]
        lead = torch.arange(1, source.shape[1] + 1).to(source).view(1, -1, 1, 1, 1)
        yield "trend:1", (history[:, -1:] + lead * step)[..., : source.shape[-1]]
        yield "trend:2", (history[:, -1:] - 3 * step)[..., : source.shape[-1]].expand_as(source)


@pytest.fixture(scope="module")
def data():
    return {"train": split(range(2)), "fit": split(range(10, 14)), "test": split(range(20, 22))}


@pytest.fixture(scope="module")
def other():
    class Further(Source):
        """Of another kind than the source: it fades, and forgets its first channel's sign."""

        def forward(self, history):
            fading = torch.linspace(1, 0.5, HORIZON).view(1, -1, 1, 1, 1)
            return fading * super().forward(history).roll(1, 3)

    return Further()


def adapted(data, **options):
    torch.manual_seed(0)
    options = {"settings": SETTINGS, **options}
    return r2no.adapt(Source(), data["train"], data["fit"], **options)


@pytest.fixture(scope="module")
def model(data, other):
    return adapted(data, also={"pretrained": other, "trend": Trend()})


def rmse(model, windows):
    return model.evaluate(windows)["rmse"]


def test_a_model_without_modules_beats_source_and_persistence(model, data):
    assert isinstance(Trend(), ColumnGroup)
    assert len(model.loops.modules) == 0
    window = collate([data["test"][3]])
    target = window.target[..., 0]
    persistence = (window.history[:, -1:, ..., 0] - target).square().mean().sqrt()
    source = (model.source(window.history)[..., 0] - target).square().mean().sqrt()
    ours = (model.predict(window.history)[..., 0] - target).square().mean().sqrt()
    assert ours < 0.5 * min(persistence, source)
    assert model.verdict.deploy
    assert model.verdict.gain_over_best > 0


def test_columns_are_the_forecasts_under_their_labels(model, data):
    columns = model.ensemble.columns
    recalled = tuple(f"recall:{age}" for age in range(1, HISTORY + 1))
    assert columns.further == (*recalled, "mean", "pretrained", "trend:1", "trend:2")
    assert columns.partners == (*recalled, "trend:1")
    history = collate([data["test"][0]]).history
    source = model.source(history)
    found = dict(model.forecasts(history, source))
    for age in (1, 2):
        expected = history[:, -age, ..., :2][:, None].expand_as(source)
        assert torch.equal(found[f"recall:{age}"], expected)
    frames = torch.cat([data["train"][n].target[None] for n in range(len(data["train"]))])
    mean = frames.double().mean((0, 1)).float()
    torch.testing.assert_close(found["mean"][0, 0].float(), mean)


def test_the_mean_field_leaves_out_what_was_not_measured():
    values, valid = waves(0), np.random.default_rng(1).random((40, *GRID)) < 0.7
    valid[:, 0, 0] = False  # never
    broken = values.copy()
    broken[~valid] = 1e9
    found = [
        MeanField.of(ArrayWindows([each], 4, 4, mask=[valid], measured=(0,))).field
        for each in (values, broken)
    ]
    assert torch.equal(found[0][..., 0], found[1][..., 0])
    assert found[0][0, 0, 0] == pytest.approx(float(values[valid][:, 0].mean()), abs=0.05)


def test_zero_weights_are_the_source_bit_for_bit(model, data):
    kept = replace(
        model, ensemble=replace(model.ensemble, weights=torch.zeros_like(model.ensemble.weights))
    )
    history = collate([data["test"][0]]).history
    assert torch.equal(kept.forecast(history), model.source(history))


def test_artifact_brings_groups_and_asks_for_those_it_cannot(model, data, other, tmp_path):
    path = model.save(tmp_path / "model.r2no", include_source=False)
    history = collate([data["test"][0]]).history
    again = r2no.load(path, model.source, also={"pretrained": other, "trend": Trend()})
    assert torch.equal(again.forecast(history), model.forecast(history))
    assert again.verdict == model.verdict
    assert read_stored(path).ensemble.columns == model.ensemble.columns
    with pytest.raises(ConfigError, match=r"does not bring `pretrained`.*also="):
        r2no.load(path, model.source, also={"trend": Trend()})
    with pytest.raises(FingerprintError, match="`pretrained` forecasts something else"):
        r2no.load(path, model.source, also={"pretrained": Source(), "trend": Trend()})
    given = {"pretrained": other, "trend": Trend(), "more": other}
    with pytest.raises(ConfigError, match="does not know"):
        r2no.load(path, model.source, also=given)


def test_operators_of_known_kind_come_along(data, tmp_path):
    from r2no import backbones
    from r2no.data.normalise import fit_normalisers
    from r2no.training import PhysicalOperator

    def network(seed):
        torch.manual_seed(seed)
        shape = (HISTORY, *GRID, 2)
        config = backbones.small_config("fno", shape_in=shape, shape_out=shape)
        built = backbones.build("fno", config=config)
        return PhysicalOperator(built, *fit_normalisers(data["train"])).eval()

    model = r2no.adapt(
        network(0),
        data["train"],
        data["fit"],
        settings=SETTINGS,
        also={"pretrained": network(1)},
    )
    path = model.save(tmp_path / "model.r2no")
    assert (path / "also-pretrained.safetensors").is_file()
    history = collate([data["test"][0]]).history
    assert torch.equal(r2no.load(path).forecast(history), model.forecast(history))


def test_merged_fits_equal_the_pooled_one(data, other):
    also = {"pretrained": other}
    whole = adapted(data, also=also)
    parts = [
        replace(
            whole,
            ensemble=adapted({**data, "fit": split(seeds)}, also=also).ensemble,
            provenance=whole.provenance,
        )
        for seeds in ((10, 11, 12, 13), (14, 15, 16, 17))
    ]
    merged = parts[0].merge(parts[1])
    both = whole.ensemble.needed_sums().moments.sum(0) + parts[1].ensemble.sums.moments.sum(0)
    torch.testing.assert_close(merged.ensemble.sums.moments.sum(0), both)
    assert merged.verdict.blocks == 8
    updated = whole.update(split((14, 15, 16, 17)))
    torch.testing.assert_close(updated.ensemble.weights, merged.ensemble.weights)


def test_truncating_to_nothing_leaves_what_costs_nothing(data, other):
    settings = SETTINGS.model_copy(update={"members": 1})
    model = adapted(data, settings=settings, also={"pretrained": other})
    instant = model.truncate(0)
    assert len(instant.loops.modules) == 0
    assert instant.ensemble.columns.members == 0
    expected = model.ensemble.derive(members=0)
    assert torch.equal(instant.ensemble.weights, expected.weights)
    history = collate([data["test"][0]]).history
    assert torch.isfinite(instant.forecast(history)).all()


def test_program_in_one_file_answers_as_the_model(data, tmp_path):
    model = adapted(data)
    path = model.export(tmp_path / "model.pt2")
    history = collate([data["test"][n] for n in range(3)]).history
    found = torch.export.load(path).module()(history)
    torch.testing.assert_close(found, model.forecast(history), rtol=1e-4, atol=1e-5)


def test_contributions_name_what_helped(model):
    found = {each.group: each for each in model.contributions()}
    assert set(found) == {"recall", "mean", "pretrained", "trend", "base"}
    assert found["recall"].columns == 2 * HISTORY
    assert found["recall"].alone < 1
    assert found["recall"].alone < found["mean"].alone
    assert len({each.together for each in found.values()}) == 1
    together = found["recall"].together
    assert together == pytest.approx(1 - model.verdict.gain, rel=0.2)


def test_values_under_masks_change_no_bit():
    valid = np.random.default_rng(3).random((40, *GRID)) < 0.8

    def made(hidden):
        def one(seed):
            values = waves(seed)
            values[~valid] = hidden
            return values

        def windows(seeds):
            arrays = [one(seed) for seed in seeds]
            return ArrayWindows(arrays, HISTORY, HORIZON, mask=[valid] * len(arrays), measured=(0,))

        torch.manual_seed(0)
        model = r2no.adapt(Source(), windows(range(2)), windows(range(10, 14)), settings=SETTINGS)
        return model.ensemble.weights

    assert torch.equal(made(0.0), made(1e6))


@pytest.mark.parametrize(
    ("also", "error", "match"),
    [
        ({"recall": Source()}, ConfigError, "plain words other than"),
        ({"a b": Source()}, ConfigError, "plain words"),
        ({"other": Trend()}, ConfigError, "calls itself 'trend'"),
        ({"x": lambda h: Source()(h)[:, :2]}, ShapeError, r"Operator `x`"),
        ({"x": lambda h: Source()(h) * torch.nan}, NonFiniteError, r"Operator `x`"),
    ],
)
def test_wrong_groups_are_named_before_any_work(data, also, error, match):
    with pytest.raises(error, match=match):
        adapted(data, also=also)


def test_a_group_that_says_nothing_new_is_refused(data):
    torch.manual_seed(0)
    source = Source()
    with pytest.raises(ConfigError, match="`same` forecasts what `source` does"):
        r2no.adapt(source, data["train"], data["fit"], settings=SETTINGS, also={"same": source})


def test_a_recall_longer_than_the_history_is_named(data):
    settings = SETTINGS.model_copy(
        update={"ensemble": EnsembleSettings(radial=8, angular=4, recall=5)}
    )
    with pytest.raises(ConfigError, match=r"`recall` must lie in 0\.\.4"):
        adapted(data, settings=settings)


def test_published_cells_have_the_papers_columns(data):
    ensemble = EnsembleSettings(cells="published", radial=8, angular=4)
    settings = SETTINGS.model_copy(update={"members": 1, "ensemble": ensemble})
    model = adapted(data, settings=settings)
    columns = model.ensemble.columns
    assert (columns.further, columns.partners, columns.depths) == ((), (), (1, 2, 3))
    assert model.groups == ()
    assert model.ensemble.plan.lead_groups == 1


@pytest.mark.parametrize("horizon", [11, 14])
def test_horizons_that_no_large_number_divides_have_groups_of_lead_time(horizon):
    """Recalled waves move on with lead time, so weights shared over it forecast half as well."""
    data = {
        name: ArrayWindows([waves(seed, frames=60) for seed in seeds], HISTORY, horizon, stride=2)
        for name, seeds in {"train": range(2), "fit": range(10, 14), "test": range(20, 22)}.items()
    }

    def error(lead_groups):
        ensemble = EnsembleSettings(radial=8, angular=4, lead_groups=lead_groups)
        settings = SETTINGS.model_copy(update={"ensemble": ensemble})
        model = r2no.adapt(
            lambda history: 0.8 * history[:, -1:].expand(-1, horizon, -1, -1, -1),
            data["train"],
            data["fit"],
            settings=settings,
        )
        assert model.ensemble.plan.lead_groups == (10 if lead_groups == "auto" else 1)
        return model.evaluate(data["test"])["rmse"]

    assert error("auto") < 0.5 * error(1)


def test_recall_needs_no_more_than_a_number():
    assert Recall(2).labels == ("recall:1", "recall:2")
    assert Recall(2, with_partners=False).partners == ()
