"""doctor: look for what would spoil a long run before it starts; each finding with what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from r2no._types import Operator
from r2no.adaptation.fitting import check_adaptable
from r2no.data.audit import shared_frames
from r2no.data.splits import Splits
from r2no.data.window import Window, Windows, collate
from r2no.errors import FingerprintError, NonFiniteError, R2NOError, ShapeError
from r2no.experiments.own.calibration import calibrate
from r2no.experiments.own.config import OwnConfig
from r2no.experiments.own.task import open_measurements, open_source, split
from r2no.operators import WrappedOperator, fitting_layouts
from r2no.operators.wrapped import rewrapped
from r2no.training import Persistence, operator_fingerprint

_LOOK = 8  # windows that sources are compared on
_AUDITED = 2 * 2**30  # bytes up to which frames are compared without being asked
Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One check: how it went, what was found and, if it is not well, what to do."""

    level: Level
    check: str
    message: str


def examine(config: OwnConfig, *, full: bool = False) -> Iterator[Finding]:
    """Check a config from its data to one training step, and yield findings as they come.

    A check that fails ends those that need it. Nothing is written.

    Args:
        config: What ``r2no adapt`` would run.
        full: Compare the frames of the splits however large the data are.
    """
    try:
        yield from _examine(config, full)
    except _Failed as failure:
        yield Finding("fail", failure.check, str(failure))


class _Failed(Exception):
    """A named error, and the check it ended."""

    def __init__(self, check: str, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.check = check


@contextmanager
def _checking(check: str) -> Iterator[None]:
    try:
        yield
    except (R2NOError, FileNotFoundError) as error:
        raise _Failed(check, error) from error


def _examine(config: OwnConfig, full: bool) -> Iterator[Finding]:
    with _checking("data"):
        measurements = open_measurements(config.data)
    yield Finding("ok", "data", measurements.describe())
    with _checking("splits"):
        splits = split(config.data, measurements)
        check_adaptable(splits.fit, config.adapt)
    yield _sizes(splits)
    yield _leakage(splits, measurements.nbytes, full)
    with _checking("source"):
        source = open_source(config, measurements, splits.fit.fields)
        if isinstance(source, torch.nn.Module):
            source.eval().requires_grad_(False)
        few = _few(splits.fit)
        forecast = _answer(source, few)
    yield Finding("ok", "source", f"Answers {tuple(forecast.shape)}, as these windows need.")
    yield _repeatable(source, few)
    yield _batch_free(source, few)
    yield _units(forecast, few, splits.fit)
    yield _persistence(forecast, few, splits.fit)
    if isinstance(source, WrappedOperator):
        yield _other_layouts(source, forecast, few, splits.fit)
    with _checking("one step"):
        rows = calibrate(source, splits, config.adapt, config.out)
    yield from (Finding(*row) for row in rows)


def _sizes(splits: Splits) -> Finding:
    sizes = {name: len(getattr(splits, name)) for name in ("train", "fit", "test")}
    text = ", ".join(f"{name} {size}" for name, size in sizes.items())
    fields = splits.fit.fields
    starts = splits.fit.origins
    span = sum(
        int(own.max() - own.min()) + fields.horizon_frames
        for own in (starts[starts[:, 0] == number, 1] for number in starts[:, 0].unique())
    )
    if span < 8 * fields.horizon_frames and len(starts[:, 0].unique()) < 4:
        return Finding(
            "warn",
            "splits",
            f"Windows: {text}. The fit split spans {span} frames, fewer than eight horizons and "
            "fewer than four trajectories, so the verdict will be uncertain. Give `fit` a larger "
            "share.",
        )
    return Finding("ok", "splits", f"Windows: {text}.")


def _leakage(splits: Splits, nbytes: int, full: bool) -> Finding:
    if nbytes > _AUDITED and not full:
        return Finding(
            "warn",
            "leakage",
            f"Frames of the splits were not compared, since the data hold {nbytes / 2**30:.1f} "
            "GiB. Run with --full to compare them.",
        )
    pairs = combinations(("train", "fit", "test"), 2)
    shared = {
        pair: shared_frames(getattr(splits, pair[0]), getattr(splits, pair[1])) for pair in pairs
    }
    bad = [f"{a} and {b} share {number} frames" for (a, b), number in shared.items() if number]
    if bad:
        return Finding(
            "fail",
            "leakage",
            f"{'; '.join(bad)}, so scores would flatter. Remove repeated recordings (the same "
            "file under two names, say) and frames in which nothing happens yet.",
        )
    return Finding("ok", "leakage", "No frame is in two splits.")


def _few(windows: Windows) -> Window:
    numbers = torch.linspace(0, len(windows) - 1, min(_LOOK, len(windows))).round().long()
    return collate([windows[number] for number in numbers.unique().tolist()])


@torch.no_grad()
def _answer(source: Operator, few: Window) -> Tensor:
    forecast = source(few.history)
    if tuple(forecast.shape) != tuple(few.target.shape):
        raise ShapeError(
            f"`source` must return {tuple(few.target.shape)} for a history of "
            f"{tuple(few.history.shape)}, but gave {tuple(forecast.shape)}. Declare its `layout`, "
            "or adapt frames, grid and channels."
        )
    if not bool(torch.isfinite(forecast).all()):
        raise NonFiniteError(
            "`source` returned NaN or infinity. Check its weights, and give its `normaliser` if it "
            "expects normalised input."
        )
    return forecast


def _repeatable(source: Operator, few: Window) -> Finding:
    probe = few.history[:1]
    if operator_fingerprint(source, probe) == operator_fingerprint(source, probe):
        return Finding("ok", "repeatable", "The source gives one history the same bits twice.")
    return Finding(
        "fail",
        "repeatable",
        f"{FingerprintError.__name__}: the source answers one history differently each time, so "
        "its forecasts cannot be kept or corrected. Switch off dropout, sampling and other "
        "randomness in it.",
    )


@torch.no_grad()
def _batch_free(source: Operator, few: Window) -> Finding:
    together = source(few.history)[:1]
    apart = float((source(few.history[:1]) - together).abs().max())
    scale = float(together.abs().max())
    if apart <= 1e-3 * scale:
        return Finding("ok", "batches", "A forecast does not depend on the others in its batch.")
    return Finding(
        "warn",
        "batches",
        f"A forecast changes by {apart / scale:.1e} of its size with the batch it is in. Put "
        "normalisation layers into evaluation mode.",
    )


def _units(forecast: Tensor, few: Window, windows: Windows) -> Finding:
    measured, names = list(windows.fields.measured), windows.fields.channels
    ratio = torch.stack(
        [
            _spread(forecast, few, channel) / _spread(few.target, few, channel)
            for channel in measured
        ]
    )
    odd = [
        f"{names[channel]} varies {float(value):.2g} times as much as measured"
        for channel, value in zip(measured, ratio, strict=True)
        if not 0.1 <= float(value) <= 10
    ]
    if odd:
        return Finding(
            "warn",
            "units",
            f"In the source's forecasts {'; '.join(odd)}. Check units and give the `normaliser` "
            "the network was trained with.",
        )
    return Finding("ok", "units", "The source's forecasts vary as much as the measurements.")


def _persistence(forecast: Tensor, few: Window, windows: Windows) -> Finding:
    fields = windows.fields
    still = Persistence(fields.horizon_frames, len(fields.channels))(few.history)
    ours, theirs = _rmse(forecast, few, windows), _rmse(still, few, windows)
    text = f"RMSE {ours:.4g} against {theirs:.4g} of persistence on {len(few.history)} windows"
    if ours < theirs:
        return Finding("ok", "source skill", f"{text}.")
    return Finding(
        "warn",
        "source skill",
        f"{text}: the source is no better than repeating the last frame. Check layout, order of "
        "channels, normaliser and time step; if all is right, expect the repair to do the work.",
    )


@torch.no_grad()
def _other_layouts(
    source: WrappedOperator, forecast: Tensor, few: Window, windows: Windows
) -> Finding:
    """Several layouts can fit by shape; the one that was trained with forecasts best."""
    declared, best = str(source.layout), _rmse(forecast, few, windows)
    others = {
        name: _rmse(rewrapped(source, name)(few.history), few, windows)
        for name in fitting_layouts(source)
        if name != declared
    }
    better = {name: error for name, error in others.items() if error < 0.8 * best}
    if better:
        name = min(better, key=lambda one: better[one])
        return Finding(
            "warn",
            "layout",
            f"Layout {name!r} fits as well and gives RMSE {better[name]:.4g} instead of "
            f"{best:.4g} with {declared!r}. Declare it if the network was trained so.",
        )
    return Finding("ok", "layout", f"{declared!r}; no other layout that fits forecasts better.")


def _spread(field: Tensor, few: Window, channel: int) -> Tensor:
    """Standard deviation of a channel where it was measured."""
    values = field[..., channel]
    known = values if few.mask is None else values[few.mask[..., channel]]
    return known.double().std().clamp_min(1e-30)


def _rmse(forecast: Tensor, few: Window, windows: Windows) -> float:
    measured = list(windows.fields.measured)
    error = (forecast - few.target)[..., measured].double()
    if few.mask is None:
        return float(error.square().mean().sqrt())
    known = few.mask[..., measured]
    return float((error.square() * known).sum().div(known.sum().clamp_min(1)).sqrt())
