"""Task: what an adaptation does with source, data and work folder, step by step."""

import contextlib
import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2no import devices, ranks
from r2no._types import Operator, PathLike
from r2no.adaptation.calibrating import calibrated
from r2no.adaptation.carrying import carried, other_recordings, say_whose
from r2no.adaptation.columns import free_groups
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.fitting import can_part, fit_ensemble, held_out_blocks
from r2no.adaptation.groups import INSTANT, ColumnGroup, Instant
from r2no.adaptation.loops import STARTS, RepairLoops, StartCache
from r2no.adaptation.minutes import adapt_within, held_out_error
from r2no.adaptation.model import AdaptedModel, versions
from r2no.checks import changed
from r2no.data.ahead import prepare
from r2no.data.audit import apart
from r2no.data.normalise import Normaliser, fit_normalisers
from r2no.data.window import Fields, Placed, Windows, batches
from r2no.ensemble.nested import ALL_OF_IT, Carried, few_recordings
from r2no.errors import ConfigError, FingerprintError
from r2no.progress import Reporter
from r2no.repair_loop import RepairUNet
from r2no.training import (
    SourceCache,
    Split,
    asked,
    cached_source,
    operator_identity,
    same_answer,
    side_by_side,
    train_repair,
)
from r2no.training.source_cache import bound_cache


@contextlib.contextmanager
def workplace(folder: PathLike | None = None) -> Iterator[Path]:
    """The folder given, or a temporary one; the same for all processes."""
    with contextlib.ExitStack() as stack:
        if folder is None and ranks.is_main():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="r2no-"))
        work = Path(ranks.agreed(folder or ""))
        if folder is None and not work.is_dir():
            raise ConfigError(
                f"`folder` must be given where processes run on several machines: `{work}` of the "
                "first one is not here. Name a folder on a file system that all of them see."
            )
        yield work
        ranks.barrier()  # before it is removed


class Task:
    """Source, data and work folder of an adaptation, which may be made with several settings."""

    def __init__(
        self,
        source: Operator,
        train: Windows,
        fit: Windows,
        further: Sequence[ColumnGroup],
        normalisers: tuple[Normaliser, Normaliser] | None,
        work: Path,
        reporter: Reporter,
        device: torch.device,
    ) -> None:
        self._device, self._of_sums = device, devices.of_sums(device)
        for operator in (source, *(getattr(group, "operator", None) for group in further)):
            devices.moved(operator, device)
        self._source, self._train, self._fit, self._further = source, train, fit, further
        self._splits = {"train": train, "fit": fit}
        self._given, self._work, self._reporter = normalisers, work, reporter
        probe = next(iter(batches(train, 1)))[1].history
        self._frozen = _Frozen(source, probe, train.fields.target_shape)
        self._groups: tuple[ColumnGroup, ...] | None = None
        self._start: Instant | None = None

    def carried_out(
        self, settings: AdaptSettings, improved: Callable[[AdaptedModel], Any] | None = None
    ) -> AdaptedModel:
        """The model, at once or within the minutes; then the cache, cut to what may stay."""
        if settings.members:
            prepare(self._train, settings.repair.train.workers, self._device)
        if settings.ensemble.cells != "published":
            say_whose(self._train, self._fit, self._reporter)
        if settings.minutes is None:
            model = self.adapted(settings)
        else:
            model = adapt_within(
                60 * settings.minutes,
                settings,
                self._train,
                adapt=self.adapted,
                starts=self.starts,
                improved=improved or (lambda model: None),
                work=self._work,
                reporter=self._reporter,
            )
        ranks.barrier()  # others may still read
        if ranks.is_main():
            bound_cache(self._work / "source", settings.cache)
        return model

    def adapted(self, settings: AdaptSettings) -> AdaptedModel:
        """The model of these settings; both starts of the loops are tried if they say so."""
        if settings.repair.start != "held_out" or not settings.members:
            return self._adapted(settings)
        starts = self.starts(settings)
        if len(starts) == 1:
            return self._adapted(settings.trial(starts[0], settings.members))
        # one module stands for all of them, whose budget is not its own
        single = settings if settings.members == 1 else changed(settings, budget=None)
        tried = {start: self._adapted(single.trial(start, 1)) for start in starts}
        errors = {start: held_out_error(model) for start, model in tried.items()}
        start = min(errors, key=errors.__getitem__)
        self._reporter.say(
            f"Held-out RMSE of one module by start, over the source's: {_told(errors)}. Loops "
            f"start from the {STARTS[start]}."
        )
        model = tried[start]
        if settings.members > 1:
            model = self._adapted(settings.trial(start, settings.members))
        return replace(model, provenance={**model.provenance, "starts": errors})

    def starts(self, settings: AdaptSettings) -> tuple[str, ...]:
        """What loops can start from: the source, and more where there is enough to compose."""
        free = bool(self._columns(settings)) and can_part(self._train, settings)
        return tuple(STARTS) if free else ("source",)

    def _adapted(self, settings: AdaptSettings) -> AdaptedModel:
        """Train the members, fit the ensemble, and put the model together."""
        frozen, fit = self._frozen, self._fit
        free, repair = self._columns(settings), settings.repair
        groups, start = free, None
        loops = bare = RepairLoops((), *self._normalisers, repair.steps, repair.step_size)
        if settings.members and repair.start == "instant":
            start = self._instant(settings, bare, free)
            groups = (*free, start)
        if settings.members:
            loops = replace(loops, modules=self._modules(settings, start), start=start)
            loops = loops.to(self._device)
        split = self._summed("fit", settings)
        ensemble, errors, exponents = fit_ensemble(
            loops,
            groups,
            split,
            settings,
            self._reporter,
            recordings=other_recordings(self._train, fit),
            carried=self._carried(settings, bare, free),
        )
        frozen.check()
        provenance: dict[str, Any] = {
            "source": frozen.identity,
            "train": self._train.fingerprint,
            "fit": fit.fingerprint,
            "seeds": [settings.seed + number for number in range(settings.members)],
            "versions": versions(),
            "device": devices.describe(self._device),
        }
        if exponents:
            provenance["exponents"] = exponents
        parts = (self._source, loops, ensemble, errors, fit.fields, settings, provenance)
        model = AdaptedModel(*parts, frozen.probe, groups, self._device)
        model = model if settings.budget is None else model.truncate(settings.budget)
        blocks = held_out_blocks(fit, settings)
        return calibrated(model, fit, blocks, split[1], self._reporter, self._train)

    def _carried(
        self, settings: AdaptSettings, loops: RepairLoops, groups: tuple[ColumnGroup, ...]
    ) -> Carried:
        """How much recordings differ, where the fit split has too few of them to tell."""
        few = few_recordings(other_recordings(self._train, self._fit))
        published = settings.ensemble.cells == "published"  # which keeps all of its weights
        if published or not few or not groups:
            return ALL_OF_IT
        others = apart(self._train, self._fit)  # else these may be stretches of those
        names = ["train", "fit"] if others else ["train"]
        splits = [self._summed(name, settings) for name in names]
        return carried(groups, loops, splits, settings, self._reporter, recordings=few)

    def _summed(self, name: str, settings: AdaptSettings) -> Split:
        """A split as sums are formed of it, with the source's forecasts."""
        cache = self._cached(name, settings)
        return Placed(self._splits[name], self._of_sums), cache

    def _columns(self, settings: AdaptSettings) -> tuple[ColumnGroup, ...]:
        """The free columns, made once: settings of one task differ in their modules only."""
        if self._groups is None:
            self._groups = free_groups(
                settings.ensemble,
                self._train,
                self._further,
                (self._frozen.probe, self._frozen.answer),
                batch_size=settings.batch_size,
                reporter=self._reporter,
            )
        return self._groups

    def _cached(self, name: str, settings: AdaptSettings) -> SourceCache:
        """The source's forecasts on a split, computed once."""
        return cached_source(
            self._source,
            self._splits[name],
            self._work / "source",
            batch_size=settings.batch_size,
            title=f"source on {name}",
            reporter=self._reporter,
        )

    def predicted(self, settings: AdaptSettings) -> tuple[Split, Split]:
        """Both splits with the source's forecasts on them."""
        train, fit = self._cached("train", settings), self._cached("fit", settings)
        return (self._train, train), (self._fit, fit)

    def member(self, number: int, settings: AdaptSettings) -> None:
        """Train one member."""
        splits = self.predicted(settings)
        module = initial_module(self._train.fields, settings, number)
        _trained(number, module, splits, self._normalisers, settings, self._work, self._reporter)

    @cached_property
    def _normalisers(self) -> tuple[Normaliser, Normaliser]:
        return self._given or fit_normalisers(self._train)

    def _instant(
        self, settings: AdaptSettings, loops: RepairLoops, groups: tuple[ColumnGroup, ...]
    ) -> Instant:
        """The forecast from which loops may start, fitted once."""
        if INSTANT not in self.starts(settings):
            raise ConfigError(
                "`repair.start` must be `source` where no column costs nothing (the published "
                "cells have none) or `train` is too short to part, but is "
                f"`{settings.repair.start}`."
            )
        if self._start is None:
            train = self._summed("train", settings)
            fitted, _, _ = fit_ensemble(loops, groups, train, settings, self._reporter)
            self._start = Instant(fitted.settled().without_sums(), groups)
        return self._start

    def _modules(self, settings: AdaptSettings, start: Instant | None) -> tuple[RepairUNet, ...]:
        """The modules of all members, trained to repair what the loops start from."""
        train, fit = (
            (windows, cache if start is None else StartCache(start, windows, cache))
            for windows, cache in self.predicted(settings)
        )
        settings.repair.check_windows(train[0].fields.grid, len(train[0]))
        begin = [initial_module(train[0].fields, settings, n) for n in range(settings.members)]
        trainings = [
            partial(_trained, number, module, (train, fit), self._normalisers, settings, self._work)
            for number, module in enumerate(begin)  # made here: threads share the generator
        ]
        return tuple(side_by_side(trainings, jobs=settings.jobs, reporter=self._reporter))


def _told(errors: Mapping[str, float]) -> str:
    return ", ".join(f"{error:.4f} from the {STARTS[start]}" for start, error in errors.items())


class _Frozen:
    """Holds the source to its promise: same parameters, same answer, before and after."""

    def __init__(self, source: Operator, probe: Tensor, shape: tuple[int, ...]) -> None:
        self._source, self.probe, self._shape = source, probe, shape
        if isinstance(source, nn.Module):
            devices.at_rest(source)
            source.requires_grad_(False)
        self.identity = operator_identity(source)
        self.answer = self._asked()
        if not same_answer(self._asked(), self.answer):
            raise FingerprintError(
                "`source` answers the same history differently each time, so its predictions "
                "cannot be cached or corrected. Switch off dropout and other randomness in it."
            )

    def _asked(self) -> Tensor:
        return asked(self._source, self.probe, self._shape)

    def check(self) -> None:
        changed = operator_identity(self._source) != self.identity
        if changed or not same_answer(self._asked(), self.answer):
            raise FingerprintError("`source` changed while it was meant to be frozen.")


def initial_module(fields: Fields, settings: AdaptSettings, number: int) -> RepairUNet:
    """A member before training; its seed decides its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed + number)
        return settings.module_for(fields)


def _trained(
    number: int,
    initial: RepairUNet,
    splits: tuple[Split, Split],
    normalisers: tuple[Normaliser, Normaliser],
    settings: AdaptSettings,
    work: Path,
    reporter: Reporter,
) -> RepairUNet:
    """A repair module, trained in a folder of its own, with a seed of its own.

    ``initial`` stays as it is, so that a second call begins alike and finds the work done.
    """
    repair, seed = settings.repair, settings.seed + number
    suffix = "-instant" if repair.start == "instant" else ""
    module = copy.deepcopy(initial).to(settings.device)
    train_repair(
        module,
        *splits,
        normalisers,
        repair.objective(),
        changed(repair.train, seed=seed),
        folder=work / f"repair-{seed}{suffix}",
        title=f"repair module {number + 1} of {settings.members}",
        reporter=reporter,
    )
    return module
