"""The config of an adaptation of your own: data, source, settings, where to put it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator

from r2no._types import Number, PathLike
from r2no.adaptation import AdaptSettings
from r2no.data.flags import read_mask
from r2no.data.normalise import Normaliser
from r2no.runs.config_file import read_yaml
from r2no.settings import valid


class SplitConfig(BaseModel, frozen=True, extra="forbid"):
    """How the data are parted; see :meth:`r2no.data.Measurements.split`."""

    train: Number | None = Field(default=None, gt=0)
    fit: Number | None = Field(default=None, gt=0)
    test: Number | None = Field(default=None, gt=0)
    by: Literal["auto", "trajectory", "time"] = "auto"
    seed: int | None = None


class DataConfig(BaseModel, frozen=True, extra="forbid"):
    """The measurements; see :func:`r2no.data.open` and its windows."""

    path: str | tuple[str, ...]
    history: int = Field(ge=1)
    horizon: int = Field(ge=1)
    stride: int = Field(default=1, ge=1)
    variables: tuple[str, ...] | None = None
    measured: tuple[str | int, ...] | None = None
    dims: dict[str, str] = {}
    mask: str | dict[str, Any] | None = "auto"
    conditioning: tuple[str, ...] = ()
    axes: tuple[str, ...] | None = None
    units: str | tuple[str, ...] | dict[str, str] | None = None
    spacing: Number | tuple[Number, ...] | None = None
    time_step: Number | None = None
    trajectories: tuple[int, ...] | None = Field(
        default=None, description="Numbers of the recordings to use, from 0; default all."
    )
    allow_sparse: bool = False
    split: SplitConfig = SplitConfig()

    @model_validator(mode="after")
    def _check(self) -> "DataConfig":
        read_mask(self.mask)
        return self


class StatisticsConfig(BaseModel, frozen=True, extra="forbid"):
    """Shift and scale of each channel: the network sees (x - shift) / scale."""

    shift: tuple[Number, ...]
    scale: tuple[Number, ...]

    @model_validator(mode="after")
    def _check(self) -> "StatisticsConfig":
        if len(self.shift) != len(self.scale):
            raise ValueError("`shift` and `scale` must have one number per channel each")
        return self

    def normaliser(self) -> Normaliser:
        """As an object."""
        return Normaliser(torch.tensor(self.shift).float(), torch.tensor(self.scale).float())


class NormaliserConfig(BaseModel, frozen=True, extra="forbid"):
    """Statistics of the history and, if they differ, of the target."""

    history: StatisticsConfig
    target: StatisticsConfig | None = None

    def pair(self) -> tuple[Normaliser, Normaliser]:
        """Of history and target."""
        return self.history.normaliser(), (self.target or self.history).normaliser()


class SourceConfig(BaseModel, frozen=True, extra="forbid"):
    """The operator to adapt: exactly one of four kinds.

    ``python`` names a factory, ``package.module:factory``, called with ``kwargs`` and filled from
    ``checkpoint``; ``exported`` is a ``.pt2`` program and needs ``trust: true``; ``backbone`` is
    one of r2no's networks, with its ``checkpoint``; ``forecasts`` are stored forecasts, a file,
    folder, pattern or list, with ``variables``, ``dims`` and ``axes`` like those of the data.
    Without ``layout`` a network is taken to follow r2no's convention; the other fields are those
    of :func:`r2no.operators.wrap`.
    """

    python: str | None = None
    exported: Path | None = None
    backbone: str | None = None
    forecasts: str | tuple[str, ...] | None = None
    checkpoint: Path | None = None
    kwargs: dict[str, Any] = {}
    trust: bool = False
    variables: tuple[str, ...] | None = None
    dims: dict[str, str] = {}
    axes: tuple[str, ...] | None = None
    layout: str | None = None
    one_step: bool = False
    frames: int | None = Field(default=None, ge=1)
    conditioning: bool = True
    normaliser: NormaliserConfig | None = None

    @property
    def kind(self) -> str:
        """Which of the four."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _check(self) -> "SourceConfig":
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of {', '.join(_KINDS)}, but got {', '.join(given) or 'none'}"
            )
        wrapping = self.layout is None and given[0] in ("python", "exported")
        if wrapping and (self.one_step or self.frames or self.normaliser):
            raise ValueError("`one_step`, `frames` and `normaliser` need `layout` as well")
        if given[0] == "backbone" and self.checkpoint is None:
            raise ValueError("a `backbone` needs its `checkpoint`")
        return self


class OwnConfig(BaseModel, frozen=True, extra="forbid"):
    """Everything ``r2no adapt`` and ``r2no doctor`` need; paths are seen from where you are."""

    data: DataConfig
    source: SourceConfig
    adapt: AdaptSettings = AdaptSettings()
    out: Path = Path("runs/own")


_KINDS = ("python", "exported", "backbone", "forecasts")


def is_own_config(path: PathLike | None) -> bool:
    """Whether a YAML file is of this kind: its ``data`` is a mapping and it names no system."""
    if path is None:
        return False
    content = read_yaml(Path(path))
    return isinstance(content.get("data"), dict) and "system" not in content


def read_own_config(path: PathLike, overrides: Mapping[str, Any] | None = None) -> OwnConfig:
    """Read a YAML file and put ``overrides`` (``out``, ``members``, ``seed``) on top.

    Raises:
        ConfigError: for an unknown key, with the nearest right one, or a value that does not fit.
    """
    values, given = read_yaml(Path(path)), dict(overrides or {})
    if "out" in given:
        values["out"] = given.pop("out")
    if given:
        values["adapt"] = {**(values.get("adapt") or {}), **given}
    return valid(OwnConfig, values, f"`{path}`")
