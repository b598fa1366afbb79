"""One batch through everything, timed: does it run, and what would the whole run cost."""

import math
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch

from r2no._types import Number, Operator
from r2no.adaptation import AdaptSettings, RepairLoops
from r2no.adaptation.adapting import initial_module
from r2no.adaptation.columns import expected
from r2no.data.splits import Splits
from r2no.data.window import batches, collate
from r2no.ensemble import Columns, GramAccumulator, GramSums
from r2no.errors import NonFiniteError
from r2no.repair_loop import RepairUNet
from r2no.spectral import FourierCells
from r2no.training.backbone import fit_normalisers

Result = TypeVar("Result")
Row = tuple[Literal["ok", "warn", "fail"], str, str]
_GROUPS = 16  # blocks of the fit split that sums are kept of, at most
_SCORED = 2  # a window that is scored costs so many that are fitted: all readouts, all metrics
_FINISH = 6.0  # seconds for artifact, evaluation and report
_ADAM = 4  # weights, gradients and two moments


class _Costs(NamedTuple):
    """Seconds: of the source per window, a training step, a roll-out and a fit batch."""

    source: float
    step: float
    rollout: float
    fit: float


def calibrate(source: Operator, splits: Splits, settings: AdaptSettings, out: Path) -> list[Row]:
    """Run source, one repair step with gradient and one accumulation; estimate the whole run."""
    fields = splits.fit.fields
    module = initial_module(fields, settings, 0)
    few = splits.train.subset([0]) if len(splits.train) > 256 else splits.train
    normalisers = fit_normalisers(few)
    of_history, of_field = normalisers
    size = min(settings.repair.train.batch_size, len(splits.train))
    window = collate([splits.train[number] for number in range(size)])
    with torch.no_grad():
        forecast, source_time = _timed(lambda: source(window.history))
    objective = settings.repair.objective()

    optimiser = torch.optim.AdamW(module.parameters(), lr=0.0)  # timed, without effect

    def step() -> float:
        """One step of training, as the run would do it."""
        module.train()
        collate([splits.train[number] for number in range(size)])
        optimiser.zero_grad(set_to_none=True)
        terms = objective(
            module,
            of_history(window.history),
            of_field(forecast),
            of_field(window.target),
            measured=fields.measured,
            mask=window.mask,
        )
        terms.total.backward()
        optimiser.step()
        return float(terms.total.detach())

    step()  # once to warm up
    loss, step_time = _timed(step)
    slopes = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    if not math.isfinite(loss) or not all(bool(torch.isfinite(slope).all()) for slope in slopes):
        raise NonFiniteError(
            f"One repair step gave the loss {loss} or a gradient that is not finite. Check the "
            "units of data and source; very large values need scaling."
        )
    loops = RepairLoops(
        (module.eval(),), *normalisers, settings.repair.steps, settings.repair.step_size
    )
    rollout, fit = _fit_times(source, splits, loops, settings)
    costs = _Costs(source_time / size, step_time, rollout, fit)
    return [
        ("ok", "one step", f"Loss {loss:.4g} and finite gradients on a batch of {size}."),
        _time_row(costs, splits, settings),
        _disk_row(module, splits, settings, out),
        _memory_row(splits, settings),
    ]


@torch.no_grad()
def _fit_times(
    source: Operator, splits: Splits, loops: RepairLoops, settings: AdaptSettings
) -> tuple[float, float]:
    """Seconds per window of the roll-out alone, and of the roll-out with its Gram sums."""
    _, window = next(iter(batches(splits.fit, settings.batch_size)))
    forecast = source(window.history)
    sums = GramAccumulator(
        Columns(1, tuple(range(1, loops.steps + 1))),
        _expected(splits, settings)[1],
        measured=splits.fit.fields.measured,
        exponents=(1.0,),
        groups=1,
    )
    group = torch.zeros(len(forecast), dtype=torch.long)

    def accumulate() -> None:
        part = sums.begin(forecast, window.target, window.mask)
        for member, depth, iterate in loops(window.history, forecast):
            part.add(member, depth, iterate)
        sums.add(group)

    accumulate()  # once to warm up
    _, fit = _timed(accumulate)
    _, rollout = _timed(lambda: list(loops(window.history, forecast)))
    return rollout / len(forecast), fit / len(forecast)


def _time_row(costs: _Costs, splits: Splits, settings: AdaptSettings) -> Row:
    """How long the run would take, from the timed pieces."""
    if settings.minutes is not None:
        return (
            "ok",
            "time",
            f"{settings.minutes:g} minutes, as asked for: a model without modules at once, then "
            f"repair modules as time allows (a step of the published size takes {costs.step:.2f} "
            "s here), then scores and report.",
        )
    train = settings.repair.train
    per_epoch = math.ceil(len(splits.train) / train.batch_size)
    updates = train.total_updates(per_epoch)
    validations = math.ceil(updates / train.validate_every(per_epoch))
    windows = len(splits.train) + len(splits.fit)
    member = updates * costs.step + validations * len(splits.fit) * costs.rollout
    seconds = (
        windows * costs.source
        + math.ceil(settings.members / settings.jobs) * member
        + settings.members * (len(splits.fit) + _SCORED * len(splits.test)) * costs.fit
        + len(splits.test) * costs.source
        + _FINISH
    )
    return (
        "ok",
        "time",
        f"About {_duration(seconds)} on this machine: {settings.members} module(s) of {updates} "
        f"steps at {costs.step:.2f} s, {validations} validations each, one pass over the fit "
        "split, scores and report. Lower `members`, `epochs` or `steps` if that is too long.",
    )


def _disk_row(module: RepairUNet, splits: Splits, settings: AdaptSettings, out: Path) -> Row:
    """How much the run would write, against what is free."""
    fields = splits.fit.fields
    windows = len(splits.train) + len(splits.fit)
    cache = 4 * windows * fields.horizon_frames * math.prod(fields.grid) * len(fields.channels)
    weights = 4 * sum(parameter.numel() for parameter in module.parameters())
    sums = _sums_bytes(splits, settings) // 2  # triangles of occupied cells
    needed = cache + settings.members * weights * (_ADAM + 2) + sums
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    text = (
        f"About {_size(needed)} in `{out}` ({_size(cache)} of source forecasts), {_size(free)} free"
    )
    if needed > free:
        return "fail", "disk", f"{text}. Free some space or set `out` to another disk."
    return "ok", "disk", f"{text}."


def _memory_row(splits: Splits, settings: AdaptSettings) -> Row:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    needed = peak * settings.jobs + _sums_bytes(splits, settings)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"About {_size(needed)} of {_size(total)}, measured with one batch of each kind"
    if needed > 0.9 * total:
        return (
            "warn",
            "memory",
            f"{text}. Lower `batch_size` or `jobs`, or set `repair.checkpointing`.",
        )
    return "ok", "memory", f"{text}."


def _expected(splits: Splits, settings: AdaptSettings) -> tuple[Columns, FourierCells, int]:
    return expected(settings, splits.fit.fields, blocks=_GROUPS)


def _sums_bytes(splits: Splits, settings: AdaptSettings) -> int:
    columns, cells, leads = _expected(splits, settings)
    return GramSums.bytes(columns, cells, len(splits.fit.fields.measured), _GROUPS, leads)


def _timed(action: Callable[[], Result]) -> tuple[Result, float]:
    start = time.perf_counter()
    result = action()
    return result, time.perf_counter() - start


def _duration(seconds: Number) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(number: Number) -> str:
    return f"{number / 2**20:.0f} MiB" if number < 2**30 else f"{number / 2**30:.1f} GiB"
