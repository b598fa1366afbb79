"""Scores of operators on RealPDEBench: single pass or autoregressive roll-out, in one stream.

With (mᵢ, sᵢ) the statistics of histories and (mₜ, sₜ) those of targets, the benchmark scores the
forecast f as ((f - mᵢ)/sᵢ) sₜ + mₜ; the clean value is f itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from r2no._types import Operator
from r2no.data.normalise import Normaliser
from r2no.data.window import batches
from r2no.errors import ConfigError, DataError, ShapeError
from r2no.metrics import Accumulator, MetricBatches, probe_error
from r2no.progress import Reporter
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.systems import choice

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
        forecast = operator(history)
        if blocks > 1 and forecast.shape[1] != history.shape[1]:
            raise ShapeError(
                f"A roll-out needs forecasts as long as the history, {history.shape[1]} frames, "
                f"but the operator gives {forecast.shape[1]}. Use `autoregressive=1`."
            )
        forecasts.append(forecast)
        history = torch.cat([forecast, conditioning], dim=-1)
    return torch.cat(forecasts, dim=1)


class Remembered:
    """An operator that answers the same history, by identity, once."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, history: Tensor) -> Tensor:
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


class _Tally:
    """The scores of one operator so far."""

    def __init__(self, windows: RealPDEBench, protocol: Protocol) -> None:
        self._protocol, self._system = protocol, windows.system
        self._measured = measured = windows.fields.measured
        piece = protocol.metric_batch(windows.autoregressive)
        self._scores = Accumulator(measured) if piece is None else MetricBatches(measured, piece)
        self._losses: list[float] = []  # of each batch, in normalised units
        self._stations: list[Tensor] = []  # probe errors of each batch
        self._sizes: list[int] = []  # of the batches
        if protocol.probes and self._system.body is None:
            raise ConfigError(
                f"`probes` need a body in the flow, but `{self._system.name}` has none."
            )

    def add(self, forecast: Tensor, target: Tensor) -> None:
        scored, measured = self._protocol.scored(forecast), list(self._measured)
        self._scores.update(scored, target)
        self._sizes.append(len(target))
        if self._protocol.normalisers is not None:
            of_target = self._protocol.normalisers[1]
            error = (of_target(scored) - of_target(target))[..., measured]
            self._losses.append(float(error.square().mean()))
        if self._protocol.probes:
            self._stations.append(self._probe_errors(scored, target))

    def _probe_errors(self, scored: Tensor, target: Tensor) -> Tensor:
        """By station; the benchmark compares the unmeasured channels too."""
        assert self._system.body is not None
        chosen = slice(None) if self._protocol.compat else list(self._measured)
        return probe_error(
            scored[..., chosen],
            target[..., chosen],
            diameter=self._system.body.diameter,
            center=self._system.body.center,
            stride=self._system.stride[0],
            compat=self._protocol.compat,
        )

    def scores(self) -> dict[str, float]:
        found = self._scores.compute()
        if self._losses:
            found["normalised_mse"] = sum(self._losses) / len(self._losses)
        if self._stations:
            sizes = torch.tensor(self._sizes, dtype=torch.float64)
            weights = torch.ones_like(sizes) if self._protocol.compat else sizes
            stations = weights @ torch.stack(self._stations) / weights.sum()
            found["mvpe"] = float(stations.mean())
            found |= {f"mvpe_station{i + 1}": float(value) for i, value in enumerate(stations)}
        return found


@torch.no_grad()
def score_operators(
    operators: Mapping[str, Operator],
    windows: RealPDEBench,
    protocol: Protocol,
    *,
    reporter: Reporter | None = None,
) -> dict[str, dict[str, float]]:
    """Every metric of each operator, by name, over the measured channels, in one pass.

    ``normalised_mse``, where the protocol has normalisers, is the mean over batches without
    weights; so is ``mvpe`` with ``compat="benchmark"``, else it is over windows. The number of
    blocks is that of ``windows``.

    Raises:
        ConfigError: if ``probes`` are asked for where there is no body.
        DataError: if the data contradict which channels the system measures.
    """
    reporter = reporter or Reporter(quiet=True)
    blocks = windows.autoregressive
    tallies = {name: _Tally(windows, protocol) for name in operators}
    seen = torch.zeros(len(windows.fields.channels), dtype=torch.bool)
    with reporter.step(f"scoring on {windows.split}", len(windows)) as step:
        for numbers, window in batches(windows, protocol.batch_size):
            seen |= window.target.flatten(0, -2).ne(0).any(0)
            for name, operator in operators.items():
                forecast = roll_out(
                    operator, window.history, blocks=blocks, channels=window.target.shape[-1]
                )
                tallies[name].add(forecast, window.target)
            step.advance(len(numbers))
    check_measured(seen, windows)
    return {name: tally.scores() for name, tally in tallies.items()}


def check_measured(seen: Tensor, windows: RealPDEBench) -> None:
    """Compare the declared measured channels with those that are not zero everywhere."""
    fields = windows.fields
    dead = [fields.channels[c] for c in fields.measured if not seen[c]]
    others = [c for c in range(len(fields.channels)) if c not in fields.measured and seen[c]]
    if dead:
        raise DataError(
            f"`{windows.system.name}` measures {', '.join(dead)}, but the {windows.split} split "
            "holds zeros only there. Fetch the data again."
        )
    if others and windows.kind == "real":
        names = ", ".join(fields.channels[c] for c in others)
        raise DataError(
            f"`{windows.system.name}` does not measure {names}, but the real {windows.split} split "
            "holds values there. Declare them as measured, or correct the data."
        )
