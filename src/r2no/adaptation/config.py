"""Frozen settings of an adaptation."""

import math
from typing import Annotated, Literal

from pydantic import Field

from r2no._types import Extent, Grid, PaddingMode
from r2no.checks import Settings, changed
from r2no.data.window import Fields
from r2no.devices import Precision
from r2no.ensemble import RIDGE_GRID
from r2no.errors import ConfigError
from r2no.repair_loop import RepairObjective, RepairUNet
from r2no.spectral import FourierCells
from r2no.training import TrainSettings

Auto = Literal["auto"]
#: Scores for which windows can be weighted.
Target = Literal["rmse", "rel_l2"]
LeastOne = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]


class RepairSettings(Settings, frozen=True):
    """The repair module, its loop and its objective; the defaults are the published ones."""

    width: int = Field(default=32, ge=1, description="Channels of the first level of the U-Net.")
    depth: int = Field(default=4, ge=1, description="Levels of the U-Net.")
    padding: PaddingMode = Field(default="zeros", description="What lies beyond the grid's edge.")
    steps: int = Field(default=12, ge=1, description="Iterates of the loop, L.")
    step_size: float = Field(default=0.2, gt=0, description="Share of a correction, alpha.")
    spectral: float = Field(default=1.0, ge=0, description="Weight of the spectral term.")
    fixed_point: float = Field(default=0.01, ge=0, description="Weight of the fixed-point term.")
    norm: Literal["ortho", "forward"] = Field(
        default="ortho", description="Transform of the spectral term."
    )
    checkpointing: bool = Field(
        default=False, description="Less memory for more time when training."
    )
    start: Literal["source", "instant", "held_out"] = Field(
        default="source",
        exclude_if=lambda value: value == "source",  # as runs of earlier versions know it
        description="What the loop repairs: the source, the source composed with what costs "
        "nothing, or what held-out blocks prefer of one module for each (always with `minutes`).",
    )
    train: TrainSettings = Field(default=TrainSettings(), description="How it is optimised.")

    def check_windows(self, grid: Grid, windows: int) -> None:
        """Refuse training where BatchNorm would have nothing to average, before any work.

        Raises:
            ConfigError: if the smallest batch of an epoch has one value per channel on the deepest
                level.
        """
        if self.averaged(grid, windows) < 2:
            raise ConfigError(
                f"`repair.depth` must leave more than one point per batch, but depth {self.depth} "
                f"leaves one of the grid {grid}, and with {windows} train windows in batches of "
                f"{self.train.batch_size} one batch is a single window. Lower `repair.depth`, or "
                "give more windows or another `repair.train.batch_size`."
            )

    def averaged(self, grid: Grid, windows: int) -> int:
        """Values that BatchNorm averages on the deepest level in the smallest batch."""
        smallest = windows % self.train.batch_size or self.train.batch_size
        points: int = math.prod(-(-size // 2**self.depth) for size in grid)
        return smallest * points

    def objective(self) -> RepairObjective:
        """The objective with these settings."""
        return RepairObjective(
            self.steps,
            self.step_size,
            self.spectral,
            self.fixed_point,
            self.norm,
            self.checkpointing,
        )


class EnsembleSettings(Settings, frozen=True):
    """The columns, the partition and the ridge.

    ``cells="auto"`` shrinks every cell towards coarser ones as far as held-out blocks of the fit
    split allow (``ridge`` then only serves the baselines); "published" fits the finest partition.
    What is left "auto" follows: with the published cells the paper's columns and nothing else.
    """

    cells: Literal["auto", "published"] = Field(
        default="auto", description="Shrink towards coarser cells as the data allow, or do not."
    )
    radial: int = Field(default=128, ge=1, description="Bands (the finest considered, if auto).")
    angular: int = Field(default=16, ge=1, description="Sectors (the finest considered, if auto).")
    extent: Extent = Field(default="corner", description="Where the outermost band ends.")
    ridge: float | Literal["auto"] = Field(
        default="auto", description="Penalty; auto chooses it on held-out blocks."
    )
    ridge_grid: tuple[float, ...] = Field(
        default=RIDGE_GRID, description="Penalties to choose from."
    )
    shared_channels: bool = Field(default=False, description="One set of weights for all channels.")
    lead_groups: LeastOne | Auto = Field(
        default="auto", description="Groups of lead time that may be weighted apart."
    )
    depths: tuple[LeastOne, ...] | Auto = Field(
        default="auto", description="Depths of the repair loops that are columns."
    )
    recall: NotNegative | Auto = Field(
        default="auto", description="Last frames of the history that are columns."
    )
    mean_field: bool | Auto = Field(
        default="auto", description="Whether the mean of the train split is a column."
    )
    partners: bool | Auto = Field(
        default="auto", description="Whether recalled frames have their quadrature partners."
    )
    weight_exponent: float = Field(
        default=1.0, ge=0, description="p of the window weight, one over its norm to the p."
    )
    target: Target | None = Field(
        default=None, description="Choose `weight_exponent` on held-out blocks for this score."
    )
    base_column: bool = Field(default=True, description="Let the source itself be rescaled.")

    def partition(self, grid: Grid) -> FourierCells:
        """The finest cells, on a grid of one or more axes."""
        return FourierCells.polar(
            grid,
            radial=self.radial,
            angular=self.angular if len(grid) == 2 else 1,
            extent=self.extent,
            shared_channels=self.shared_channels,
        )


class AdaptSettings(Settings, frozen=True):
    """Everything :func:`r2no.adapt` decides; each member m is trained with seed + m."""

    members: int = Field(default=3, ge=0, description="Repair modules; none adapts in seconds.")
    seed: int = Field(default=42, description="Seed of the first member.")
    batch_size: int = Field(default=8, ge=1, description="Windows per batch when not training.")
    budget: int | None = Field(
        default=None, ge=1, description="Most evaluations of the repair module per forecast."
    )
    minutes: float | None = Field(
        default=None,
        gt=0,
        description="Time to spend: a model without modules at once, then modules that fit.",
    )
    bands: bool | Auto = Field(
        default="auto",
        description="Calibrate bands around forecasts; auto does but for the published cells.",
    )
    jobs: int = Field(default=1, ge=1, description="Members trained side by side (each in memory).")
    device: str = Field(
        default="auto",
        exclude=True,  # where, not what: runs go on, and artifacts load, elsewhere
        description="Where to compute: auto (an accelerator if there is one), cpu, cuda, cuda:1, "
        "mps or xpu.",
    )
    cache: Literal["keep", "drop"] | Positive = Field(
        default="keep",
        exclude=True,
        description="The source's forecasts on disk after the run: keep, drop, or at most so many "
        "GB. They are made again when needed.",
    )
    precision: Precision = Field(
        default="float32",
        exclude_if=lambda value: value == "float32",  # as runs of earlier versions know it
        description="How repair modules multiply, in training and after: float32, tf32 or bf16. "
        "Iterates and sums are float32 and float64 always.",
    )
    repair: RepairSettings = Field(default=RepairSettings(), description="The repair modules.")
    ensemble: EnsembleSettings = Field(default=EnsembleSettings(), description="The ensemble.")

    def trial(self, start: str, members: int) -> "AdaptSettings":
        """These settings with so many modules, and loops from ``start``."""
        return changed(self, members=members, repair=changed(self.repair, start=start))

    def within_reach(self, grid: Grid, windows: int) -> "AdaptSettings":
        """These settings, modules not deeper than the grid and the number of windows allow."""
        fitting = self
        while fitting.repair.depth > 1 and fitting.repair.averaged(grid, windows) < 2:
            repair = changed(fitting.repair, depth=fitting.repair.depth - 1)
            fitting = changed(fitting, repair=repair)
        return fitting

    def module(self, history_channels: int, field_channels: int) -> RepairUNet:
        """A repair module with these settings, for so many channels with time folded in."""
        repair, channels = self.repair, (history_channels, field_channels)
        module = RepairUNet(*channels, repair.width, repair.depth, padding=repair.padding)
        module.precision = self.precision
        return module

    def module_for(self, fields: Fields) -> RepairUNet:
        """A repair module with these settings, for windows of these fields."""
        return self.module(
            fields.history_frames * len(fields.history_channels),
            fields.horizon_frames * len(fields.channels),
        )
