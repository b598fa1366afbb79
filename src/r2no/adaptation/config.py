"""Frozen settings of an adaptation."""

from typing import Literal

from pydantic import Field

from r2no._types import Extent, Grid, PaddingMode
from r2no.adaptation.weighting import Target
from r2no.ensemble import RIDGE_GRID
from r2no.repair import RepairObjective, RepairUNet
from r2no.settings import Settings
from r2no.spectral import FourierCells
from r2no.training import TrainSettings


class RepairSettings(Settings, frozen=True):
    """The repair module, its loop and its objective; the defaults are the published ones."""

    width: int = Field(default=32, ge=1)
    depth: int = Field(default=4, ge=1)
    padding: PaddingMode = "zeros"
    steps: int = Field(default=12, ge=1)
    step_size: float = Field(default=0.2, gt=0)
    spectral: float = Field(default=1.0, ge=0)
    fixed_point: float = Field(default=0.01, ge=0)
    norm: Literal["ortho", "forward"] = "ortho"
    checkpointing: bool = False
    train: TrainSettings = TrainSettings()

    def module(self, history_channels: int, field_channels: int) -> RepairUNet:
        """A module with these settings, for so many channels with time folded into them."""
        return RepairUNet(
            history_channels, field_channels, self.width, self.depth, padding=self.padding
        )

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
    """The partition and the ridge.

    ``cells="auto"`` shrinks every cell towards coarser ones as far as held-out blocks of the fit
    split allow (``ridge`` then only serves the baselines); "published" fits the finest partition.
    """

    cells: Literal["auto", "published"] = "auto"
    radial: int = Field(default=128, ge=1, description="Bands (the finest considered, if auto).")
    angular: int = Field(default=16, ge=1, description="Sectors (the finest considered, if auto).")
    extent: Extent = "corner"
    ridge: float | Literal["auto"] = "auto"
    ridge_grid: tuple[float, ...] = RIDGE_GRID
    shared_channels: bool = Field(default=False, description="One set of weights for all channels.")
    lead_groups: int = Field(default=1, ge=1, description="Groups of lead time weighted apart.")
    weight_exponent: float = Field(default=1.0, ge=0)
    target: Target | None = Field(
        default=None, description="Choose `weight_exponent` on held-out blocks for this score."
    )
    base_column: bool = True

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

    members: int = Field(default=3, ge=1)
    seed: int = 42
    batch_size: int = Field(default=8, ge=1, description="Windows per batch when not training.")
    budget: int | None = Field(
        default=None, ge=1, description="Most evaluations of the repair module per forecast."
    )
    jobs: int = Field(default=1, ge=1, description="Members trained side by side (each in memory).")
    repair: RepairSettings = RepairSettings()
    ensemble: EnsembleSettings = EnsembleSettings()
