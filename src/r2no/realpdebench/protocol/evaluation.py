"""Scores of operators on RealPDEBench: single pass or autoregressive roll-out, in one stream.

With (mᵢ, sᵢ) the statistics of histories and (mₜ, sₜ) those of targets, the benchmark scores the
forecast f as ((f - mᵢ)/sᵢ) sₜ + mₜ; the clean value is f itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from r2no import devices
from r2no._types import Operator
from r2no.checks import choice
from r2no.data.normalise import Normaliser
from r2no.data.window import Window
from r2no.errors import ConfigError, DataError, ShapeError
from r2no.metrics import probe_error
from r2no.progress import SILENT, Reporter
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.scoring import Metrics, NormalisedError, Observer, Watch, score

#: Up to so many blocks the benchmark scores the whole set at once, above in metric batches.
WHOLE_SET_BLOCKS = 4


def roll_out(
    operator: Operator,
    history: Float[Tensor, "batch time height width history_channel"],
    *,
    blocks: int,
    channels: int,
) -> Float[Tensor, "batch {blocks}*time height width {channels}"]:
    """Forecast ``blocks`` times, each from the block before, in physical units.

    All channels of a block, unmeasured ones included, become the next history; the conditioning
    channels of the first history are appended again each time.
    """
    conditioning, forecasts = history[..., channels:], []
    for _ in range(blocks):
        forecast = devices.answer(operator, history)
        if blocks > 1 and forecast.shape[1] != history.shape[1]:
            raise ShapeError(
                f"A roll-out needs forecasts as long as the history, {history.shape[1]} frames, "
                f"but the operator gives {forecast.shape[1]}. Use `autoregressive=1`."
            )
        forecasts.append(forecast)
        history = torch.cat([forecast, conditioning], dim=-1)
    return torch.cat(forecasts, dim=1)


class Remembered(nn.Module):
    """An operator that answers the same history, by identity, once."""

    def __init__(self, operator: nn.Module) -> None:
        super().__init__()
        self._operator = operator
        self._last: tuple[Tensor, Tensor] | None = None

    def forward(self, history: Tensor) -> Tensor:
        """The operator's forecast."""
        if self._last is None or self._last[0] is not history:
            self._last = history, self._operator(history)
        return self._last[1]


@dataclass(frozen=True)
class Protocol:
    """How forecasts are scored.

    ``compat="benchmark"`` takes its scored value (see the module) and, for more than four blocks,
    its metric batches; it needs the normalisers of history and target. ``probes`` adds the mean
    velocity profile error behind the body (:func:`r2no.metrics.probe_error`).
    """

    batch_size: int = 16
    compat: Literal["benchmark"] | None = None
    normalisers: tuple[Normaliser, Normaliser] | None = field(default=None, repr=False)
    probes: bool = False

    def __post_init__(self) -> None:
        if self.compat is not None:
            choice("compat", self.compat, ("benchmark",))
            if self.normalisers is None:
                raise ShapeError("`compat='benchmark'` needs `normalisers` of history and target.")

    def metric_batch(self, blocks: int) -> int | None:
        """Windows per metric batch, None for the whole set."""
        return self.batch_size if self.compat and blocks > WHOLE_SET_BLOCKS else None

    def scored(self, forecast: Tensor) -> Tensor:
        """What is compared with the target."""
        if self.compat is None or self.normalisers is None:
            return forecast
        of_history, of_target = self.normalisers
        return of_target.inverse(of_history(forecast))


class MeasuredChannels(Observer):
    """Which channels of the targets are not zero everywhere; :meth:`check` holds them to it."""

    sums = ("_seen",)

    def __init__(self, windows: RealPDEBench) -> None:
        self._windows = windows
        self._seen = torch.zeros(len(windows.fields.channels), dtype=torch.bool)

    def begin(self, numbers: range, window: Window) -> None:
        """Look at the batch."""
        self._seen = self._seen.to(window.target.device)
        self._seen |= window.target.flatten(0, -2).ne(0).any(0)

    def check(self) -> None:
        """Compare with the declared channels.

        Raises:
            DataError: if a measured channel holds zeros only, or another one holds values.
        """
        windows, fields = self._windows, self._windows.fields
        self._seen = self._seen.cpu()
        dead = [fields.channels[c] for c in fields.measured if not self._seen[c]]
        others = [
            name
            for channel, name in enumerate(fields.channels)
            if channel not in fields.measured and self._seen[channel]
        ]
        if dead:
            raise DataError(
                f"`{windows.system.name}` measures {', '.join(dead)}, but the {windows.split} "
                "split holds zeros only there. Fetch the data again."
            )
        if others and windows.kind == "real":
            raise DataError(
                f"`{windows.system.name}` does not measure {', '.join(others)}, but the real "
                f"{windows.split} split holds values there. Declare them as measured, or correct "
                "the data."
            )


class ProbeErrors(Observer):
    """Mean velocity profile error of each forecast, by station."""

    sums = ("_stations", "_sizes")

    def __init__(self, windows: RealPDEBench, protocol: Protocol) -> None:
        self._system, self._protocol = windows.system, protocol
        self._measured = list(windows.fields.measured)
        self._stations: dict[str, list[Tensor]] = {}  # of each batch
        self._sizes: list[int] = []  # of the batches
        if self._system.body is None:
            raise ConfigError(
                f"`probes` need a body in the flow, but `{self._system.name}` has none."
            )

    def begin(self, numbers: range, window: Window) -> None:
        """Note the batch's size."""
        super().begin(numbers, window)
        self._sizes.append(len(numbers))

    def forecast(self, name: str, forecast: Tensor) -> None:
        """Add the batch's errors; the benchmark compares the unmeasured channels too."""
        assert self._system.body is not None
        chosen = slice(None) if self._protocol.compat else self._measured
        errors = probe_error(
            self._protocol.scored(forecast)[..., chosen],
            self.window.target[..., chosen],
            diameter=self._system.body.diameter,
            center=self._system.body.center,
            stride=self._system.stride[0],
            compat=self._protocol.compat,
        )
        self._stations.setdefault(name, []).append(errors)

    def compute(self) -> dict[str, dict[str, float]]:
        """``mvpe`` and that of each station, by name."""
        sizes = torch.tensor(self._sizes, dtype=torch.float64)
        weights = torch.ones_like(sizes) if self._protocol.compat else sizes
        found = {}
        for name, batches in self._stations.items():
            stations = weights @ torch.stack(batches).cpu() / weights.sum()
            found[name] = {"mvpe": float(stations.mean())} | {
                f"mvpe_station{i + 1}": float(value) for i, value in enumerate(stations)
            }
        return found


def score_operators(
    operators: Mapping[str, Operator],
    windows: RealPDEBench,
    protocol: Protocol,
    *,
    device: torch.device = devices.CPU,
    reporter: Reporter = SILENT,
) -> dict[str, dict[str, float]]:
    """Every metric of each operator, by name, over the measured channels, in one pass.

    ``normalised_mse``, where the protocol has normalisers, is the mean over batches without
    weights; so is ``mvpe`` with ``compat="benchmark"``, else it is over windows. The number of
    blocks is that of ``windows``.

    Raises:
        ConfigError: if ``probes`` are asked for where there is no body.
        DataError: if the data contradict which channels the system measures.
    """
    blocks, measured = windows.autoregressive, windows.fields.measured
    piece, scored = protocol.metric_batch(blocks), protocol.scored
    metrics = Metrics(measured, scored=scored, metric_batch=piece)
    channels = MeasuredChannels(windows)
    normal = probes = None
    if protocol.normalisers is not None:
        normal = NormalisedError(measured, protocol.normalisers[1], scored=scored)
    if protocol.probes:
        probes = ProbeErrors(windows, protocol)

    def forecasts(numbers: range, window: Window, watch: Watch) -> Iterator[tuple[str, Tensor]]:
        for name, operator in operators.items():
            channels = len(windows.fields.channels)
            yield name, roll_out(operator, window.history, blocks=blocks, channels=channels)

    score(
        forecasts,
        windows,
        [one for one in (channels, metrics, normal, probes) if one is not None],
        batch_size=protocol.batch_size,
        device=device,
        title=f"scoring on {windows.split}",
        reporter=reporter,
    )
    channels.check()
    found = metrics.compute()
    for name, value in ({} if normal is None else normal.compute()).items():
        found[name]["normalised_mse"] = value
    for name, values in ({} if probes is None else probes.compute()).items():
        found[name] |= values
    return found
