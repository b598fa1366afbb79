"""One batch through everything, timed: does it run, and what would the whole run cost."""

import math
import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from r2no import devices
from r2no._repr import bytes_in_words
from r2no._types import Number, Operator
from r2no.adaptation import AdaptSettings, RepairLoops
from r2no.adaptation.carrying import other_recordings
from r2no.adaptation.columns import expected
from r2no.adaptation.costs import (
    Step,
    forecast_bytes,
    rollout_seconds,
    search_bytes,
    sums_bytes,
    timed,
    training_work,
)
from r2no.adaptation.fitting import held_out_blocks
from r2no.data.normalise import fit_normalisers
from r2no.data.splits import Splits
from r2no.data.window import Placed, Window, batches, gather
from r2no.ensemble import Columns, GramAccumulator
from r2no.ensemble.nested import few_recordings
from r2no.errors import NonFiniteError
from r2no.repair_loop import RepairUNet

_GROUPS = 16  # blocks of the fit split that sums are kept of, at most
_SCORED = 2  # a window that is scored costs so many that are fitted: all readouts, all metrics
_FINISH = 6.0  # seconds for artifact, evaluation and report
_ADAM = 4  # weights, gradients and two moments


@dataclass(frozen=True)
class Finding:
    """One check: how it went, what was found and, if it is not well, what to do."""

    level: Literal["ok", "warn", "fail"]
    check: str
    message: str


class _Costs(NamedTuple):
    """Seconds: of the source per window, a training step, a roll-out and a fit batch."""

    source: float
    step: float
    rollout: float
    fit: float


def rehearse(source: Operator, splits: Splits, settings: AdaptSettings, out: Path) -> list[Finding]:
    """Run source, one repair step with gradient and one accumulation; estimate the whole run.

    Without modules nothing is trained, so there is no step to take.
    """
    if settings.minutes is None and not settings.members:
        return _of_instant(source, splits, settings, out)
    if settings.minutes is not None:
        settings = settings.within_reach(splits.train.fields.grid, len(splits.train))
    settings.repair.check_windows(splits.train.fields.grid, len(splits.train))
    few = splits.train.subset([0]) if len(splits.train) > 256 else splits.train
    batch = min(settings.repair.train.batch_size, len(splits.train))

    def read() -> Window:
        return gather(splits.train, range(batch))

    window = read()
    with torch.no_grad():
        forecast, source_time = timed(lambda: devices.answer(source, window.history), warm=False)
    step = Step(read, forecast, fit_normalisers(few), settings, splits.fit.fields)
    loss, step_time = timed(step)
    slopes = [weight.grad for weight in step.module.parameters() if weight.grad is not None]
    if not math.isfinite(loss) or not all(bool(torch.isfinite(slope).all()) for slope in slopes):
        raise NonFiniteError(
            f"One repair step gave the loss {loss} or a gradient that is not finite. Check the "
            "units of data and source; very large values need scaling."
        )
    rollout, fit = _fit_times(source, splits, step.loops(), settings)
    costs = _Costs(source_time / batch, step_time, rollout, fit)
    return [
        Finding("ok", "one step", f"Loss {loss:.4g} and finite gradients on a batch of {batch}."),
        _time_row(costs, splits, settings),
        _disk_row(_bytes_of(step.module), splits, settings, out),
        _memory_row(splits, settings),
    ]


@torch.no_grad()
def _of_instant(
    source: Operator, splits: Splits, settings: AdaptSettings, out: Path
) -> list[Finding]:
    """Run source and one accumulation of the free columns; estimate a run that trains nothing."""
    fields = splits.fit.fields
    place = devices.of_sums(devices.choose(settings.device))
    _, window = next(iter(batches(Placed(splits.fit, place), settings.batch_size)))
    forecast, answer = timed(lambda: devices.answer(source, window.history), warm=False)
    columns, cells, leads = expected(settings, fields, blocks=_GROUPS)
    sums = GramAccumulator(
        columns, cells, measured=fields.measured, exponents=(1.0,), groups=1, lead_groups=leads
    )

    def accumulate() -> None:
        part = sums.begin(forecast, window.target, window.mask)
        for label in columns.further:  # whose values do not matter
            part.put(label, window.target)
        sums.add(torch.zeros(len(forecast), dtype=torch.long))

    _, fit = timed(accumulate)
    asked = _asked_of_source(splits, settings)
    passes = len(splits.fit) * (2 if settings.bands else 1) + _SCORED * len(splits.test)
    seconds = ((asked + len(splits.test)) * answer + passes * fit) / len(forecast) + _FINISH
    text = (
        f"About {_duration(seconds)} on this machine: nothing is trained; {asked} forecasts of the "
        f"source at {answer / len(forecast):.2g} s, one pass over the fit split, scores and report."
    )
    return [
        Finding("ok", "time", text),
        _disk_row(0, splits, settings, out),
        _memory_row(splits, settings),
    ]


def _asked_of_source(splits: Splits, settings: AdaptSettings) -> int:
    """Windows that an adaptation keeps the source's forecasts of."""
    few = few_recordings(other_recordings(splits.train, splits.fit))
    return len(splits.fit) + (len(splits.train) if settings.members or few else 0)


@torch.no_grad()
def _fit_times(
    source: Operator, splits: Splits, loops: RepairLoops, settings: AdaptSettings
) -> tuple[float, float]:
    """Seconds per window of the roll-out alone, and of the roll-out with its Gram sums."""
    place = devices.of_sums(devices.choose(settings.device))
    _, window = next(iter(batches(Placed(splits.fit, place), settings.batch_size)))
    forecast = devices.answer(source, window.history)
    sums = GramAccumulator(
        Columns(1, tuple(range(1, loops.steps + 1))),
        expected(settings, splits.fit.fields, blocks=_GROUPS)[1],
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

    _, fit = timed(accumulate)
    return rollout_seconds(loops, window, forecast), fit / len(forecast)


def _time_row(costs: _Costs, splits: Splits, settings: AdaptSettings) -> Finding:
    """How long the run would take, from the timed pieces."""
    if settings.minutes is not None:
        return Finding(
            "ok",
            "time",
            f"{settings.minutes:g} minutes, as asked for: a model without modules at once, then "
            f"repair modules as time allows (a step of the published size takes {costs.step:.2f} "
            "s here), then scores and report.",
        )
    updates, _, validations = training_work(settings.repair.train, len(splits.train))
    windows = len(splits.train) + len(splits.fit)
    member = updates * costs.step + validations * len(splits.fit) * costs.rollout
    seconds = (
        windows * costs.source
        + math.ceil(settings.members / settings.jobs) * member
        + settings.members * (len(splits.fit) + _SCORED * len(splits.test)) * costs.fit
        + len(splits.test) * costs.source
        + _FINISH
    )
    return Finding(
        "ok",
        "time",
        f"About {_duration(seconds)} on this machine: {settings.members} module(s) of {updates} "
        f"steps at {costs.step:.2f} s, {validations} validations each, one pass over the fit "
        "split, scores and report. Lower `members`, `epochs` or `steps` if that is too long.",
    )


def _disk_row(weights: int, splits: Splits, settings: AdaptSettings, out: Path) -> Finding:
    """How much the run would write, against what is free; a module has so many bytes of weights."""
    cache = forecast_bytes(splits.fit.fields, _asked_of_source(splits, settings))
    sums = _sums_bytes(splits, settings) // 2  # triangles of occupied cells
    needed = cache + settings.members * weights * (_ADAM + 2) + sums
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    text = (
        f"About {bytes_in_words(needed)} in `{out}` ({bytes_in_words(cache)} of source forecasts), "
        f"{bytes_in_words(free)} free"
    )
    if needed > free:
        return Finding("fail", "disk", f"{text}. Free some space or set `out` to another disk.")
    return Finding("ok", "disk", f"{text}.")


def _memory_row(splits: Splits, settings: AdaptSettings) -> Finding:
    """What the run would hold at most: a batch of each kind by job, the sums, and their search."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    held_out, fields = held_out_blocks(splits.fit, settings), splits.fit.fields
    groups, folds = 1 + int(held_out.group.max()), len(held_out.folds)
    sums = sums_bytes(settings, fields, groups=groups)
    fit = sums + search_bytes(settings, fields, groups=groups, folds=folds)
    needed = peak * settings.jobs + fit
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = (
        f"About {bytes_in_words(needed)} of {bytes_in_words(total)}, measured with one batch of "
        "each kind"
    )
    if needed > 0.9 * total:
        return Finding(
            "warn",
            "memory",
            f"{text}. Lower `batch_size` or `jobs`, or set `repair.checkpointing`.",
        )
    return Finding("ok", "memory", f"{text}.")


def _bytes_of(module: RepairUNet) -> int:
    return 4 * sum(parameter.numel() for parameter in module.parameters())


def _sums_bytes(splits: Splits, settings: AdaptSettings) -> int:
    return sums_bytes(settings, splits.fit.fields, groups=_GROUPS)


def _duration(seconds: Number) -> str:
    """Seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
