"""The published protocol: every row, and what it means for a training."""

import math

import pytest
import torch
from pydantic import ValidationError

from r2no import backbones
from r2no.errors import ConfigError
from r2no.realpdebench import SYSTEMS
from r2no.realpdebench.protocol.config import AdaptConfig, TrainConfig, preset, read_config

ROWS = [(system, backbone) for system in SYSTEMS for backbone in backbones.names()]


@pytest.mark.parametrize(("system", "backbone"), ROWS)
def test_every_row_gives_the_published_optimiser(system: str, backbone: str) -> None:
    settings = preset(system, backbone).train_settings()
    assert settings.optimiser == "adam"
    assert settings.weight_decay == 0
    assert settings.schedule == "cosine_update"
    assert settings.validations == 50
    assert settings.clip == (1 if backbone == "dpot_s" else 0)
    total = settings.total_updates(batches_per_epoch=7)
    assert settings.validate_every(7) * 50 == total  # so exactly 50 validations
    middle = settings.lr_at(total // 2, 7)
    assert middle == pytest.approx(settings.lr / 2)
    assert settings.lr_at(total, 7) == pytest.approx(0, abs=1e-15)


def test_schedule_is_that_of_torch() -> None:
    settings = preset("fsi", "fno").train_settings().model_copy(update={"updates": 20})
    optimiser = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=settings.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 20)
    for update in range(20):
        expected = schedule.get_last_lr()[0]
        assert math.isclose(settings.lr_at(update, 7), expected, rel_tol=1e-9)
        optimiser.step()
        schedule.step()


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (("cylinder", "fno"), (1e-4, 4000, 32, 64, 0.1, 0.1, 10, 0)),
        (("cylinder", "unet"), (1e-4, 10000, 12, 12, 0.5, 0.1, 5, 0)),
        (("controlled_cylinder", "dpot_s"), (5e-4, 50000, 16, 64, 0.1, 0.5, 1, 0)),
        (("controlled_cylinder", "transolver"), (1e-3, 5000, 32, 32, 0.1, 0.1, 2, 0)),
        (("fsi", "deeponet"), (1e-3, 5000, 64, 64, 0.5, 0.1, 1, 0)),
        (("foil", "deeponet"), (1e-4, 4000, 32, 64, 0.1, 0.1, 1, 1234567)),
        (("combustion", "fno"), (1e-2, 2000, 64, 64, 0.5, 0.0, 1, 0)),
        (("combustion", "cno"), (3e-4, 5000, 16, 64, 0.1, 0.1, 3, 0)),
    ],
)
def test_rows_hold_the_published_numbers(row, expected) -> None:
    found = preset(*row)
    assert expected == (
        found.lr,
        found.updates,
        found.batch_size,
        found.eval_batch_size,
        found.mask_prob,
        found.noise_scale,
        found.autoregressive,
        found.seed,
    )


def test_totals_over_all_rows_are_the_published_ones() -> None:
    rows = [preset(*row) for row in ROWS]
    assert len(rows) == 30
    assert sum(row.updates for row in rows) == 223_000
    assert sum(row.lr for row in rows) == pytest.approx(0.03335)
    assert sum(row.batch_size for row in rows) == 816
    assert sum(row.eval_batch_size for row in rows) == 1456
    assert sum(row.autoregressive for row in rows) == 76
    assert sum(row.clip for row in rows) == 5
    assert sum(row.mask_prob for row in rows) == pytest.approx(7.4)
    assert sum(row.noise_scale for row in rows) == pytest.approx(4.8)
    assert sum(row.seed for row in rows) == 1234567


def test_overrides_replace_single_entries() -> None:
    config = TrainConfig(system="foil", backbone="cno", data=".", updates=7, noise_scale=0)
    row, published = config.resolved(), preset("foil", "cno")
    assert (row.updates, row.noise_scale) == (7, 0)
    assert row.lr == published.lr
    assert row.batch_size == published.batch_size


def test_paper_preset_is_the_published_adaptation() -> None:
    settings = AdaptConfig(data=".", source="x.pth", preset="paper").settings()
    assert settings.members == 3
    assert settings.seed == 42
    assert (settings.repair.width, settings.repair.depth, settings.repair.steps) == (32, 4, 12)
    assert settings.repair.train.epochs == 12
    assert settings.repair.train.lr == 3e-4
    assert settings.repair.train.batch_size == 16
    assert settings.ensemble.cells == "published"
    assert (settings.ensemble.radial, settings.ensemble.angular) == (128, 16)
    auto = AdaptConfig(data=".", source="x.pth", updates=5, width=8).settings()
    assert auto.ensemble.cells == "auto"
    assert (auto.repair.train.epochs, auto.repair.train.updates) == (None, 5)
    assert auto.repair.width == 8


def test_unknown_row_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'dpot_s'"):
        preset("foil", "dpot")
    with pytest.raises(ConfigError, match="Did you mean 'combustion'"):
        preset("combusion", "fno")


def test_configs_are_frozen_and_refuse_unknown_keys(tmp_path) -> None:
    with pytest.raises(ValidationError):
        TrainConfig(system="foil", backbone="cno", data=".", update=7)
    config = TrainConfig(system="foil", backbone="cno", data=".")
    with pytest.raises(ValidationError):
        config.system = "fsi"
    path = tmp_path / "config.yaml"
    path.write_text("- a list\n")
    with pytest.raises(ConfigError, match="name: value"):
        read_config(TrainConfig, path)
    path.write_text("system: [unclosed\n")
    with pytest.raises(ConfigError, match="not a YAML file"):
        read_config(TrainConfig, path)
