"""Adapting within a time: the instant model first, then repair modules that fit what is left.

Each model that is better on held-out blocks replaces the one before, so stopping at any moment
leaves the best so far, and the end is never worse than the instant model.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2no import storage
from r2no._types import Number
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.costs import Step, timed
from r2no.adaptation.model import AdaptedModel
from r2no.data.normalise import Normaliser
from r2no.data.window import Windows, gather
from r2no.progress import Reporter
from r2no.settings import changed

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
    """What fits the time: modules, their width, and updates of each."""

    members: int
    width: int
    updates: int

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
    improved: Callable[[AdaptedModel], Any],
    work: Path,
    reporter: Reporter,
) -> AdaptedModel:
    """The best model by held-out error that ``seconds`` allow; ``improved`` sees each better one.

    The size is chosen by timing steps on this machine and kept in ``work``, so that a run that was
    stopped goes on with it.
    """
    start = time.monotonic()
    best = adapt(changed(settings, members=0))
    improved(best)
    size = _chosen(seconds - (time.monotonic() - start), settings, train, work)
    if size is None:
        reporter.say("No time is left for repair modules: the instant model it is.")
        return best
    reporter.say(
        f"{size.members} repair module(s) of width {size.width}, {size.updates} steps each, fit "
        "the time that is left."
    )
    for members in range(1, size.members + 1):
        if members > 1 and time.monotonic() - start > seconds:
            reporter.say(f"The time is over after {members - 1} module(s).")
            break
        model = adapt(changed(size.settings(settings), members=members))
        if held_out_error(model) < held_out_error(best):
            best = model
            improved(best)
    return best


def held_out_error(model: AdaptedModel) -> float:
    """Held-out error of what the model deploys: its composition, or what the verdict keeps."""
    nested = model.ensemble.nested
    if nested is None:
        return model.ensemble.held_out_score
    if nested.verdict.deploy:
        return float((nested.before - nested.gains).sum())
    return float(nested.rivals.get(nested.best_rival, nested.before).sum())


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
        members = min(max(settings.members, 1), max(updates // (2 * _LEAST), 1))
        each = min(updates // members, _MOST)
        if each >= _LEAST or (width == widths[-1] and each >= _LEAST // 3):
            return Size(members, width, each)
    return None


def step_seconds(settings: AdaptSettings, train: Windows) -> float:
    """Seconds of one training step on this machine, after one that warms up."""
    size = min(settings.repair.train.batch_size, len(train))
    window = gather(train, range(size))
    statistics = (Normaliser.gaussian([window.history]), Normaliser.gaussian([window.target]))
    step = Step(lambda: window, window.target, statistics, settings, train.fields)
    return timed(step)[1]
