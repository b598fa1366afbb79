"""The published protocol as presets: how each network was trained and evaluated on each system."""

import json
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, Field

from r2no.checks import choice
from r2no.training import TrainSettings

VALIDATIONS = 50


class Preset(BaseModel, frozen=True, extra="forbid"):
    """One row of the protocol. All three paradigms (numerical, real, finetune) share it.

    ``mask_prob`` and ``noise_scale`` act on simulated training windows, ``autoregressive`` is the
    number of blocks of the published evaluation, N.
    """

    lr: float = Field(gt=0)
    updates: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    eval_batch_size: int = Field(ge=1)
    clip: float = Field(ge=0)
    mask_prob: float = Field(ge=0, le=1)
    noise_scale: float = Field(ge=0)
    autoregressive: int = Field(ge=1)
    seed: int = Field(ge=0)
    validations: int = Field(default=VALIDATIONS, ge=1)

    def train_settings(self) -> TrainSettings:
        """Adam without weight decay, a cosine per update to 0, 50 validations."""
        return TrainSettings(
            epochs=None,
            updates=self.updates,
            batch_size=self.batch_size,
            lr=self.lr,
            final_lr=0.0,
            weight_decay=0.0,
            clip=self.clip,
            optimiser="adam",
            schedule="cosine_update",
            validations=self.validations,
            seed=self.seed,
        )


def preset(system: str, backbone: str) -> Preset:
    """The row of network ``backbone`` on ``system``.

    Raises:
        ConfigError: for an unknown name, with the nearest right one.
    """
    rows = _table()[choice("system", system, tuple(_table()))]
    return Preset(**rows[choice("backbone", backbone, tuple(rows))])


@cache
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    """Rows by system, then by network."""
    text = resources.files("r2no.realpdebench.protocol").joinpath("presets.json").read_text()
    table: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    return table
