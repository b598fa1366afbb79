"""doctor: look for what would spoil a long run before it starts; each finding with what to do."""

import time
from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

from r2no import devices
from r2no._repr import bytes_in_words
from r2no._types import Operator
from r2no.adaptation.carrying import other_recordings
from r2no.adaptation.fitting import check_adaptable
from r2no.data.audit import shared_frames
from r2no.data.splits import Splits, default_counts
from r2no.data.window import Chosen, Window, Windows, gather
from r2no.ensemble.nested import few_recordings
from r2no.errors import (
    BusyError,
    EmptySplitError,
    FingerprintError,
    NonFiniteError,
    R2NOError,
    ShapeError,
)
from r2no.locks import sole_writer
from r2no.operators import WrappedOperator, fitting_layouts, wrap
from r2no.runs.config import OwnConfig
from r2no.runs.rehearsal import Finding, rehearse
from r2no.runs.run import (
    check_begun,
    check_place,
    open_measurements,
    open_source,
    replaces,
    split,
)
from r2no.scoring import Rmse, score
from r2no.training import Persistence, operator_fingerprint
from r2no.training.operator import SAME_ANSWER

_LOOK = 8  # windows that sources are compared on
_JUDGING = 30  # seconds that the comparison of layouts may take
_AUDITED = 2 * 2**30  # bytes up to which frames are compared without being asked


def examine(config: OwnConfig, *, full: bool = False) -> Iterator[Finding]:
    """Check a config from its data to one training step, and yield findings as they come.

    A check that fails ends those that need it. Nothing is written.

    Args:
        config: What ``r2no adapt`` would run.
        full: Compare the frames of the splits however large the data are.
    """
    check = "data"
    try:
        measurements = open_measurements(config.data)
        yield Finding("ok", "data", measurements.describe())
        yield _place(config)
        check = "splits"
        splits = split(config.data, measurements)
        _check_fit(splits, config)
        yield _sizes(splits)
        yield _leakage(splits, measurements.nbytes, full)
        check = "source"
        source = open_source(config, splits)
        if isinstance(source, torch.nn.Module):
            source.requires_grad_(False)
        few = _few(splits.fit)
        forecast = _answer(source, few)
        yield Finding("ok", "source", f"Answers {tuple(forecast.shape)}, as these windows need.")
        check = "device"
        yield _device(config, source, few, forecast)
        check = "source"
        yield _repeatable(source, few)
        yield _batch_free(source, few)
        yield _units(forecast, few, splits.fit)
        yield _persistence(forecast, few, splits.fit)
        if isinstance(source, WrappedOperator):
            yield _other_layouts(source, splits.fit)
        check = "one step"
        yield from rehearse(source, splits, config.settings, config.out)
    except (R2NOError, OSError) as error:  # the system may refuse a file, too
        yield Finding("fail", check, f"{type(error).__name__}: {error}")


def _place(config: OwnConfig) -> Finding:
    """Whether the run can begin in its folder: it is one, nobody works there, it is of this run."""
    out = config.out
    lock = out.absolute().with_name(f".{out.name}.lock")
    try:
        check_place(out)
        if lock.exists():
            with sole_writer(out, wait=False):
                pass
        check_begun(config)
    except BusyError as error:
        return Finding("warn", "out", f"{error} `r2no adapt` would wait for it.")
    except R2NOError as error:
        return Finding("fail", "out", f"{type(error).__name__}: {error}")
    if (replaced := replaces(config)) is not None:
        return Finding("warn", "out", replaced)
    return Finding("ok", "out", f"`{out}` can be written.")


def _check_fit(splits: Splits, config: OwnConfig) -> None:
    """Refuse a fit split that cannot be parted, with the share that would do."""
    try:
        check_adaptable(splits.fit, config.adapt)
    except EmptySplitError as error:
        raise EmptySplitError(
            f"{error} Splits are: {splits.describe()}. Give `fit` a larger share, as in `split: "
            "{train: 0.4, fit: 0.4, test: 0.2}`."
        ) from error


def _sizes(splits: Splits) -> Finding:
    """Recordings and windows of each split, with a warning where fit is small."""
    text, counts = splits.describe(), splits.recordings
    fields = splits.fit.fields
    span, stride = _span(splits.fit)
    if few_recordings(other_recordings(splits.train, splits.fit)):
        better = default_counts(sum(counts.values()))
        advice = (
            "Give `fit` a larger share, or leave the shares out. With these recordings "
            f"{{{', '.join(f'{n}: {c}' for n, c in better.items())}}} is the default."
            if better["fit"] > counts["fit"]
            else "More recordings would mend that; so would `split: {by: time}`, which parts each "
            "recording, but verdict and scores then speak of these recordings going on, not of "
            "another one."
        )
        return Finding(
            "warn",
            "splits",
            f"Splits: {text}. With fewer than four recordings in fit and others in train, part of "
            f"the repair is given up (docs/method.md, M7), which costs accuracy. {advice}",
        )
    if span + stride - 1 < 8 * fields.horizon_frames and counts["fit"] < 4:  # a stride may not fit
        return Finding(
            "warn",
            "splits",
            f"Splits: {text}. The fit split spans {span} frames, fewer than eight horizons and "
            "fewer than four trajectories, so the verdict will be uncertain. Give `fit` a larger "
            "share.",
        )
    return Finding("ok", "splits", f"Splits: {text}.")


def _span(windows: Windows) -> tuple[int, int]:
    """Frames that the targets of a split span, over its recordings, and its stride."""
    starts = windows.origins
    own = [starts[starts[:, 0] == number, 1] for number in starts[:, 0].unique()]
    steps = [int(one.sort().values.diff().min()) for one in own if len(one) > 1]
    span = sum(int(one.max() - one.min()) + windows.fields.horizon_frames for one in own)
    return span, min(steps, default=1)


def _leakage(splits: Splits, nbytes: int, full: bool) -> Finding:
    """Whether a frame is in two splits; not looked at in large data unless asked."""
    if nbytes > _AUDITED and not full:
        return Finding(
            "warn",
            "leakage",
            "Frames of the splits were not compared, since the data hold "
            f"{bytes_in_words(nbytes)}. Run with --full to compare them.",
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
    return gather(windows, _spread_over(windows, _LOOK))


def _spread_over(windows: Windows, most: int) -> list[int]:
    """So many windows, evenly spread, or as many as there are."""
    numbers = torch.linspace(0, len(windows) - 1, min(most, len(windows))).round().long()
    return [int(number) for number in numbers.unique()]


@torch.no_grad()
def _answer(source: Operator, few: Window) -> Tensor:
    """The source's forecast of a few windows; another shape or NaN is refused."""
    forecast: Tensor = devices.answer(source, few.history)
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


def _device(config: OwnConfig, source: Operator, few: Window, forecast: Tensor) -> Finding:
    """Move the source to where the run computes; it must answer there as on the CPU."""
    device = devices.choose(config.adapt.device)
    where = f"Computes on {devices.describe(device)}"
    if device == devices.CPU:
        return Finding("ok", "device", f"{where}.")
    there = _answer(devices.moved(source, device), few)
    apart = float((there - forecast).abs().max() / forecast.abs().max().clamp_min(1e-30))
    text = f"{where}, where the source answers as on the CPU to {apart:.1e} of the largest value"
    if apart <= SAME_ANSWER:
        return Finding("ok", "device", f"{text}.")
    return Finding("warn", "device", f"{text}. Compare scores with `--device cpu`.")


@torch.no_grad()
def _batch_free(source: Operator, few: Window) -> Finding:
    together = devices.answer(source, few.history)[:1]
    apart = float((devices.answer(source, few.history[:1]) - together).abs().max())
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
    """Whether forecasts vary about as much as the measurements do."""
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
    """Whether the source beats repeating the last frame."""
    fields = windows.fields
    still = Persistence.of(fields)(few.history)
    rmse = Rmse(fields.measured)
    rmse.begin(range(len(forecast)), few)
    for name, answer in (("source", forecast), ("still", still)):
        rmse.forecast(name, answer)
    ours, theirs = rmse.compute().values()
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
def _other_layouts(source: WrappedOperator, fit: Windows) -> Finding:
    """Several layouts can fit by shape; the one that was trained with forecasts best."""
    declared = str(source.layout)
    others = [name for name in fitting_layouts(source) if name != declared]
    if not others:
        return Finding("ok", "layout", f"{declared!r}; no other layout fits by shape.")
    numbers = _judged(source, fit, len(others) + 1)
    rmse, few = Rmse(fit.fields.measured), Chosen(fit, numbers)
    layouts = {
        name: wrap(source.network, name, source.fields, **source.arguments)
        for name in (declared, *others)
    }
    score(layouts, few, [rmse], batch_size=_LOOK)
    errors = rmse.compute()
    shown = ", ".join(f"{name!r} {error:.4g}" for name, error in errors.items())
    text = f"RMSE over {len(numbers)} of {len(fit)} windows of the fit split: {shown}"
    best = min(errors, key=lambda name: errors[name])
    if errors[best] < errors[declared] * (1 - 1e-6):  # more than rounding
        return Finding(
            "warn",
            "layout",
            f"Layout {best!r} fits as well and gives RMSE {errors[best]:.4g} instead of "
            f"{errors[declared]:.4g} with {declared!r}. Declare it if the network was trained so. "
            f"{text}.",
        )
    return Finding(
        "ok", "layout", f"{declared!r}; no other layout that fits forecasts better. {text}."
    )


def _judged(source: Operator, fit: Windows, layouts: int) -> list[int]:
    """The windows of the fit split, or as many, evenly spread, as take half a minute."""
    history = fit[0].history[None]
    begun = time.perf_counter()
    devices.answer(source, history)
    each = max(time.perf_counter() - begun, 1e-9)
    return _spread_over(fit, max(int(_JUDGING / (layouts * each)), _LOOK))


def _spread(field: Tensor, few: Window, channel: int) -> Tensor:
    """Standard deviation of a channel where it was measured."""
    values = field[..., channel]
    known = values if few.mask is None else values[few.mask[..., channel]]
    return known.double().std().clamp_min(1e-30)
