"""The one scoring pass: every batch once, every forecast by name, everything else an observer.

Validation, evaluation, demo, own data and benchmark differ in who forecasts and in what is
gathered, not in the loop. A forecaster says what is forecast from a batch; observers see the
iterates and forecasts as they appear and keep sums, so memory does not grow with the split.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from r2no import devices, ranks
from r2no._types import Operator
from r2no.data.normalise import Normaliser
from r2no.data.window import Placed, Window, Windows, on_every_batch
from r2no.ensemble import DepthErrors
from r2no.errors import ConfigError
from r2no.metrics import Accumulator, MetricBatches, Target
from r2no.progress import SILENT, Reporter


class Observer:
    """Sees a pass; what it does not need does nothing.

    ``spectra`` asks the forecaster for the transforms that it makes of the iterates. ``sums`` names
    the attributes that add up over batches, so that several processes can share a pass.
    """

    spectra = False
    sums: tuple[str, ...] = ()
    window: Window  # of the batch under way

    def begin(self, numbers: range, window: Window) -> None:
        """Take the next batch: the numbers of its windows, and the windows."""
        self.window = window

    def iterate(self, member: int, depth: int, field: Tensor, spectrum: Tensor | None) -> None:
        """Take iterate h_ℓ of a member of a roll-out; h_0 comes first, for every member."""

    def forecast(self, name: str, forecast: Tensor) -> None:
        """Take a forecast of the batch."""

    def end(self) -> None:
        """Know that the batch is complete."""


class Watch:
    """The observers of a pass and its clock, as a forecaster meets them.

    ``seconds`` are those of reading data, of the source, of the roll-out, and of ``readouts``:
    all that is made of their answers.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self.spectra = any(observer.spectra for observer in observers)
        self.seconds = dict.fromkeys(("data", "source", "rollout", "readouts"), 0.0)
        self._last = time.perf_counter()

    def charge(self, account: str) -> None:
        """Put the time since the last call on an account."""
        now = time.perf_counter()
        self.seconds[account] += now - self._last
        self._last = now

    def iterate(
        self, member: int, depth: int, field: Tensor, spectrum: Tensor | None = None
    ) -> None:
        """Show an iterate to every observer."""
        for observer in self._observers:
            observer.iterate(member, depth, field, spectrum)


#: From window numbers and batch to forecasts by name; shows its iterates to the watch.
Forecaster = Callable[[range, Window, Watch], Iterable[tuple[str, Tensor]]]


@torch.no_grad()
def score(
    forecasts: Forecaster | Mapping[str, Operator],
    windows: Windows,
    observers: Sequence[Observer],
    *,
    batch_size: int,
    device: torch.device | None = None,
    title: str = "scoring",
    reporter: Reporter = SILENT,
) -> dict[str, float]:
    """Pass once over ``windows`` in order and show every forecast to every observer.

    Several processes share the batches; then every process has the sums of all.

    Args:
        forecasts: Operators by name, or a forecaster for those that share work.
        windows: The split.
        observers: What is gathered; each is shown every batch.
        batch_size: Windows per batch.
        device: Where forecasts are made and scored; default where ``windows`` are.
        title: Shown with the progress.
        reporter: Where progress is shown.

    Returns:
        The seconds of :class:`Watch`.
    """
    forecaster = _each(forecasts) if isinstance(forecasts, Mapping) else forecasts
    watch = Watch(observers)
    check_shareable(observers)
    if device is not None:
        windows = Placed(windows, devices.of_sums(device))

    def show(numbers: range, window: Window) -> None:
        watch.charge("data")
        for observer in observers:
            observer.begin(numbers, window)
        for name, forecast in forecaster(numbers, window, watch):
            for observer in observers:
                observer.forecast(name, forecast)
        for observer in observers:
            observer.end()
        watch.charge("readouts")

    on_every_batch(show, windows, batch_size=batch_size, title=title, reporter=reporter)
    for observer in observers:
        _add_up(observer)
    return watch.seconds


def check_shareable(observers: Sequence[Observer]) -> None:
    """Refuse observers that several processes cannot add up.

    Raises:
        ConfigError: if one names no ``sums``.
    """
    unknown = [type(one).__name__ for one in observers if not one.sums]
    if unknown and ranks.world_size() > 1:
        raise ConfigError(
            f"`{unknown[0]}` names no `sums`, so several processes cannot share the pass. List the "
            "attributes that add up over batches, or run in one process."
        )


def _add_up(observer: Observer) -> None:
    """Give the observer the sums of all processes."""
    if ranks.world_size() == 1:
        return
    parts = ranks.everyones([getattr(observer, name) for name in observer.sums])
    for name, *values in zip(observer.sums, *parts, strict=True):
        setattr(observer, name, functools.reduce(_together, values))


def _together(first: Any, second: Any) -> Any:
    """Two sums as one: dictionaries by key, lists joined, what can be merged merged."""
    if isinstance(first, dict):
        known = {k: _together(v, second[k]) if k in second else v for k, v in first.items()}
        return {**second, **known}
    if isinstance(first, Tensor) and first.dtype == torch.bool:
        return first | second
    return first.merge(second) if hasattr(first, "merge") else first + second


def _each(operators: Mapping[str, Operator]) -> Forecaster:
    def forecasts(numbers: range, window: Window, watch: Watch) -> Iterator[tuple[str, Tensor]]:
        for name, operator in operators.items():
            yield name, devices.answer(operator, window.history)

    return forecasts


def _as_it_is(forecast: Tensor) -> Tensor:
    return forecast


class Metrics(Observer):
    """All metrics of every forecast over the measured channels.

    Args:
        measured: The scored channels.
        scored: What of a forecast is compared with the target; default the forecast.
        metric_batch: Windows per piece of the benchmark's averaging; default the whole set.
    """

    sums = ("_sums",)

    def __init__(
        self,
        measured: tuple[int, ...],
        *,
        scored: Callable[[Tensor], Tensor] = _as_it_is,
        metric_batch: int | None = None,
    ) -> None:
        self._measured, self._scored, self._piece = measured, scored, metric_batch
        self._sums: dict[str, Accumulator | MetricBatches] = {}

    def begin(self, numbers: range, window: Window) -> None:
        """Hold every forecast of the batch against one target, transformed once."""
        super().begin(numbers, window)
        self._target = Target(window.target, window.mask, measured=self._measured)

    def forecast(self, name: str, forecast: Tensor) -> None:
        """Add a forecast to the sums of its name."""
        if name not in self._sums:
            self._sums[name] = (
                Accumulator(self._measured)
                if self._piece is None
                else MetricBatches(self._measured, self._piece)
            )
        self._sums[name].update(self._scored(forecast), self._target)

    def compute(self) -> dict[str, dict[str, float]]:
        """The scores by name, in the order of the forecasts."""
        return {name: sums.compute() for name, sums in self._sums.items()}


class NormalisedError(Observer):
    """Mean over batches, without weights, of the mean squared error in normalised units."""

    sums = ("_losses",)

    def __init__(
        self,
        measured: tuple[int, ...],
        normaliser: Normaliser,
        *,
        scored: Callable[[Tensor], Tensor] = _as_it_is,
    ) -> None:
        self._measured, self._normaliser, self._scored = list(measured), normaliser, scored
        self._losses: dict[str, list[Tensor]] = {}

    def forecast(self, name: str, forecast: Tensor) -> None:
        """Add the batch's error."""
        target = self._normaliser(self.window.target)
        error = (self._normaliser(self._scored(forecast)) - target)[..., self._measured]
        loss = mean_square(error, self.window, self._measured)
        self._losses.setdefault(name, []).append(loss)

    def compute(self) -> dict[str, float]:
        """The means by name."""
        return {name: _total(losses) / len(losses) for name, losses in self._losses.items()}


def _total(parts: Sequence[Tensor]) -> float:
    """The sum of the numbers of all batches, in their order.

    They are read at the end, since reading one waits for a GPU.
    """
    total = 0.0
    for part in torch.stack(list(parts)).tolist() if parts else ():
        total += part
    return total


def mean_square(error: Tensor, window: Window, channels: list[int]) -> Tensor:
    """Mean square over the points that were measured; ``error`` is of these channels."""
    known = None if window.mask is None else window.mask[..., channels]
    count = ranks.fair_count(known, error)
    squares = (error if known is None else torch.where(known, error, 0)).square()
    return squares.mean() if count is None else squares.sum() / count


class Rmse(Observer):
    """RMSE over the measured points alone: cheap enough for every validation."""

    sums = ("_squared", "_points")

    def __init__(self, measured: tuple[int, ...]) -> None:
        self._measured = list(measured)
        self._squared: dict[str, list[Tensor]] = {}
        self._points: list[Tensor] = []

    def begin(self, numbers: range, window: Window) -> None:
        """Count the points of the batch."""
        super().begin(numbers, window)
        target, mask = window.target[..., self._measured], window.mask
        whole = target.new_full((), target.numel(), dtype=torch.int64)
        self._points.append(whole if mask is None else mask[..., self._measured].sum())

    def forecast(self, name: str, forecast: Tensor) -> None:
        """Add the squares of the batch's errors."""
        error = (forecast - self.window.target)[..., self._measured]
        if self.window.mask is not None:
            error = torch.where(self.window.mask[..., self._measured], error, 0)
        self._squared.setdefault(name, []).append(error.double().square().sum())

    def compute(self) -> dict[str, float]:
        """The RMSE by name."""
        points = max(_total(self._points), 1)
        return {name: (_total(parts) / points) ** 0.5 for name, parts in self._squared.items()}


class Depths(Observer):
    """Errors by member, depth and band of a roll-out (M9)."""

    sums = ("errors",)

    def __init__(self, errors: DepthErrors) -> None:
        self.errors = errors

    def begin(self, numbers: range, window: Window) -> None:
        """Count the windows."""
        super().begin(numbers, window)
        self.errors.begin(window.target)

    def iterate(self, member: int, depth: int, field: Tensor, spectrum: Tensor | None) -> None:
        """Add the errors of the iterate."""
        self.errors.add(member, depth, field, self.window.target, self.window.mask)


class Sample(Observer):
    """Target and chosen forecasts of one window, for pictures; NaN where nothing was measured.

    Args:
        names: The forecasts.
        number: The window.
    """

    sums = ("fields",)

    def __init__(self, names: Iterable[str], number: int) -> None:
        self.names, self.number = set(names), number
        self.fields: dict[str, Tensor] = {}
        self._place: int | None = None

    def merge(self, other: "Sample") -> "Sample":
        """The window's fields, whoever has them."""
        self.fields = self.fields or other.fields
        return self

    def begin(self, numbers: range, window: Window) -> None:
        """Keep the target, and note where in the batch the window is."""
        super().begin(numbers, window)
        self._place = self.number - numbers.start if self.number in numbers else None
        if self._place is not None:
            target, mask = window.target[self._place], window.mask
            if mask is not None:
                target = torch.where(mask[self._place], target, torch.nan)
            self.fields["target"] = target.cpu().clone()

    def forecast(self, name: str, forecast: Tensor) -> None:
        """Keep the window of a chosen forecast."""
        if self._place is not None and name in self.names:
            self.fields[name] = forecast[self._place].cpu().clone()
