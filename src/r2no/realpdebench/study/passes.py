"""One pass over the test split feeds every table and figure of a pair."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from r2no.adaptation import AdaptedModel
from r2no.data.window import Window, Windows, batches
from r2no.ensemble import DepthErrors, Readouts
from r2no.metrics import Accumulator
from r2no.progress import Reporter
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.evaluation import Protocol, check_measured
from r2no.realpdebench.study.readouts import StudyReadouts
from r2no.realpdebench.study.theory import WINDOWS, Contraction
from r2no.spectral import FourierCells, forward

SHOWN = ("source", "irno_final", "r2no")
FRAMES = 5


@dataclass
class TestPass:
    """What one pass over the test split leaves.

    Attributes:
        scores: All metrics of every readout and of ``source``.
        errors: Squared errors by member, depth and band.
        contraction: Estimates along some trajectories of the first member.
        fields: Target and methods of one window at five frames, measured channels.
        seconds: Where the time went.
    """

    __test__ = False  # not a test class

    scores: dict[str, dict[str, float]]
    errors: DepthErrors
    contraction: Contraction
    fields: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class _Clock:
    """Adds the time since the last call to one of several accounts."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("data", "source", "rollout", "readouts"), 0.0)
        self._last = time.perf_counter()

    def charge(self, account: str) -> None:
        now = time.perf_counter()
        self.seconds[account] += now - self._last
        self._last = now


class Scorer:
    """Rolls out each batch once and hands every iterate to everything that needs it."""

    def __init__(
        self,
        model: AdaptedModel,
        chosen: StudyReadouts,
        windows: Windows,
        protocol: Protocol,
        *,
        theory: int = WINDOWS,
    ) -> None:
        self.model, self.chosen, self.windows, self.protocol = model, chosen, windows, protocol
        loops, measured = model.loops, model.fields.measured
        self.joint = Readouts({n: e.spread for n, e in chosen.ensembles.items()})
        self.scores = {n: Accumulator(measured) for n in ("source", *chosen.ensembles)}
        self.errors = DepthErrors.empty(
            model.fit_errors.cells,
            members=len(loops.modules),
            steps=loops.steps,
            measured=measured,
        )
        self.contraction = Contraction(loops, windows, theory)
        self.fields: dict[str, Tensor] = {}
        self.clock = _Clock()

    @torch.no_grad()
    def run(self, reporter: Reporter) -> TestPass:
        """Score every readout in one pass over the windows."""
        seen = torch.zeros(len(self.windows.fields.channels), dtype=torch.bool)
        self.clock = _Clock()
        with reporter.step("all readouts on test", len(self.windows)) as step:
            for numbers, window in batches(self.windows, self.model.settings.batch_size):
                self.clock.charge("data")
                seen |= window.target.flatten(0, -2).ne(0).any(0)
                self._batch(numbers, window)
                step.advance(len(numbers))
        if isinstance(self.windows, RealPDEBench):
            check_measured(seen, self.windows)
        scores = {name: score.compute() for name, score in self.scores.items()}
        return TestPass(
            scores | {name: scores[other] for name, other in self.chosen.aliases.items()},
            self.errors,
            self.contraction,
            self.fields,
            self.clock.seconds,
        )

    def _batch(self, numbers: range, window: Window) -> None:
        """Score one batch: roll the loops out once and feed every readout and observer."""
        loops = self.model.loops
        source = self.model.source(window.history)
        self.clock.charge("source")
        composition = self.joint.compose(source, spectra=True)
        self.errors.begin(window.target)
        wanted = transform(composition.residual(window.target), self.errors.cells)
        for member in range(len(loops.modules)):
            self._record(member, 0, wanted)
        self.contraction.begin(numbers, window, source)
        self.clock.charge("readouts")
        for member, depth, iterate in loops(window.history, source):
            self.clock.charge("rollout")
            spectrum = composition.add(member, depth, iterate)
            assert spectrum is not None  # asked for
            self._record(member, depth, wanted - spectrum)
            if member == 0:
                self.contraction.add(iterate)
            self.clock.charge("readouts")
        self._score("source", source, numbers, window)
        for name, forecast in composition.results():
            self._score(name, forecast, numbers, window)
        self.contraction.end()
        self.clock.charge("readouts")

    def _record(self, member: int, depth: int, error: Tensor) -> None:
        """Add ‖P_b(y - h_ℓ)‖² to the errors by depth.

        F(y - h_ℓ) is F(y - h_0) - F(h_ℓ - h_0), so the readouts' transform serves here too.
        """
        self.errors.squared[member, depth] += band_energy(error, self.errors.cells).sum(0)

    def _score(self, name: str, forecast: Tensor, numbers: range, window: Window) -> None:
        self.scores[name].update(self.protocol.scored(forecast), window.target, window.mask)
        middle = len(self.windows) // 2
        if middle in numbers and name in SHOWN:
            place, measured = numbers.index(middle), list(self.model.fields.measured)
            frames = shown_frames(window.target.shape[1])
            self.fields.setdefault("target", window.target[place, frames][..., measured].clone())
            self.fields[name] = forecast[place, frames][..., measured].clone()


def transform(field: Tensor, cells: FourierCells) -> Tensor:
    """(batch, time, channel, *space) to (batch, time, channel, *half, 2), real and imaginary."""
    return torch.view_as_real(forward(field, len(cells.grid)))


def band_energy(spectrum: Tensor, cells: FourierCells) -> Tensor:
    """‖P_b u‖² by window, band and channel, from a transform, in float64."""
    power = spectrum.square().sum(-1).sum(1, dtype=torch.float64)  # window, channel, *half
    flat = (power * cells.multiplicity.to(power)).flatten(2)
    energy = flat.new_zeros(*flat.shape[:2], cells.num_cells)
    energy.index_add_(2, cells.index.reshape(-1).to(flat.device), flat)
    return energy.transpose(1, 2)


def shown_frames(horizon: int) -> list[int]:
    """Five forecast frames, evenly spaced, first and last included."""
    count = min(FRAMES, horizon)
    return [round(place * (horizon - 1) / max(count - 1, 1)) for place in range(count)]


def diagnostic(errors: DepthErrors, fit: DepthErrors) -> dict[str, Any]:
    """Change by depth and band, minima, depth-composition gap (M9, M10) of the first member."""
    change = errors.change()[0]
    best = [int(column.nan_to_num(torch.inf).argmin()) for column in change.T]
    common = float(errors.total()[0].min()) / max(errors.windows, 1)
    return {
        "change": change.tolist(),
        "frmse": errors.regional_frmse()[0].tolist(),
        "best_depth_by_band": best,
        "common_depth_fit": fit.best_depth(),
        "common_depth_test": errors.best_depth(),
        "gap": errors.gap(),
        "common_error": common,
        "rmse": errors.rmse().tolist(),
        "squared": errors.squared[:1].tolist(),
        "grid": list(errors.cells.grid),
        "measured": list(errors.measured),
        "windows": errors.windows,
        "frames": errors.frames,
    }


def stored_errors(content: dict[str, Any]) -> DepthErrors:
    """The errors of the first member that :func:`diagnostic` stored."""
    return DepthErrors(
        FourierCells.bands(tuple(content["grid"])),
        tuple(content["measured"]),
        torch.tensor(content["squared"], dtype=torch.float64),
        windows=content["windows"],
        frames=content["frames"],
    )
