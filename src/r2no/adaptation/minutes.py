"""Adapting within a time: the instant model first, then repair modules that fit what is left.

Each model that is better on held-out blocks replaces the one before, so stopping at any moment
leaves the best so far, and the end is never worse than the instant model.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from r2no import ranks, storage
from r2no._types import Number
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.costs import Step, timed
from r2no.adaptation.model import AdaptedModel
from r2no.checks import changed
from r2no.data.normalise import Normaliser
from r2no.data.window import Windows, gather
from r2no.progress import Reporter

#: Spent where nothing says how much to train.
DEFAULT_MINUTES = 10.0
#: Widths of the repair module, largest first, down to the smallest that is worth a try.
_WIDTHS = (32, 16, 8)
#: Updates below which a wider module is not worth its cost, and those that one member gets at most.
_LEAST, _MOST = 150, 1200
#: Share of the time that goes into training; the rest is for validation, fitting and saving.
_TRAINING = 0.6

#: Adapts with given settings; what :func:`r2no.adapt` does without a limit.
Adapt = Callable[[AdaptSettings], AdaptedModel]


@dataclass(frozen=True)
class Size:
    """What fits the time: modules, their width, updates of each, and whether both starts do."""

    members: int
    width: int
    updates: int
    both: bool = False

    def settings(self, settings: AdaptSettings) -> AdaptSettings:
        """The settings with modules of this size."""
        train = changed(
            settings.repair.train,
            epochs=None,
            updates=self.updates,
            validations=4,
            lr=2e-3,
            schedule="cosine_update",
        )
        repair = changed(settings.repair, width=self.width, train=train)
        return changed(settings, members=self.members, repair=repair)


def adapt_within(
    seconds: Number,
    settings: AdaptSettings,
    train: Windows,
    *,
    adapt: Adapt,
    starts: Callable[[AdaptSettings], Sequence[str]],
    improved: Callable[[AdaptedModel], Any],
    work: Path,
    reporter: Reporter,
) -> AdaptedModel:
    """The best model by held-out error that ``seconds`` allow; ``improved`` sees each better one.

    The size is chosen by timing steps on this machine and kept in ``work``, so that a run that was
    stopped goes on with it.
    """
    start = time.monotonic()
    settings = settings.within_reach(train.fields.grid, len(train))
    best = adapt(changed(settings, members=0))
    improved(best)
    left = seconds - (time.monotonic() - start)
    size = ranks.agreed(_chosen(left, settings, train, work))
    if size is None:
        reporter.say(
            f"The {max(left, 0):.0f} s that are left are too few to train a repair module on this "
            "machine: the instant model it is."
        )
        return best
    reporter.say(
        f"{size.members} repair module(s) of width {size.width}, {size.updates} steps each, fit "
        "the time that is left."
    )
    errors: dict[str, float] = {}
    tried = starts(settings) if size.both else ("source",)
    for members, first in _trials(size.members, tried, errors):
        over: bool = ranks.agreed(time.monotonic() - start > seconds)
        if errors and over:
            reporter.say(f"The time is over after {max(members - 1, 1)} module(s).")
            break
        model = adapt(size.settings(settings).trial(first, members))
        errors.setdefault(first, held_out_error(model))
        if held_out_error(model) < held_out_error(best):
            best = replace(model, provenance={**model.provenance, "starts": dict(errors)})
            improved(best)
    return best


def _trials(
    members: int, starts: Sequence[str], errors: Mapping[str, float]
) -> Iterator[tuple[int, str]]:
    """Numbers of modules and starts of their loops: one for each start, more of the better."""
    for start in starts:
        yield 1, start
    for number in range(2, members + 1):
        yield number, min(errors, key=errors.__getitem__)


def held_out_error(model: AdaptedModel) -> float:
    """Held-out RMSE of what the model deploys, its composition or what the verdict keeps.

    Relative to the source's, and as the windows are weighted in the fit.
    """
    nested = model.ensemble.nested
    if nested is None:
        return model.ensemble.held_out_score
    verdict = nested.verdict
    after = nested.rivals.get(verdict.kept, nested.before)
    if verdict.deploy:
        after = nested.before - nested.gains
    return float((after.sum() / nested.before.sum()).clamp_min(0).sqrt())


def _chosen(left: Number, settings: AdaptSettings, train: Windows, work: Path) -> Size | None:
    """The size of an earlier start, or what fits the time that is left."""
    path = work / "minutes.json"
    if path.is_file():
        return Size(**storage.read_json(path))
    size = fitting(left, settings, train)
    if size is not None:
        storage.write_json(path, size.__dict__)
    return size


def fitting(left: Number, settings: AdaptSettings, train: Windows) -> Size | None:
    """The widest modules of which enough updates fit into ``left`` seconds; ``None`` if none do."""
    most = settings.repair.width
    widths = [width for width in _WIDTHS if width <= most] or [most]
    for width in widths:
        tried = changed(settings, repair=changed(settings.repair, width=width))
        updates = int(_TRAINING * left / step_seconds(tried, train))
        trained = min(max(settings.members, 1) + 1, max(updates // (2 * _LEAST), 1))
        each = min(updates // trained, _MOST)
        if each >= _LEAST or (width == widths[-1] and each >= _LEAST // 3):
            return Size(max(trained - 1, 1), width, each, both=trained > 1)
    return None


def step_seconds(settings: AdaptSettings, train: Windows) -> float:
    """Seconds of one training step on this machine, after one that warms up."""
    size = min(settings.repair.train.batch_size, len(train))
    window = gather(train, range(size))
    statistics = (Normaliser.gaussian([window.history]), Normaliser.gaussian([window.target]))
    step = Step(lambda: window, window.target, statistics, settings, train.fields)
    return timed(step)[1]
