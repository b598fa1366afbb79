"""Every readout of every study from the sums of one pass, and the one pass that scores them all."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from r2no.adaptation import AdaptedModel, readouts
from r2no.adaptation.named_readouts import observe
from r2no.data.window import Windows
from r2no.ensemble import DepthErrors, FittedEnsemble
from r2no.progress import SILENT, Reporter
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.evaluation import MeasuredChannels, Protocol
from r2no.realpdebench.study.theory import WINDOWS, Contraction
from r2no.scoring import Depths, Metrics, Sample
from r2no.spectral import FourierCells, forward
from r2no.spectral.cells import spectrum_energy
from r2no.spectral.transforms import channel_picker, space_last

#: Eight orders of magnitude.
RIDGE_SWEEP = tuple(10.0**power for power in range(-8, 1))
#: Retained depths per member; twelve steps give 4, 7, 10, 13, 19, 25 and 37 columns for M = 3.
RETAINED = (1, 2, 3, 4, 6, 8, 12)

#: Methods and number of frames that the qualitative figure shows.
SHOWN, FRAMES = ("source", "irno_final", "r2no"), 5


@dataclass(frozen=True)
class StudyReadouts:
    """Fitted readouts by name, and other names for some of them."""

    ensembles: dict[str, FittedEnsemble]
    aliases: dict[str, str]


def study_readouts(model: AdaptedModel) -> StudyReadouts:
    """The readouts of all studies; those derived here predict without a copy of the sums.

    ``r2no`` combines all members in the full partition; ``no_*`` drop an axis or the base column,
    each with its own choice of ridge; ``columns_J`` retain fewer depths; ``ridge_x`` fix λ = x.
    """
    full, cells, members = model.ensemble, model.ensemble.cells, len(model.loops.modules)
    found, aliases = readouts(model), {}
    found["r2no"] = found.pop(f"r2no_m{members}") if members > 1 else full
    axes: dict[str, Any] = {"radial": cells.radial, "angular": cells.angular}
    for name, dropped in (("radial", 1), ("angular", 1), ("shared_channels", True)):
        coarse = FourierCells.polar(cells.grid, **axes | {name: dropped}, extent=cells.extent)
        key = "no_channel" if name == "shared_channels" else f"no_{name}"
        found[key] = full.derive(cells=coarse).without_sums()
    found["no_base"] = full.derive(base_column=False).without_sums()
    for name, change in _sweeps(full):
        if change:
            found[name] = full.derive(**change).without_sums()
        else:
            aliases[name] = "r2no"
    return StudyReadouts(found, aliases)


def retained_depths(steps: int, number: int) -> tuple[int, ...]:
    """``number`` depths of 1..L, evenly spaced, the last always L: the budget stays the same."""
    return tuple(math.ceil(place * steps / number) for place in range(1, number + 1))


def _sweeps(full: FittedEnsemble) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of the sweeps and what they change; nothing where that is the ensemble as it is."""
    steps = full.columns.depths[-1]
    for number in sorted({*(n for n in RETAINED if n < steps), steps}):
        columns = full.columns.restricted(depths=retained_depths(steps, number))
        name = f"columns_{columns.number:03d}"
        yield name, {} if number == steps else {"depths": columns.depths}
    for ridge in RIDGE_SWEEP:
        yield f"ridge_{ridge:.0e}", {} if ridge == full.ridge else {"ridge": ridge}


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


class SpectralDepths(Depths):
    """Errors by depth from the transforms that the readouts need anyway; for complete targets.

    F(y - h_ℓ) is F(y - h_0) - F(h_ℓ - h_0), so no iterate is transformed twice.
    """

    spectra = True

    def iterate(self, member: int, depth: int, field: Tensor, spectrum: Tensor | None) -> None:
        """Add ‖P_b(y - h_ℓ)‖²."""
        if (member, depth) == (0, 0):
            channels = channel_picker(self.errors.measured)
            start = space_last(field[..., channels]).contiguous()
            wanted = space_last(self.window.target[..., channels]) - start
            grid = len(self.errors.cells.grid)
            self._wanted = torch.view_as_real(forward(wanted.contiguous(), grid))
        error = self._wanted if spectrum is None else self._wanted - spectrum
        self.errors.put(member, depth, spectrum_energy(error, self.errors.cells))


def run_pass(
    model: AdaptedModel,
    chosen: StudyReadouts,
    windows: Windows,
    protocol: Protocol,
    *,
    theory: int = WINDOWS,
    reporter: Reporter = SILENT,
) -> TestPass:
    """Roll out each batch of ``windows`` once for everything that needs it.

    ``theory`` is the number of windows that the contraction is estimated on.
    """
    measured = model.fields.measured
    metrics = Metrics(measured, scored=protocol.scored)
    depths = SpectralDepths(model.fit_errors.cleared())
    contraction = Contraction(model.loops, windows, theory)
    sample = Sample(SHOWN, len(windows) // 2)
    checks = [MeasuredChannels(windows)] if isinstance(windows, RealPDEBench) else []
    seconds = observe(
        model,
        windows,
        chosen.ensembles,
        [*checks, depths, contraction, metrics, sample],
        title="all readouts on test",
        reporter=reporter,
    )
    depths.errors.collect()
    for check in checks:
        check.check()
    scores = metrics.compute()
    frames = shown_frames(model.fields.horizon_frames)
    return TestPass(
        scores | {name: scores[other] for name, other in chosen.aliases.items()},
        depths.errors,
        contraction,
        {name: field[frames][..., list(measured)] for name, field in sample.fields.items()},
        seconds,
    )


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
