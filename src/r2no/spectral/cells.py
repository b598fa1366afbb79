"""FourierCells: a conjugate-symmetric partition of the spectrum of a real grid (M1, M2, M10)."""

import math
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from r2no import checks
from r2no._types import Extent, Field, Grid, HalfPlane
from r2no.errors import ConfigError, GridMismatchError
from r2no.spectral.transforms import (
    channel_last,
    check_grid,
    forward,
    half_shape,
    hermitian_multiplicity,
    inverse,
    space_last,
    wavenumber_orientation,
    wavenumber_radius,
)

#: Distance, in bands, within which a radius is at the end of a band but for rounding.
_SAME_BAND = 1e-9


@dataclass(frozen=True, eq=False)
class FourierCells:
    """A partition of the half-spectrum of a real grid.

    Each ``rfftn`` coefficient k lies in exactly one cell, corners and Nyquist lines included, and
    counts m(k) times (M1). A coefficient and its mirror image share a cell, so keeping one cell of
    a real field gives a real field, and Σ_b P_b u = u, Σ_b ‖P_b u‖² = ‖u‖².

    Attributes:
        grid: The spatial grid; kept, since widths 16 and 17 share one half-spectrum.
        index: Cell of each stored coefficient.
        multiplicity: m(k) of each stored coefficient.
        num_cells: Number of cells asked for; some may hold no coefficient.
        radial: Number of radial bands (0 if the partition is not polar).
        angular: Number of angular sectors (0 if the partition is not polar).
        extent: Where the outermost band ends, see :meth:`polar`.
        shared_channels: Whether all channels share the weights of a cell.
    """

    grid: Grid
    index: Int[Tensor, "*half"]
    multiplicity: HalfPlane
    num_cells: int
    radial: int = 0
    angular: int = 0
    extent: Extent = "corner"
    shared_channels: bool = False

    def __repr__(self) -> str:
        kind = f"{self.radial} x {self.angular}, {self.extent}" if self.radial else "not polar"
        shared = ", shared by channels" if self.shared_channels else ""
        return (
            f"FourierCells({self.num_cells} cells ({kind}), {len(self.index.unique())} occupied, "
            f"on {' x '.join(map(str, self.grid))}{shared})"
        )

    def __post_init__(self) -> None:
        expected = half_shape(check_grid(self.grid))
        for name in ("index", "multiplicity"):
            found = tuple(getattr(self, name).shape)
            if found != expected:
                raise GridMismatchError(
                    f"`{name}` must have the half-plane's shape {expected} of grid {self.grid}, "
                    f"but got {found}. Build it with `FourierCells.polar`."
                )
        if self.index.dtype != torch.int64:
            raise ConfigError(
                f"`index` must hold whole numbers (int64), but is {self.index.dtype}. Build it "
                "with `FourierCells.polar`."
            )
        if self.num_cells < 1 or self.index.min() < 0 or self.index.max() >= self.num_cells:
            raise ConfigError(
                f"`index` must lie in 0..{self.num_cells - 1}, but it spans "
                f"{int(self.index.min())}..{int(self.index.max())}. Raise `num_cells` to cover it."
            )

    @classmethod
    def polar(
        cls,
        grid: Grid,
        *,
        radial: int = 128,
        angular: int = 16,
        extent: Extent = "corner",
        shared_channels: bool = False,
    ) -> "FourierCells":
        """Radial bands times angular sectors (M2), cell = band · angular + sector.

        b_ρ = min(⌊ρ' N_ρ⌋, N_ρ - 1) and b_φ = min(⌊φ N_φ⌋, N_φ - 1), where ρ' = ρ / sqrt(d) spans
        the grid to its corner (``extent="corner"``, which gives the published occupancy) or ρ' = ρ
        with all of ρ ≥ 1 in the outermost band (``extent="ellipse"``, the printed formula).

        Args:
            grid: Spatial grid, for example (64, 128). On 1-D and 3-D grids ``angular`` must be 1.
            radial: Number of bands N_ρ; 1 drops the radial axis.
            angular: Number of sectors N_φ; 1 drops the angular axis.
            extent: "corner" or "ellipse".
            shared_channels: True drops the channel axis of the partition.
        """
        grid = check_grid(grid)
        radial, angular = checks.whole("radial", radial), checks.whole("angular", angular)
        checks.choice("extent", extent, get_args(Extent))
        if angular > 1 and len(grid) != 2:
            raise ConfigError(
                f"`angular` must be 1 on the {len(grid)}-D grid {grid}, but got {angular}: "
                "orientation is defined on 2-D grids only. Use radial bands."
            )
        index = _bins(_reach(grid, extent), radial) * angular
        if angular > 1:
            index = index + _bins(wavenumber_orientation(grid), angular)
        multiplicity = hermitian_multiplicity(grid)
        size = radial * angular
        return cls(grid, index, multiplicity, size, radial, angular, extent, shared_channels)

    @classmethod
    def single(cls, grid: Grid, *, shared_channels: bool = True) -> "FourierCells":
        """One cell for the whole spectrum: the global combination."""
        return cls.polar(grid, radial=1, angular=1, shared_channels=shared_channels)

    @classmethod
    def bands(cls, grid: Grid, *, num_bands: int = 5) -> "FourierCells":
        """Radial bands of the diagnostic (M10), from low to high frequency."""
        return cls.polar(grid, radial=num_bands, angular=1)

    def coarser(
        self, radial: int, angular: int, *, shared_channels: bool | None = None
    ) -> "FourierCells":
        """Fewer bands and sectors, made of whole cells of this partition.

        ``radial`` and ``angular`` divide this partition's. The cells follow from the stored index,
        not from radii computed anew, so they nest whatever processor this partition was made on.
        """
        if radial < 1 or angular < 1 or self.radial % radial or self.angular % angular:
            raise ConfigError(
                f"`radial` and `angular` must divide the partition's {self.radial} bands and "
                f"{self.angular} sectors, but got {radial} and {angular}."
            )
        band, sector = self.index // self.angular, self.index % self.angular
        index = band // (self.radial // radial) * angular + sector // (self.angular // angular)
        shared = self.shared_channels if shared_channels is None else shared_channels
        return replace(
            self,
            index=index,
            num_cells=radial * angular,
            radial=radial,
            angular=angular,
            shared_channels=shared,
        )

    def parents(self, coarse: "FourierCells") -> Int[Tensor, " cell"]:
        """The cell of ``coarse`` in which each cell lies; empty cells go to cell 0.

        A wavenumber whose radius is the end of a band falls on either side of it by rounding, and
        a stored partition may have been made where others were rounded up. Such wavenumbers go
        where :meth:`coarser` has them: the coarse cells made of whole cells are ``parents[index]``.

        Raises:
            ConfigError: if a cell straddles two cells of ``coarse``.
        """
        if self.grid != coarse.grid or (self.shared_channels and not coarse.shared_channels):
            raise ConfigError(
                f"`cells` must be a coarser partition of grid {self.grid}, but got one of "
                f"{coarse.grid} with shared_channels={coarse.shared_channels}."
            )
        index = self._in_own_rounding(coarse).index
        parent = torch.zeros(self.num_cells, dtype=torch.long)
        parent[self.index.reshape(-1)] = index.reshape(-1)
        if not torch.equal(parent[self.index], index):
            raise ConfigError(
                "`cells` must be coarser than the fitted partition: a fitted cell straddles two of "
                "its cells. Divide the numbers of bands and sectors by whole numbers."
            )
        return parent

    def _in_own_rounding(self, coarse: "FourierCells") -> "FourierCells":
        """``coarse`` made of whole cells of this partition, if it differs by rounding only."""
        sizes = (coarse.radial, coarse.angular)
        if 0 in sizes or self.radial % coarse.radial or self.angular % coarse.angular:
            return coarse
        own = self.coarser(*sizes, shared_channels=coarse.shared_channels)
        return own if own.agrees(coarse) else coarse

    def on_boundary(self) -> Bool[Tensor, "*half"]:
        """Wavenumbers whose band is a matter of rounding: those at the end of one."""
        if not self.radial:
            return torch.zeros_like(self.index, dtype=torch.bool)
        bands = _reach(self.grid, self.extent) * self.radial
        return (bands - bands.round()).abs() < _SAME_BAND

    def agrees(self, other: "FourierCells") -> bool:
        """Whether both are one partition, but for wavenumbers on which rounding decides."""
        if self.state()[1] != other.state()[1]:
            return False
        away = self.index != other.index
        steps = (self.index - other.index).abs()[away]
        sure = ~self.on_boundary()[away]
        return not bool(sure.any()) and bool((steps == self.angular).all())

    @property
    def occupied(self) -> Bool[Tensor, " cell"]:
        """Which cells hold at least one coefficient."""
        return torch.bincount(self.index.reshape(-1), minlength=self.num_cells) > 0

    @property
    def sizes(self) -> Float[Tensor, " cell"]:
        """Number of coefficients of each cell on the full plane, Σ_{k∈b} m(k)."""
        sizes = torch.zeros(self.num_cells, dtype=torch.float64)
        return sizes.index_add_(0, self.index.reshape(-1), self.multiplicity.reshape(-1))

    def weight_channels(self, channels: int) -> int:
        """Number of separate weight sets per cell for ``channels`` measured channels."""
        return 1 if self.shared_channels else channels

    def check_field(self, name: str, values: Tensor) -> None:
        """Raise unless ``values``, (..., *space, channel), ends in this grid."""
        dimensions = len(self.grid)
        values = checks.tensor(name, values)
        if values.ndim < dimensions + 3 or tuple(values.shape[-1 - dimensions : -1]) != self.grid:
            raise GridMismatchError(
                f"`{name}` must be (batch, time, *space, channel) on the grid of the cells, "
                f"{self.grid}, but got shape {tuple(values.shape)}. Build `FourierCells` for this "
                "grid, or resample with `r2no.spectral.resample`."
            )

    def project(self, field: Field, cell: int) -> Field:
        """P_b: keep the coefficients of one cell, in every channel."""
        self.check_field("field", field)
        spectrum = forward(space_last(field), len(self.grid))
        kept = spectrum * (self.index == cell).to(field.device)
        return channel_last(inverse(kept, self.grid))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able settings from which :meth:`from_state` rebuilds the cells."""
        settings = {
            "grid": list(self.grid),
            "num_cells": self.num_cells,
            "radial": self.radial,
            "angular": self.angular,
            "extent": self.extent,
            "shared_channels": self.shared_channels,
        }
        return {"index": self.index}, settings

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> "FourierCells":
        """Inverse of :meth:`state`."""
        settings = dict(settings, grid=tuple(settings["grid"]))
        if tuple(tensors["index"].shape) != half_shape(check_grid(settings["grid"])):
            raise GridMismatchError(
                f"`index` has shape {tuple(tensors['index'].shape)}, which is not the half-plane's "
                f"of grid {settings['grid']}. Restore the file from a copy."
            )
        multiplicity = hermitian_multiplicity(settings["grid"])
        return cls(index=tensors["index"], multiplicity=multiplicity, **settings)


def _reach(grid: Grid, extent: Extent) -> HalfPlane:
    """ρ' of (M2): the radius as a share of the outermost band's end."""
    radius = wavenumber_radius(grid)
    # divided, since multiplying by the reciprocal rounds differently
    return radius / math.sqrt(len(grid)) if extent == "corner" else radius


def _bins(fraction: HalfPlane, number: int) -> Int[Tensor, "*half"]:
    return torch.floor(fraction * number).long().clamp(max=number - 1)


def cell_energy(field: Field, cells: FourierCells) -> Float[Tensor, "batch cell channel"]:
    """‖P_b u‖² of each window, cell and channel, summed over frames, in float64.

    Summed over the cells this is ‖u‖² (Parseval).
    """
    cells.check_field("field", field)
    spectrum = forward(space_last(field), len(cells.grid))
    return _by_cell((spectrum.abs().double() ** 2).sum(1), cells)


def spectrum_energy(
    spectrum: Float[Tensor, "batch time channel *half_parts"], cells: FourierCells
) -> Float[Tensor, "batch cell channel"]:
    """As :func:`cell_energy` from a transform, real and imaginary part last, without a root."""
    return _by_cell(spectrum.square().sum(-1).sum(1, dtype=torch.float64), cells)


def _by_cell(
    power: Float[Tensor, "batch channel *half"], cells: FourierCells
) -> Float[Tensor, "batch cell channel"]:
    """Squared magnitudes in float64, each as often as the full plane holds it, by cell."""
    flat = (power * cells.multiplicity.to(power)).flatten(2)
    energy = flat.new_zeros(*flat.shape[:2], cells.num_cells)
    energy.index_add_(2, cells.index.reshape(-1).to(flat.device), flat)
    return energy.transpose(1, 2)


def count_coefficients(
    cells: FourierCells, *, frames: int, channels: int
) -> Float[Tensor, " cell"]:
    """|Ω_b| of (M10): coefficients of the full plane, times frames and measured channels."""
    return cells.sizes * frames * channels
