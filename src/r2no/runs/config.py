"""The config of an adaptation of your own: data, source, settings, where to put it; its schema."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator

from r2no._types import Number, PathLike
from r2no.adaptation import AdaptSettings
from r2no.adaptation.minutes import DEFAULT_MINUTES
from r2no.checks import changed, valid
from r2no.data.gaps import read_mask
from r2no.data.normalise import Normaliser
from r2no.reading import read_yaml

_KINDS = ("python", "exported", "backbone", "forecasts")  # of sources
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class SplitConfig(BaseModel, frozen=True, extra="forbid"):
    """How the data are parted; see :meth:`r2no.data.Measurements.split`."""

    train: Number | None = Field(
        default=None, gt=0, description="Share that repair modules learn from; in proportion."
    )
    fit: Number | None = Field(
        default=None, gt=0, description="Share that the ensemble is fitted on."
    )
    test: Number | None = Field(
        default=None, gt=0, description="Share that is kept for the scores."
    )
    by: Literal["auto", "trajectory", "time"] = Field(
        default="auto", description="Part whole recordings, or stretches of time."
    )
    seed: int | None = Field(
        default=None, description="Draw the order of recordings; default as given."
    )


class DataConfig(BaseModel, frozen=True, extra="forbid"):
    """The measurements; see :func:`r2no.data.open` and its windows."""

    path: str | tuple[str, ...] = Field(
        description="File, folder, pattern or a list of them; seen from where you are."
    )
    history: int = Field(ge=1, description="Known frames of a window.")
    horizon: int = Field(ge=1, description="Frames to forecast.")
    stride: int = Field(default=1, ge=1, description="Frames between the starts of two windows.")
    variables: tuple[str, ...] | None = Field(
        default=None, description="Variables to use as channels, in order; default all."
    )
    measured: tuple[str | int, ...] | None = Field(
        default=None, description="Channels that count, by name or number; default all."
    )
    dims: dict[str, str] = Field(
        default={}, description="What a dimension is called: trajectory, time, y, x or channel."
    )
    mask: str | dict[str, Any] | None = Field(
        default="auto",
        description="What is missing: auto or nan (NaN is), null (nothing may be), a variable that "
        "is true where valid, or {variable: NAME, valid: [1, 2]}.",
    )
    conditioning: tuple[str, ...] = Field(
        default=(), description="Scalar variables or attributes that the operator is given."
    )
    axes: tuple[str, ...] | None = Field(
        default=None, description="Axes of arrays without names, as [time, y, x]."
    )
    units: str | tuple[str, ...] | dict[str, str] | None = Field(
        default=None, description="Of data without units: one for all channels, or one each."
    )
    spacing: Number | tuple[Number, ...] | None = Field(
        default=None, description="Of a grid without coordinates: one number, or one per axis."
    )
    time_step: Number | None = Field(default=None, description="Of data without times.")
    trajectories: tuple[int, ...] | None = Field(
        default=None, description="Numbers of the recordings to use, from 0; default all."
    )
    allow_sparse: bool = Field(
        default=False, description="Open files that declare far more values than are in them."
    )
    split: SplitConfig = Field(
        default=SplitConfig(), description="How the data are parted into train, fit and test."
    )

    @model_validator(mode="after")
    def _check(self) -> "DataConfig":
        read_mask(self.mask)
        return self


class StatisticsConfig(BaseModel, frozen=True, extra="forbid"):
    """Shift and scale of each channel: the network sees (x - shift) / scale."""

    shift: tuple[Number, ...] = Field(description="One number per channel.")
    scale: tuple[Number, ...] = Field(description="One number per channel.")

    @model_validator(mode="after")
    def _check(self) -> "StatisticsConfig":
        if len(self.shift) != len(self.scale):
            raise ValueError("`shift` and `scale` must have one number per channel each")
        return self

    def normaliser(self) -> Normaliser:
        """These numbers as the object that networks are wrapped with."""
        return Normaliser(torch.tensor(self.shift).float(), torch.tensor(self.scale).float())


class NormaliserConfig(BaseModel, frozen=True, extra="forbid"):
    """Statistics of the history and, if they differ, of the target."""

    history: StatisticsConfig = Field(description="Of the known frames.")
    target: StatisticsConfig | None = Field(
        default=None, description="Of the forecast frames; default as of the history."
    )

    def pair(self) -> tuple[Normaliser, Normaliser]:
        """The normalisers of the history and of the target."""
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

    python: str | None = Field(
        default=None, description="Factory of the network, as package.module:factory."
    )
    exported: Path | None = Field(default=None, description="A .pt2 program; needs trust: true.")
    backbone: str | None = Field(
        default=None, description="One of r2no's networks, filled from `checkpoint`."
    )
    forecasts: str | tuple[str, ...] | None = Field(
        default=None, description="Stored forecasts: a file, folder, pattern or list."
    )
    checkpoint: Path | None = Field(default=None, description="Weights of the network.")
    kwargs: dict[str, Any] = Field(default={}, description="Arguments of the factory.")
    trust: bool = Field(default=False, description="Consent to run an exported program.")
    variables: tuple[str, ...] | None = Field(
        default=None, description="Variables of stored forecasts, in the order of the channels."
    )
    dims: dict[str, str] = Field(
        default={}, description="What a dimension of stored forecasts is called."
    )
    axes: tuple[str, ...] | None = Field(
        default=None, description="Axes of stored forecasts without names."
    )
    layout: str | None = Field(
        default=None, description='Axes that the network takes and gives, as "B (T C) H W".'
    )
    one_step: bool = Field(default=False, description="The network forecasts one frame at a time.")
    frames: int | None = Field(
        default=None, ge=1, description="Known frames that the network takes; default all."
    )
    conditioning: bool = Field(default=True, description="Give the network the data's scalars.")
    normaliser: NormaliserConfig | None = Field(
        default=None, description="Statistics that the network was trained with."
    )

    @property
    def kind(self) -> str:
        """Which of the four kinds of source this is."""
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


class OwnConfig(BaseModel, frozen=True, extra="forbid", title="r2no adapt"):
    """Everything ``r2no adapt`` and ``r2no doctor`` need; paths are seen from where you are."""

    data: DataConfig = Field(description="Your measurements, and how they become windows.")
    source: SourceConfig = Field(description="Your operator.")
    also: dict[str, SourceConfig] = Field(
        default={},
        description="Further operators for the same windows, by name, that the cells may use.",
    )
    preset: Literal["auto", "paper"] = Field(
        default="auto",
        description="paper: three modules of the published size, the published cells and columns.",
    )
    adapt: AdaptSettings = Field(
        default=AdaptSettings(),
        description="Repair modules and ensemble; see `r2no.AdaptSettings`. If neither `members`, "
        f"`minutes` nor `repair` is given, {DEFAULT_MINUTES:.0f} minutes are spent.",
    )
    out: Path = Field(default=Path("runs/own"), description="Folder of the run.")

    @property
    def settings(self) -> AdaptSettings:
        """What to adapt with: the settings, as the preset or the default time completes them."""
        if self.preset == "paper":
            ensemble = changed(self.adapt.ensemble, cells="published")
            return changed(self.adapt, ensemble=ensemble)
        if self.adapt.model_fields_set & {"members", "minutes", "repair"}:
            return self.adapt
        return changed(self.adapt, minutes=DEFAULT_MINUTES)


def read_own_config(path: PathLike, overrides: Mapping[str, Any] | None = None) -> OwnConfig:
    """Read a YAML file and put ``overrides`` (``out``, ``members``, ``minutes``, ``seed``) on top.

    Raises:
        ConfigError: for an unknown key, with the nearest right one, or a value that does not fit.
    """
    values, given = read_yaml(Path(path)), dict(overrides or {})
    if "out" in given:
        values["out"] = given.pop("out")
    if given:
        values["adapt"] = {**(values.get("adapt") or {}), **given}
    return valid(OwnConfig, values, f"`{path}`")


def config_schema() -> dict[str, Any]:
    """What a config of ``r2no adapt`` and ``r2no doctor`` may hold.

    Descriptions that come from docstrings are freed of the docs' markup, and titles that only
    repeat a key are left out, since editors show both.
    """
    found: dict[str, Any] = _plain(OwnConfig.model_json_schema())
    return {"$schema": _DIALECT, **found}


def _plain(value: Any) -> Any:
    """A part of the schema with plain texts, all the way down."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _plain(item) for key, item in value.items()}
    if isinstance(plain.get("properties"), dict):
        for part in plain["properties"].values():
            part.pop("title", None)
    if isinstance(text := plain.get("description"), str):
        plain["description"] = _words(text)
    return plain


def _words(text: str) -> str:
    without_roles = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return " ".join(without_roles.split())
