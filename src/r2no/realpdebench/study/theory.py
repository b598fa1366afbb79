"""Estimates for the fixed-point proposition and the price of selection, on real windows."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from r2no import devices
from r2no.adaptation import AdaptedModel, RepairLoops
from r2no.adaptation.named_readouts import observe
from r2no.data.window import Window, Windows
from r2no.ensemble import contraction_report, selection_price
from r2no.ensemble.diagnostics import ContractionReport
from r2no.progress import Reporter
from r2no.repair_loop import completed_target
from r2no.scoring import Observer
from r2no.spectral import FourierCells, cell_energy

WINDOWS = 8


class Contraction(Observer):
    """Contraction factor and bias of the first member on a few test windows (M11).

    In the loop's units, over all channels, at the target as training completes it: unmeasured
    channels and gaps are the source's. Costs one more evaluation of the module per batch that
    holds such a window, at the target.
    """

    sums = ("reports", "evaluations")

    def __init__(self, loops: RepairLoops, windows: Windows, most: int = WINDOWS) -> None:
        self._loops, self._measured = loops, windows.fields.measured
        count = min(most, len(windows))
        self._numbers = {place * len(windows) // count for place in range(count)}
        self._module = loops.modules[0].folded()
        self._iterates: list[Tensor] = []
        self._places: list[int] = []
        self.reports: list[ContractionReport] = []
        self.evaluations = 0

    def begin(self, numbers: range, window: Window) -> None:
        """Find the batch's chosen windows."""
        super().begin(numbers, window)
        self._places = [place for place, number in enumerate(numbers) if number in self._numbers]
        self._iterates = []

    def iterate(self, member: int, depth: int, field: Tensor, spectrum: Tensor | None) -> None:
        """Keep the chosen windows of an iterate of the first member."""
        if self._places and member == 0:
            self._iterates.append(self._loops.of_field(field[self._places]))

    def end(self) -> None:
        """Report on the batch's chosen windows."""
        if not self._places or len(self._iterates) < 3:
            return
        window, loops = self.window, self._loops
        mask = None if window.mask is None else window.mask[self._places]
        target, _ = completed_target(
            loops.of_field(window.target[self._places]),
            self._iterates[0],
            measured=self._measured,
            mask=mask,
        )
        history = loops.of_history(window.history[self._places])
        device = devices.of(self._module) or devices.CPU
        moved = self._module(history.to(device), target.to(device)).to(target.device)
        step = moved * loops.step_size
        self.evaluations += len(self._places)
        kept = torch.stack(self._iterates)
        for place in range(len(self._places)):
            self.reports.append(contraction_report(kept[:, place], target[place], step[place]))

    def summary(self) -> dict[str, Any]:
        """Medians and extremes over the windows, and whether the bound holds where it applies."""
        bounded = [report for report in self.reports if report.bound is not None]
        holds = [
            all(e <= b * (1 + 1e-9) for e, b in zip(report.errors, report.bound, strict=True))
            for report in bounded
            if report.bound is not None
        ]
        return {
            "windows": len(self.reports),
            "factor": _spread([report.factor for report in self.reports]),
            "step_ratio": _spread([report.step_ratio for report in self.reports]),
            "pair_ratio": _spread([report.pair_ratio for report in self.reports]),
            "bias": _spread([report.bias for report in self.reports]),
            "error_source": _spread([report.errors[0] for report in self.reports]),
            "error_final": _spread([report.errors[-1] for report in self.reports]),
            "contracting": len(bounded),
            "bound_holds": sum(holds),
            "evaluations": self.evaluations,
            "errors": _mean([report.errors for report in bounded or self.reports]),
            "bound": _mean([report.bound for report in bounded if report.bound is not None]),
            "fixed_point_distance": _mean(
                [r.fixed_point_distance for r in bounded if r.fixed_point_distance is not None]
            ),
        }


def _spread(values: Sequence[float]) -> list[float]:
    """Smallest, median, largest."""
    ordered = sorted(values)
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if ordered else []


def _mean(rows: Sequence[tuple[float, ...]]) -> list[float]:
    return [math.fsum(values) / len(rows) for values in zip(*rows, strict=True)]


class TrajectoryErrors(Observer):
    """Sums of ‖P_b(h_ℓ - y)‖² of the first member, by trajectory, depth, cell and channel."""

    sums = ("_total",)

    def __init__(self, windows: Windows, cells: FourierCells, depths: int) -> None:
        self._cells, self._measured = cells, list(windows.fields.measured)
        self._origins = windows.origins[:, 0].unique(return_inverse=True)[1]
        shape = (int(self._origins.max()) + 1, depths, cells.num_cells, len(self._measured))
        self._total = torch.zeros(shape, dtype=torch.float64)

    def begin(self, numbers: range, window: Window) -> None:
        """Note whose windows these are."""
        super().begin(numbers, window)
        self._place = self._origins[list(numbers)]

    def iterate(self, member: int, depth: int, field: Tensor, spectrum: Tensor | None) -> None:
        """Add the errors of an iterate."""
        if member == 0:
            error = (field - self.window.target)[..., self._measured]
            if self.window.mask is not None:
                error = torch.where(self.window.mask[..., self._measured], error, 0)
            energy = cell_energy(error, self._cells)
            self._total = self._total.to(energy.device)
            self._total[:, depth].index_add_(0, self._place.to(energy.device), energy)

    def means(self) -> Float[Tensor, "trajectory depth cell channel"]:
        """Per window of each trajectory."""
        means: Tensor = self._total.cpu() / self._origins.bincount()[:, None, None, None]
        return means


def errors_by_trajectory(
    model: AdaptedModel, windows: Windows, reporter: Reporter
) -> Float[Tensor, "trajectory depth cell channel"]:
    """Mean ‖P_b(h_ℓ - y)‖² of each trajectory's windows in every cell of the ensemble, member 0.

    One roll-out of the first member over the split.
    """
    loops = model.loops
    first = replace(model, loops=replace(loops, modules=loops.modules[:1]))
    errors = TrajectoryErrors(windows, model.ensemble.cells, loops.steps + 1)
    observe(first, windows, {}, [errors], title="errors by cell on fit", reporter=reporter)
    return errors.means()


def selection_summary(
    by_trajectory: Float[Tensor, "trajectory depth cell channel"], *, checkpoints: int
) -> dict[str, Any]:
    """Hoeffding price ξ_b of choosing a depth in each of the N_Ω cells (M12).

    From the errors of the fit split, whose n trajectories are the independent units. C_b is the
    largest error that one of them has in cell b at any depth, in place of the unknown bound of
    the distribution. N_Ω counts all cells of all measured channels; those without a coefficient
    have no error and cost nothing.
    """
    trajectories, depths = by_trajectory.shape[:2]
    errors = by_trajectory.flatten(2)
    largest = errors.amax((0, 1))
    unit = selection_price(
        bound=1.0,
        trajectories=trajectories,
        regions=errors.shape[2],
        depths=depths,
        checkpoints=checkpoints,
    )
    mean = errors.mean(0)  # depth, cell and channel
    common = float(mean.sum(1).min())
    return {
        "trajectories": trajectories,
        "checkpoints": checkpoints,
        "regions": errors.shape[2],
        "occupied": int((largest > 0).sum()),
        "largest_total": float(largest.sum()),
        "unit_price": unit,
        "twice_total": 2 * unit * float(largest.sum()),
        "common_error": common,
        "gap": common - float(mean.min(0).values.sum()),
    }
