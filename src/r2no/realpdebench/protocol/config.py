"""Configs of the three commands: the published protocol as presets, and what is put on top.

Overrides come from options or a YAML file.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, field_validator

from r2no import backbones
from r2no._types import PathLike
from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairSettings
from r2no.checks import choice, valid
from r2no.devices import Precision
from r2no.errors import ConfigError
from r2no.reading import read_yaml
from r2no.realpdebench.systems import SYSTEMS
from r2no.training import TrainSettings
from r2no.training.schedule import Workers

VALIDATIONS = 50
_SYSTEM = "cylinder, controlled_cylinder, fsi, foil or combustion."
_BACKBONE = "unet, deeponet, fno, cno, transolver or dpot_s."


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


def option(words: str, default: Any = None, **checks: Any) -> Any:
    """A field that is an option of the command line too; ``words`` are its help."""
    return Field(default=default, description=words, **checks)


class BenchmarkConfig(BaseModel, frozen=True, extra="forbid"):
    """What every command needs: which data, which network, which statistics.

    ``statistics`` normalises networks whose file does not bring its own: ``exact`` or
    ``benchmark`` (variance within batches of 512) from the simulated training data, or a file
    ``mean_std.pt`` / ``max.pt``. ``small`` builds a network that trains in seconds.
    """

    data: Path = Field(description="Folder that holds one folder per system.")
    system: str | None = option(_SYSTEM)
    backbone: str | None = option(_BACKBONE)
    layout: Literal["auto", "arrow", "hdf5"] = option("auto, arrow or hdf5.", "auto")
    statistics: str = option("exact, benchmark, or a file such as mean_std.pt.", "exact")
    normaliser: Literal["gaussian", "range", "none"] = option(
        "gaussian, range or none.", "gaussian"
    )
    cache: Path | None = option("Folder to share statistics between runs.")
    small: bool = option("A small network, for tiny data.", False)
    exclude: tuple[str, ...] = option("Trajectory to leave out; repeat for several.", ())
    incomplete: Literal["raise", "skip"] = option(
        "raise, or skip windows whose frames are not there.", "raise"
    )
    device: str = option(
        "Where to compute: auto (an accelerator if there is one), cpu, cuda:1, ...",
        "auto",
        exclude=True,
    )

    def check(self) -> None:
        """Refuse fields that contradict each other."""

    @field_validator("system")
    @classmethod
    def _known_system(cls, value: str | None) -> str | None:
        return value if value is None else choice("system", value, tuple(SYSTEMS))

    @field_validator("backbone")
    @classmethod
    def _known_backbone(cls, value: str | None) -> str | None:
        return value if value is None else choice("backbone", value, backbones.names())


class LearningConfig(BenchmarkConfig, frozen=True, extra="forbid"):
    """What training and adapting share. Fields that are None are the published ones."""

    out: Path | None = option("Folder for the run.")
    seed: int | None = option("Seed.")
    lr: float | None = option("First learning rate.")
    updates: int | None = option("Optimiser steps.")
    batch_size: int | None = option("Windows per step.")
    eval_batch_size: int | None = option("Windows per batch when not training.")
    precision: Precision = option(
        "How networks multiply: float32 (default), tf32 or bf16.",
        "float32",
        exclude_if=lambda value: value == "float32",
    )
    workers: Workers = option(
        "Processes that read ahead in training: auto (default), 0, 2, ...", "auto", exclude=True
    )


class TrainConfig(LearningConfig, frozen=True, extra="forbid"):
    """A backbone's training.

    ``numerical`` trains on the simulation, ``real`` on measurements, ``finetune`` on measurements
    from the weights in ``source``. ``pretrained`` is DPOT's released backbone.
    """

    system: str = Field(description=_SYSTEM)
    backbone: str = Field(description=_BACKBONE)
    paradigm: Literal["numerical", "real", "finetune"] = option(
        "numerical (default), real or finetune.", "numerical"
    )
    source: Path | None = option("Checkpoint that finetuning starts from.")
    pretrained: Path | None = option("DPOT's released backbone.")
    measured_only: bool = option("Loss over measured channels; published: all.", False)
    benchmark_file: bool = option("Also write the benchmark's dictionary, PARADIGM.pth.", False)
    clip: float | None = option("Largest gradient norm; 0 for none.")
    mask_prob: float | None = option("Share of masked simulated windows.")
    noise_scale: float | None = option("Noise on simulated windows.")
    validations: int | None = option("Number of validations.")

    def check(self) -> None:
        """Refuse fields that contradict each other."""
        self.resolved()
        if (self.paradigm == "finetune") != (self.source is not None):
            raise ConfigError(
                "`source`, the checkpoint to start from, belongs to `paradigm=finetune` and to no "
                f"other, but the paradigm is {self.paradigm} and the source {self.source}."
            )
        if self.pretrained is not None and self.backbone != "dpot_s":
            raise ConfigError(
                f"`pretrained` is DPOT's backbone, but the network is {self.backbone}. Use "
                "`source` with `paradigm=finetune` to start from other weights."
            )

    def resolved(self) -> Preset:
        """The preset with this config's overrides."""
        rows = preset(self.system, self.backbone).model_dump()
        given = {name: getattr(self, name, None) for name in rows}
        return valid(Preset, rows | _given(**given), "The settings")

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        return self.out or Path("runs") / f"{self.system}-{self.backbone}-{self.paradigm}"


class AdaptConfig(LearningConfig, frozen=True, extra="forbid"):
    """Repair modules and ensemble on top of the checkpoint ``source``.

    ``preset="auto"`` shrinks the cells as the fit split demands, ``"paper"`` fits the published
    128 x 16 of them; everything else is the same.
    """

    source: Path = Field(description="Checkpoint of the operator to adapt.")
    preset: Literal["paper", "auto"] = option(
        "auto: cells sized to the fit split (default); paper: 128 x 16 cells.", "auto"
    )
    target: Literal["rmse", "rel_l2"] | None = option(
        "Weight windows for this score: rmse or rel_l2."
    )
    budget: int | None = option("Most evaluations of the repair module per forecast.", ge=1)
    members: int = option("Number of repair modules.", 3, ge=1)
    width: int | None = option("Base width of the repair U-Net.")
    depth: int | None = option("Levels of the repair U-Net.")
    steps: int | None = option("Iterates of the loop, L.")
    checkpointing: bool | None = option("Less memory for more time when training.")
    epochs: int | None = option("Epochs of each repair module, instead of updates.")
    radial: int | None = option("Radial bands.")
    angular: int | None = option("Angular sectors.")

    def check(self) -> None:
        """Refuse fields that contradict each other."""
        self.settings()
        if self.epochs is not None and self.updates is not None:
            raise ConfigError("Give either `epochs` or `updates`, not both.")

    def settings(self) -> AdaptSettings:
        """The preset with this config's overrides."""
        train: dict[str, Any] = TrainSettings().model_dump() | {"workers": self.workers}
        train |= _given(lr=self.lr, batch_size=self.batch_size, epochs=self.epochs)
        if self.updates is not None:
            train |= {"epochs": None, "updates": self.updates, "schedule": "cosine_update"}
        repair = _given(
            width=self.width,
            depth=self.depth,
            steps=self.steps,
            checkpointing=self.checkpointing,
            train=TrainSettings(**train),
        )
        cells = "published" if self.preset == "paper" else "auto"
        ensemble = _given(cells=cells, radial=self.radial, angular=self.angular, target=self.target)
        return AdaptSettings(
            members=self.members,
            repair=RepairSettings(**repair),
            ensemble=EnsembleSettings(**ensemble),
            device=self.device,
            precision=self.precision,
            **_given(seed=self.seed, batch_size=self.eval_batch_size, budget=self.budget),
        )


class EvaluateConfig(BenchmarkConfig, frozen=True, extra="forbid"):
    """A checkpoint or an artifact on one split.

    ``autoregressive`` is the number of blocks, N: 1 by default, and that of the preset with
    ``compat="benchmark"``, which scores as the published evaluation does.
    """

    model: Path
    source: Path | None = option("The artifact's source, if not beside it.")
    kind: Literal["real", "numerical"] = option("real (default) or numerical.", "real")
    split: Literal["train", "val", "test"] = option("train, val or test (default).", "test")
    test_mode: Literal["all", "in_dist", "out_dist", "seen", "unseen"] = option(
        "all (default), in_dist, out_dist, seen or unseen.", "all"
    )
    autoregressive: int | None = option(
        "Blocks of the roll-out: 1, or the preset's with --compat benchmark.", ge=1
    )
    frames: int | None = option("Nominal frames of a trajectory.", ge=1)
    batch_size: int | None = option("Windows per batch.", ge=1)
    compat: Literal["benchmark"] | None = option("benchmark: score exactly as the benchmark does.")
    probes: bool = option("Also the mean velocity profile error behind the body.", False)
    output: Path | None = option("Also write the JSON here.")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


Config = TypeVar("Config", bound=BenchmarkConfig)


def read_config(
    kind: type[Config], path: PathLike | None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Read a YAML file, if given, and put ``overrides`` on top.

    Raises:
        ConfigError: for an unknown key, with the nearest right one, or a value that does not fit.
    """
    values: dict[str, Any] = {} if path is None else read_yaml(Path(path))
    values |= overrides or {}
    config = valid(
        kind,
        values,
        "The settings",
        missing="is needed; give `{option}` or put it into the config file",
    )
    config.check()
    return config
