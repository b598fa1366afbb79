"""Estimates for the fixed-point proposition and the price of selection, on real windows."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from r2no.adaptation import Trajectories
from r2no.data.window import Window, Windows
from r2no.ensemble import contraction_report, selection_price
from r2no.ensemble.diagnostics import ContractionReport

WINDOWS = 8


class Contraction:
    """Contraction factor and bias of the first member on a few test windows (M11).

    In the loop's units, over the measured channels. Costs one more evaluation of the module per
    batch that holds such a window, at the target.
    """

    def __init__(self, loops: Trajectories, windows: Windows, most: int = WINDOWS) -> None:
        self._loops, self._measured = loops, list(windows.fields.measured)
        count = min(most, len(windows))
        self._numbers = {place * len(windows) // count for place in range(count)}
        self._module = loops.modules[0].folded()
        self._iterates: list[Tensor] = []
        self._places: list[int] = []
        self._window: Window | None = None
        self.reports: list[ContractionReport] = []
        self.evaluations = 0

    def begin(self, numbers: range, window: Window, source: Tensor) -> None:
        """Start a batch."""
        self._places = [place for place, number in enumerate(numbers) if number in self._numbers]
        self._window, self._iterates = window, []
        if self._places:
            self.add(source)

    def add(self, iterate: Tensor) -> None:
        """Take the next iterate of the first member."""
        if self._places:
            self._iterates.append(self._normal(iterate[self._places]))

    def end(self) -> None:
        """Report on the batch's chosen windows."""
        if not self._places or len(self._iterates) < 3:
            return
        assert self._window is not None
        history, target = (part[self._places] for part in self._window[:2])
        loops = self._loops
        step = self._module(loops.of_history(history), loops.of_field(target)) * loops.step_size
        self.evaluations += len(self._places)
        kept, goal = torch.stack(self._iterates), self._normal(target)
        for place in range(len(self._places)):
            at_target = step[place][..., self._measured]
            self.reports.append(contraction_report(kept[:, place], goal[place], at_target))

    def _normal(self, field: Tensor) -> Tensor:
        return self._loops.of_field(field)[..., self._measured]

    def summary(self) -> dict[str, Any]:
        """Medians and extremes over the windows, and whether the bound holds where it applies."""
        factors = sorted(report.factor for report in self.reports)
        bounded = [report for report in self.reports if report.bound is not None]
        holds = [
            all(e <= b * (1 + 1e-9) for e, b in zip(report.errors, report.bound, strict=True))
            for report in bounded
            if report.bound is not None
        ]
        return {
            "windows": len(self.reports),
            "factor": _spread(factors),
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


def selection_summary(
    by_trajectory: Tensor, *, trajectories: int, checkpoints: int, regions: int
) -> dict[str, Any]:
    """Hoeffding price ξ_b of a selection by band (M12).

    C_b is the largest error that a test trajectory has in band b at any depth, in place of the
    unknown bound of the distribution; n counts the trajectories of the fit split.
    """
    largest = by_trajectory.amax((0, 1))
    depths = by_trajectory.shape[1]
    price = [
        selection_price(
            bound=float(bound),
            trajectories=trajectories,
            regions=regions,
            depths=depths,
            checkpoints=checkpoints,
        )
        for bound in largest
    ]
    mean = by_trajectory.mean(0)
    gap = float(mean.sum(1).min() - mean.min(0).values.sum())
    return {
        "trajectories": trajectories,
        "checkpoints": checkpoints,
        "largest": largest.tolist(),
        "price": price,
        "twice_total": 2 * math.fsum(price),
        "gap": gap,
    }
