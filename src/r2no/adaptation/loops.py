"""RepairLoops: the repair loops of all members, in physical units, one iterate at a time.

One pass over the data feeds every consumer (Gram sums, depth errors, readouts), so no iterate is
computed twice and none is kept longer than it is needed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from r2no import devices, ranks
from r2no._repr import brief_repr
from r2no._types import Number
from r2no.adaptation.groups import INSTANT, ColumnGroup, Instant, group_forecasts
from r2no.data.normalise import Normaliser
from r2no.data.window import Window, Windows, gather, on_every_batch
from r2no.ensemble import ColumnSpectra, DepthErrors, GramAccumulator, GramSums
from r2no.progress import SILENT, Reporter
from r2no.repair_loop import RepairUNet, repair_steps
from r2no.spectral import FourierCells
from r2no.training import SourceCache, Split

#: What a loop may start from, for settings and for people.
STARTS = {"source": "source", INSTANT: "instant forecast"}


@dataclass(frozen=True, eq=False)
class RepairLoops:
    """M repair loops from one source (M3), or from a forecast composed with it (M16).

    Attributes:
        modules: The trained Φ_θ of each member.
        of_history: Normaliser of the history.
        of_field: Normaliser of predictions; the loop runs in its units.
        steps: L.
        step_size: α.
        start: Where the loops start, from history and h_0; default h_0.
    """

    modules: tuple[RepairUNet, ...]
    of_history: Normaliser
    of_field: Normaliser
    steps: int
    step_size: float
    start: Callable[[Tensor, Tensor], Tensor] | None = None

    __repr__ = brief_repr

    @property
    def _fast(self) -> tuple[RepairUNet, ...]:
        """The modules with their normalisation folded in; kept until a weight moves or changes."""
        of = [each for m in self.modules for each in (*m.parameters(), *m.buffers())]
        kept, versions, found = self.__dict__.get("_kept", ([], [], ()))
        fast: tuple[RepairUNet, ...] = found
        same = len(of) == len(kept) and all(a is b for a, b in zip(of, kept, strict=True))
        if not same or versions != [tensor._version for tensor in of]:
            fast = tuple(module.folded() for module in self.modules)
            # at once, since another thread may look
            self.__dict__["_kept"] = (of, [tensor._version for tensor in of], fast)
        return fast

    def to(self, device: torch.device) -> "RepairLoops":
        """The loops with their modules on ``device``, moved in place."""
        for module in self.modules:
            module.to(device)
        return replace(
            self, of_history=self.of_history.to(device), of_field=self.of_field.to(device)
        )

    def first(self, history: Tensor, source: Tensor) -> Tensor:
        """Depth 0 of every loop, physical units."""
        return source if self.start is None else self.start(history, source)

    def __call__(
        self, history: Tensor, first: Tensor, last: Mapping[int, int] | None = None
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Yield (member, depth, iterate) for depths 1..L of each member in turn, physical units.

        ``first`` is their depth 0. With ``last``, each member goes no further than the depth
        given there, 0 by default.
        Iterates of fields far from zero come in float64, for the difference from the source.
        """
        normal_history, start = self.of_history(history), self.of_field(first)
        fast, back = self._fast, first.device
        if fast and (device := devices.of(fast[0])) is not None:
            normal_history, start = normal_history.to(device), start.to(device)
        for member, module in enumerate(fast):
            steps = self.steps if last is None else last.get(member, 0)
            if not steps:
                continue
            loop = repair_steps(
                module, normal_history, start, steps=steps, step_size=self.step_size
            )
            for depth, iterate in enumerate(loop):
                if depth > 0:
                    yield member, depth, self.of_field.inverse_for_differences(iterate.to(back))


@torch.no_grad()
def gather_sums(
    loops: RepairLoops,
    groups: Sequence[ColumnGroup],
    split: Split,
    accumulator: GramAccumulator,
    *,
    group: Tensor,
    batch_size: int,
    title: str = "fitting",
    reporter: Reporter = SILENT,
) -> tuple[dict[Number, GramSums], DepthErrors]:
    """One pass over a split: Gram sums by group (M6), and errors by depth and band (M9).

    The sums are for each exponent of the window weight.
    """
    windows, cache = split
    fields = windows.fields
    errors = DepthErrors.empty(
        FourierCells.bands(fields.grid),
        members=len(loops.modules),
        steps=loops.steps,
        measured=fields.measured,
    )

    def add(numbers: range, window: Window) -> None:
        source = cache[numbers].to(window.target.device)
        part = accumulator.begin(source, window.target, window.mask)
        for label, forecast in group_forecasts(groups, window.history, source):
            part.put(label, forecast)
        _roll_out(loops, window, source, part, errors)
        accumulator.add(group[list(numbers)])

    on_every_batch(add, windows, batch_size=batch_size, title=title, reporter=reporter)
    counted = torch.tensor([errors.windows])
    totals = accumulator.collected()
    errors.collect()
    sums = [part for total in totals.values() for part in (total.moments, total.windows)]
    ranks.add_up(*sums, errors.squared, counted)
    errors.windows, errors.frames = int(counted), max(ranks.everyones(errors.frames))
    return totals, errors


def _roll_out(
    loops: RepairLoops,
    window: Window,
    source: Tensor,
    spectra: ColumnSpectra,
    errors: DepthErrors,
) -> None:
    """Run the loops on a batch, adding columns and errors by depth as iterates appear."""
    errors.begin(window.target)
    if not loops.modules:
        return
    first = loops.first(window.history, source)
    for member in range(len(loops.modules)):
        errors.add(member, 0, first, window.target, window.mask)
    for member, depth, iterate in loops(window.history, first):
        spectra.add(member, depth, iterate)
        errors.add(member, depth, iterate, window.target, window.mask)


class StartCache(SourceCache):
    """Starts of the windows of a split, composed from the source's cached forecasts when read."""

    def __init__(self, start: Instant, windows: Windows, cache: SourceCache) -> None:
        super().__init__(cache.path.with_stem(f"{cache.path.stem}-{start.key}"))  # no file
        self._start, self._windows, self._cache = start, windows, cache

    def __getitem__(self, numbers: list[int] | range) -> Tensor:
        """Where the loops of the windows with these numbers start."""
        history = gather(self._windows, numbers).history
        return self._start(history, self._cache[numbers])
