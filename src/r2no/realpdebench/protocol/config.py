"""Frozen configs of the three commands: a preset plus overrides, from options or a YAML file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, field_validator

from r2no import backbones
from r2no._types import PathLike
from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairSettings
from r2no.checks import choice
from r2no.devices import Precision
from r2no.errors import ConfigError
from r2no.reading import read_yaml
from r2no.realpdebench.protocol.presets import Preset, preset
from r2no.realpdebench.systems import SYSTEMS
from r2no.settings import valid
from r2no.training import TrainSettings
from r2no.training.config import Workers


class BenchmarkConfig(BaseModel, frozen=True, extra="forbid"):
    """What every command needs: which data, which network, which statistics.

    ``statistics`` normalises networks whose file does not bring its own: ``exact`` or
    ``benchmark`` (variance within batches of 512) from the simulated training data, or a file
    ``mean_std.pt`` / ``max.pt``. ``small`` builds a network that trains in seconds.
    """

    data: Path
    system: str | None = None
    backbone: str | None = None
    layout: Literal["auto", "arrow", "hdf5"] = "auto"
    statistics: str = "exact"
    normaliser: Literal["gaussian", "range", "none"] = "gaussian"
    cache: Path | None = Field(default=None, description="Folder to share statistics in.")
    small: bool = False
    exclude: tuple[str, ...] = Field(default=(), description="Trajectories to leave out.")
    incomplete: Literal["raise", "skip"] = "raise"
    device: str = Field(default="auto", exclude=True, description="Where to compute.")

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

    out: Path | None = None
    seed: int | None = None
    lr: float | None = None
    updates: int | None = None
    batch_size: int | None = None
    eval_batch_size: int | None = None
    precision: Precision = Field(default="float32", exclude_if=lambda value: value == "float32")
    workers: Workers = Field(
        default="auto", exclude=True, description="Processes that read ahead in training."
    )


class TrainConfig(LearningConfig, frozen=True, extra="forbid"):
    """A backbone's training.

    ``numerical`` trains on the simulation, ``real`` on measurements, ``finetune`` on measurements
    from the weights in ``source``. ``pretrained`` is DPOT's released backbone.
    """

    system: str
    backbone: str
    paradigm: Literal["numerical", "real", "finetune"] = "numerical"
    source: Path | None = None
    pretrained: Path | None = None
    measured_only: bool = False
    benchmark_file: bool = False
    clip: float | None = None
    mask_prob: float | None = None
    noise_scale: float | None = None
    validations: int | None = None

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

    source: Path
    preset: Literal["paper", "auto"] = "auto"
    target: Literal["rmse", "rel_l2"] | None = None
    budget: int | None = Field(default=None, ge=1)
    members: int = Field(default=3, ge=1)
    width: int | None = None
    depth: int | None = None
    steps: int | None = None
    checkpointing: bool | None = None
    epochs: int | None = None
    radial: int | None = None
    angular: int | None = None

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
    source: Path | None = None
    kind: Literal["real", "numerical"] = "real"
    split: Literal["train", "val", "test"] = "test"
    test_mode: Literal["all", "in_dist", "out_dist", "seen", "unseen"] = "all"
    autoregressive: int | None = Field(default=None, ge=1)
    frames: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    compat: Literal["benchmark"] | None = None
    probes: bool = False
    output: Path | None = None


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
