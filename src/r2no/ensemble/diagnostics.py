"""What the iterates do before they are combined, and what the fitted weights make of each cell.

Of the iterates: errors by depth and band, and the theory's estimates (M9-M12). Of the weights:
which cells keep the source and which repair it, from the fitted sums alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from r2no._repr import brief_repr
from r2no._types import Field, Number
from r2no.ensemble.estimator import SpectralEnsemble
from r2no.ensemble.fitted import FittedEnsemble
from r2no.ensemble.gram import GramSums
from r2no.ensemble.ridge import quadratic_error
from r2no.errors import ConfigError, EmptySplitError
from r2no.spectral import FourierCells, cell_energy, count_coefficients


@dataclass(eq=False)
class DepthErrors:
    """Squared errors Ê_b(ℓ) by member, depth 0..L, radial band and channel; additive over windows.

    From them follow the common depth ℓ* (M9), the depth-composition gap (M9) and the regional
    fRMSE with its change relative to depth 0 (M10).
    """

    cells: FourierCells
    measured: tuple[int, ...]
    squared: Float[Tensor, "member depth band channel"]
    windows: int = 0
    frames: int = 0

    __repr__ = brief_repr

    @classmethod
    def empty(
        cls, cells: FourierCells, *, members: int, steps: int, measured: tuple[int, ...]
    ) -> "DepthErrors":
        """Sums of no windows, to add to."""
        shape = (members, steps + 1, cells.num_cells, len(measured))
        return cls(cells, measured, torch.zeros(shape, dtype=torch.float64))

    def cleared(self) -> "DepthErrors":
        """No windows yet, of the same members, depths, bands and channels."""
        return DepthErrors(self.cells, self.measured, torch.zeros_like(self.squared))

    def merge(self, other: "DepthErrors") -> "DepthErrors":
        """The errors of both, of the same members, depths, bands and channels."""
        return replace(
            self,
            squared=self.squared + other.squared,
            windows=self.windows + other.windows,
            frames=max(self.frames, other.frames),
        )

    def begin(self, target: Field) -> None:
        """Count a batch; follow with :meth:`add` for each of its iterates."""
        self.windows += target.shape[0]
        self.frames = target.shape[1]

    def add(
        self,
        member: int,
        depth: int,
        iterate: Field,
        target: Field,
        mask: Tensor | None = None,
    ) -> None:
        """Add the errors of one iterate, ‖P_b(h_ℓ - y)‖², over the measured points."""
        error = (iterate - target)[..., list(self.measured)]
        if mask is not None:
            error = torch.where(mask[..., list(self.measured)], error, 0)
        self.put(member, depth, cell_energy(error, self.cells))

    def put(self, member: int, depth: int, energy: Float[Tensor, "batch band channel"]) -> None:
        """Add squared errors by window, band and channel."""
        self.squared = self.squared.to(energy.device)  # brought back by :meth:`collect`
        self.squared[member, depth] += energy.sum(0)

    def collect(self) -> None:
        """Bring the sums back to the CPU."""
        self.squared = self.squared.cpu()

    def total(self) -> Float[Tensor, "member depth"]:
        """Squared error of every depth, summed over bands and channels."""
        return self.squared.sum((2, 3))

    def rmse(self) -> Float[Tensor, "member depth"]:
        """RMSE of every depth over the measured channels (of a complete field)."""
        points = self.windows * self.frames * math.prod(self.cells.grid) * len(self.measured)
        return (self.total() / max(points, 1)).sqrt()

    def best_depth(self, member: int = 0) -> int:
        """ℓ*, the common depth of lowest error (M9); the smallest in a tie."""
        if self.windows == 0:
            raise EmptySplitError("No windows were added; the best depth needs at least one.")
        return int(self.total()[member].argmin())

    def gap(self, member: int = 0) -> float:
        """Depth-composition gap (M9): best common depth minus region-wise selection, ≥ 0.

        Per window, in squared physical units.
        """
        regional = self.squared[member].sum(-1)  # over channels
        common = regional.sum(1).min()
        return float(common - regional.min(0).values.sum()) / max(self.windows, 1)

    def regional_frmse(self) -> Float[Tensor, "member depth band"]:
        """fRMSE_b(ℓ) (M10); a band without coefficients gives NaN."""
        channels = len(self.measured)
        counts = count_coefficients(self.cells, frames=self.frames, channels=channels)
        mean = self.squared.sum(3) / (max(self.windows, 1) * counts)
        return torch.where(counts > 0, mean, torch.nan).sqrt()

    def change(self) -> Float[Tensor, "member depth band"]:
        """Percentage change of fRMSE_b relative to depth 0 (M10); negative is better."""
        value = self.regional_frmse()
        return 100 * (value / value[:, :1] - 1)


#: Differences within so many units in the last place say nothing about a contraction.
_ROUNDING = 16


@dataclass(frozen=True)
class ContractionReport:
    """Estimates along real trajectories for the fixed-point proposition (M11).

    ``factor`` is the larger of two observed ratios, an estimate from below of the contraction
    factor q: it can refute the assumption q < 1, never prove it.

    Attributes:
        factor: max(``step_ratio``, ``pair_ratio``).
        step_ratio: Largest ‖h_{ℓ+1} - h_ℓ‖ / ‖h_ℓ - h_{ℓ-1}‖ along the loop.
        pair_ratio: Largest ‖T(h_ℓ) - T(y)‖ / ‖h_ℓ - y‖, the inequality that the proof uses.
        bias: d = ‖T(y) - y‖.
        errors: e_ℓ = ‖h_ℓ - y‖.
        bound: What q and d imply for e_ℓ; None where q ≥ 1.
        fixed_point_distance: What they imply for ‖h* - y‖; None where q ≥ 1.
    """

    factor: float
    step_ratio: float
    pair_ratio: float
    bias: float
    errors: tuple[float, ...]
    bound: tuple[float, ...] | None
    fixed_point_distance: tuple[float, float] | None


def contraction_report(
    iterates: Float[Tensor, "depth *field"],  # noqa: F821
    target: Float[Tensor, "*field"],
    step_at_target: Float[Tensor, "*field"],
) -> ContractionReport:
    """Estimate q and d of (M11) for one window and evaluate the bounds they would imply.

    e_ℓ ≤ q^ℓ e_0 + (1 - q^ℓ)/(1 - q)·d and d/(1 + q) ≤ ‖h* - y‖ ≤ d/(1 - q), with d = ‖T(y) - y‖.
    T acts on all channels, so give all of them.

    Args:
        iterates: h_0..h_L.
        target: y, complete: where nothing was measured, what stood in for it in training.
        step_at_target: T(y) - y = α Φ(X, y).
    """
    if len(iterates) < 3:
        raise ConfigError(f"`iterates` must hold h_0, h_1, h_2 or more, got {len(iterates)}.")
    floor = _ROUNDING * torch.finfo(iterates.dtype).eps * _norms(iterates).max()
    iterates, target = iterates.double(), target.double()
    still = step_at_target.double()
    steps, errors = _norms(iterates[1:] - iterates[:-1]), _norms(iterates - target)
    moved = _norms(iterates[1:] - (target + still))  # T(h_ℓ) - T(y)
    step_ratio = _largest_ratio(steps[1:], steps[:-1], floor)
    pair_ratio = _largest_ratio(moved, errors[:-1], floor)
    factor, bias = max(step_ratio, pair_ratio), float(still.norm())
    bound = distance = None
    if factor < 1:
        powers = factor ** torch.arange(len(iterates), dtype=torch.float64)
        bound = tuple((powers * errors[0] + (1 - powers) / (1 - factor) * bias).tolist())
        distance = (bias / (1 + factor), bias / (1 - factor))
    found = tuple(errors.tolist())
    return ContractionReport(factor, step_ratio, pair_ratio, bias, found, bound, distance)


def _norms(fields: Tensor) -> Tensor:
    result: Tensor = fields.double().flatten(1).norm(dim=1)
    return result


def _largest_ratio(after: Tensor, before: Tensor, floor: Tensor) -> float:
    """Largest ``after / before`` where ``before`` is more than rounding; 0 where none is."""
    if not bool(torch.isfinite(after).all() and torch.isfinite(before).all()):
        return math.inf  # a loop that diverged does not contract
    known = before > floor
    return float((after[known] / before[known]).max()) if bool(known.any()) else 0.0


def selection_price(
    *,
    bound: Number,
    trajectories: int,
    regions: int,
    depths: int,
    checkpoints: int,
    confidence: float = 0.95,
) -> float:
    """Hoeffding price ξ_b of a cell-wise selection (M12); n counts trajectories, not windows.

    ξ_b = C_b sqrt(log(2 N_Ω (L+1) N_ckpt / δ) / (2n)), with δ = 1 - ``confidence``.

    Args:
        bound: C_b, the largest per-trajectory error of the region.
        trajectories: n.
        regions: N_Ω.
        depths: L + 1, candidate depths with the source.
        checkpoints: N_ckpt among which one was selected on the same split.
        confidence: 1 - δ.
    """
    if min(trajectories, regions, depths, checkpoints) < 1 or not 0 < confidence < 1:
        raise ConfigError(
            "`trajectories`, `regions`, `depths` and `checkpoints` must be at least 1 and "
            f"`confidence` inside (0, 1), but got {trajectories}, {regions}, {depths}, "
            f"{checkpoints} and {confidence}."
        )
    union = 2 * regions * depths * checkpoints / (1 - confidence)
    return bound * math.sqrt(math.log(union) / (2 * trajectories))


class Energies(NamedTuple):
    """Squared norms in every cell, over the fit split.

    Attributes:
        before: ‖P_b(y - h_0)‖², the source's error.
        after: ‖P_b(y - R)‖², the ensemble's.
        repair: ‖Σ_j w_j P_b c_j‖², what the weights move.
        source: ‖P_b h_0‖², from the base column (of a centred one without the mean); NaN without.
    """

    before: Float[Tensor, "*cells"]
    after: Float[Tensor, "*cells"]
    repair: Float[Tensor, "*cells"]
    source: Float[Tensor, "*cells"]

    @classmethod
    def of(
        cls, sums: GramSums, weights: Float[Tensor, "cell channel column"], *, base: bool
    ) -> "Energies":
        """From sums of one group; ``base`` says whether they hold the base column, the last one."""
        gram, before = sums.gram[0], sums.energy[0]
        source = gram[..., -1, -1] if base else torch.full_like(before, torch.nan)
        after = quadratic_error(sums.moments[0], weights)
        return cls(before, after, moved_energy(gram, weights), source)


def moved_energy(
    gram: Float[Tensor, "cell channel column column"],
    weights: Float[Tensor, "cell channel column"],
    places: Sequence[int] | None = None,
) -> Float[Tensor, "cell channel"]:
    """‖Σ_j w_j P_b c_j‖² over all columns, or those at some places."""
    if places is not None:
        chosen = list(places)
        weights, gram = weights[..., chosen], gram[..., chosen, :][..., chosen]
    energy: Tensor = torch.einsum("bci,bcij,bcj->bc", weights, gram, weights)
    return energy.clamp_min(0)


@dataclass(frozen=True, eq=False)
class Retention:
    """What the ensemble does to each cell, on the fit split; NaN in cells without coefficients.

    Attributes:
        change: ‖Σ_j w_j P_b c_j‖ / ‖P_b h_0‖, the size of the repair relative to the source: 0
            keeps the source. NaN everywhere without the base column, whose sums give ‖P_b h_0‖
            (of a centred one without the mean, so NaN in a cell that holds nothing else).
        gain: 1 - ‖P_b(y - R)‖² / ‖P_b(y - h_0)‖², the share of the source's error removed.
        share: The cell's share of the source's total error.
    """

    change: Float[Tensor, "*cells"]
    gain: Float[Tensor, "*cells"]
    share: Float[Tensor, "*cells"]

    __repr__ = brief_repr

    @classmethod
    def of(cls, found: Energies, total: Tensor) -> "Retention":
        """From energies, of cells and channels in any arrangement, and the total error."""
        before, after, repair, source = found
        nothing = before <= 0
        ratio = (repair / torch.where(source > 0, source, torch.nan)).sqrt()
        return cls(
            torch.where(nothing, torch.nan, ratio),
            torch.where(nothing, torch.nan, 1 - after / before.clamp_min(1e-300)),
            torch.where(nothing, torch.nan, before / total.clamp_min(1e-300)),
        )


def retention(ensemble: FittedEnsemble | SpectralEnsemble) -> Retention:
    """Read the retention of every cell and channel off a fitted ensemble."""
    if isinstance(ensemble, SpectralEnsemble):
        ensemble = ensemble.fitted_
    sums = ensemble.needed_sums().total()
    found = Energies.of(sums, ensemble.weights, base=ensemble.columns.base)
    return Retention.of(found, found.before.sum())


def on_plane(
    values: Float[Tensor, " cell"], of: FittedEnsemble | SpectralEnsemble | FourierCells
) -> Float[Tensor, "height width"]:
    """Spread values by cell over the full Fourier plane of a 2-D grid, zero wavenumber centred."""
    cells = of if isinstance(of, FourierCells) else of.cells
    height, width = cells.grid
    half = values[cells.index]
    rows = torch.arange(height)
    columns = torch.arange(width)
    mirrored = columns > width // 2
    stored_rows = torch.where(mirrored[None, :], (-rows[:, None]) % height, rows[:, None])
    stored_columns = torch.where(mirrored, width - columns, columns).expand(height, width)
    result: Tensor = torch.fft.fftshift(half[stored_rows, stored_columns])
    return result
