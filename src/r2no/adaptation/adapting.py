"""adapt(): freeze the source, train the repair modules, fit the ensemble."""

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

from r2no import checks, devices, ranks
from r2no._types import Number, Operator, PathLike
from r2no.adaptation.calibrating import calibrated
from r2no.adaptation.carrying import carried
from r2no.adaptation.columns import free_groups, resolved
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.fitting import (
    ALL_OF_IT,
    Carried,
    can_part,
    check_adaptable,
    fit_ensemble,
    held_out_blocks,
)
from r2no.adaptation.groups import INSTANT, ColumnGroup, further_operators
from r2no.adaptation.loops import RepairLoops
from r2no.adaptation.minutes import DEFAULT_MINUTES, adapt_within, held_out_error
from r2no.adaptation.model import AdaptedModel, versions
from r2no.adaptation.starts import STARTS, Instant, StartCache, instant
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields, Placed, Windows, batches
from r2no.ensemble.nested import ENOUGH_RECORDINGS
from r2no.errors import ConfigError, EmptySplitError, FingerprintError, GridMismatchError
from r2no.progress import SILENT, Reporter
from r2no.repair_loop import RepairUNet
from r2no.settings import changed
from r2no.spectral import FourierCells
from r2no.training import (
    SourceCache,
    asked,
    cached_source,
    operator_identity,
    same_answer,
    side_by_side,
    train_repair,
)
from r2no.training.backbone import fit_normalisers
from r2no.training.source_cache import bound_cache

#: Train and fit split, each with the source's forecasts.
Splits = tuple[tuple[Windows, SourceCache], tuple[Windows, SourceCache]]


def adapt(
    source: Operator,
    train: Windows,
    fit: Windows,
    members: int | None = None,
    *,
    also: Mapping[str, Operator | ColumnGroup] | None = None,
    cells: FourierCells | str | None = None,
    target: str | None = None,
    budget: int | None = None,
    minutes: Number | None = None,
    device: str | torch.device | None = None,
    settings: AdaptSettings | None = None,
    normalisers: tuple[Normaliser, Normaliser] | None = None,
    folder: PathLike | None = None,
    improved: Callable[[AdaptedModel], Any] | None = None,
    reporter: Reporter | None = None,
    shared_data: bool = False,
) -> AdaptedModel:
    """Adapt a pretrained operator to real measurements.

    Trains ``members`` repair modules on ``train`` from the frozen source's predictions, then fits,
    cell by cell in the Fourier domain and by lead time, how much to use of each repair, of the last
    frames of the history, of the mean field and of further operators, on ``fit``. Without members
    nothing is trained, which takes seconds.

    Args:
        source: Any callable or module, physical history in, physical prediction out; frozen.
        train: Real windows the repair modules learn from.
        fit: Other real windows, by trajectory, on which checkpoints and weights are chosen.
        members: Number of repair modules; 0 trains none.
        also: Further operators for the same windows by name, such as the pretrained one, or
            column groups of your own (:class:`r2no.adaptation.ColumnGroup`).
        cells: A partition for the published fit; "auto" (default) shrinks the cells towards
            coarser ones as far as held-out blocks of ``fit`` demand.
        target: Score for which the windows' weighting is chosen on those blocks, "rmse" or
            "rel_l2"; by default they are weighted as published.
        budget: Most evaluations of the repair module per forecast: the best model within it, by
            held-out error, is returned.
        minutes: Time to spend: a model without modules first, then modules of a size and number
            that fit this machine and the time left, each kept if held-out blocks prefer it. Ten
            if neither this nor members, cells or settings are given.
        device: Where to compute; "auto" (default) is an accelerator if there is one. The source's
            weights are moved there.
        settings: Everything else, and what the arguments above leave open; the defaults are the
            paper's but for columns and partition.
        normalisers: Of history and field for the loop; default fitted on ``train``.
        folder: Where to keep the work, so that a stopped run goes on; default a temporary folder.
        improved: With ``minutes``, called with every model that is better than the ones before.
        reporter: Where progress is shown; default a terminal or notebook, if this runs in one.
        shared_data: Whether ``train`` and ``fit`` may hold the same recordings. The weights then
            rest on repairs of windows the modules have seen, and hold less than they promise.

    Raises:
        ConfigError: for a wrong argument, with the nearest right one, or shared recordings.
        DeviceError: if the device is not there.
        EmptySplitError: for a split without windows, or too short to part.
        GridMismatchError: if the splits differ, or their grid has not two axes.
        ShapeError: if the source's answer has another shape, or is no tensor.
    """
    if not callable(source):
        raise ConfigError(
            f"`source` must be a network or a function, but is a `{type(source).__name__}`. Open "
            "a checkpoint with `r2no.operators` first."
        )
    fields = _common_fields(train, fit)
    if settings is not None:
        checks.instance("settings", settings, AdaptSettings)
    if normalisers is not None:
        normalisers = _pair(normalisers)
    if settings is None and members is None and minutes is None and cells is None:
        minutes = DEFAULT_MINUTES
    given = {"members": members, "budget": budget, "minutes": minutes}
    settings = _with_arguments(settings or AdaptSettings(), fields, cells, target, given)
    place = devices.choose(settings.device if device is None else device)
    settings = changed(resolved(settings, fields), device=str(place))
    further = further_operators(also)
    check_adaptable(fit, settings)
    _check_apart(train, fit, shared_data)
    reporter = reporter or Reporter.default()
    reporter.say(f"Computing on {devices.describe(place)}.")
    with _workplace(folder) as work:
        task = _Task(source, train, fit, further, normalisers, work, reporter, place)
        if settings.minutes is None:
            model = task.adapted(settings)
        else:
            model = adapt_within(
                60 * settings.minutes,
                settings,
                train,
                adapt=task.adapted,
                starts=task.starts,
                improved=improved or (lambda model: None),
                work=work,
                reporter=reporter,
            )
        ranks.barrier()  # others may still read
        if ranks.is_main():
            bound_cache(work / "source", settings.cache)
        return model


def prepare(
    source: Operator,
    train: Windows,
    fit: Windows,
    member: int | None = None,
    *,
    settings: AdaptSettings,
    normalisers: tuple[Normaliser, Normaliser] | None = None,
    folder: PathLike,
    reporter: Reporter = SILENT,
) -> None:
    """Do a part of :func:`adapt` ahead, which then finds it done: jobs of a cluster are such parts.

    Without ``member`` the source's forecasts on both splits, with it the training of that member.
    """
    place = devices.choose(settings.device)
    settings = changed(resolved(settings, _common_fields(train, fit)), device=str(place))
    task = _Task(source, train, fit, (), normalisers, Path(folder), reporter, place)
    if member is None:
        task.predicted(settings)
    else:
        task.member(checks.whole("member", member, least=0), settings)


@contextlib.contextmanager
def _workplace(folder: PathLike | None = None) -> Iterator[Path]:
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


class _Task:
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
        self._given, self._work, self._reporter = normalisers, work, reporter
        probe = next(iter(batches(train, 1)))[1].history
        self._frozen = _Frozen(source, probe, train.fields.target_shape)
        self._groups: tuple[ColumnGroup, ...] | None = None
        self._start: Instant | None = None

    def adapted(self, settings: AdaptSettings) -> AdaptedModel:
        """The model of these settings; both starts of the loops are tried if they say so."""
        if settings.repair.start != "held_out" or not settings.members:
            return self._adapted(settings)
        starts = self.starts(settings)
        if len(starts) == 1:
            return self._adapted(_started(settings, starts[0], settings.members))
        tried = {start: self._adapted(_started(settings, start, 1)) for start in starts}
        errors = {start: held_out_error(model) for start, model in tried.items()}
        start = min(errors, key=errors.__getitem__)
        self._reporter.say(
            f"Held-out RMSE of one module by start, over the source's: {_told(errors)}. Loops "
            f"start from the {STARTS[start]}."
        )
        model = tried[start]
        if settings.members > 1:
            model = self._adapted(_started(settings, start, settings.members))
        return replace(model, provenance={**model.provenance, "starts": errors})

    def starts(self, settings: AdaptSettings) -> tuple[str, ...]:
        """What loops can start from: the source, and more where there is enough to compose."""
        free = bool(self._columns(settings)) and can_part(self._train, settings)
        return tuple(STARTS) if free else ("source",)

    def _adapted(self, settings: AdaptSettings) -> AdaptedModel:
        """Train the members, fit the ensemble, and put the model together."""
        frozen, fit = self._frozen, self._fit
        groups, repair = self._columns(settings), settings.repair
        loops = RepairLoops((), *self._normalisers, repair.steps, repair.step_size)
        start = None
        if settings.members and repair.start == "instant":
            start = self._instant(settings, loops, groups)
            groups = (*groups, start)
        if settings.members:
            loops = replace(loops, modules=self._modules(settings, start), start=start)
            loops = loops.to(self._device)
        cache, placed = self._cached("fit", settings), Placed(fit, self._of_sums)
        ensemble, errors, exponents = fit_ensemble(
            loops,
            groups,
            placed,
            cache,
            settings,
            self._reporter,
            recordings=_recordings(self._train, fit),
            carried=self._carried(settings, loops, self._columns(settings)),
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
        return calibrated(model, fit, held_out_blocks(fit, settings), cache, self._reporter)

    def _carried(
        self, settings: AdaptSettings, loops: RepairLoops, groups: tuple[ColumnGroup, ...]
    ) -> Carried:
        """How much recordings differ, where the fit split has too few of them to tell."""
        few = _recordings(self._train, self._fit)
        published = settings.ensemble.cells == "published"  # which keeps all of its weights
        if published or few is None or few >= ENOUGH_RECORDINGS or not groups:
            return ALL_OF_IT
        cache, train = self._cached("train", settings), Placed(self._train, self._of_sums)
        return carried(groups, loops, train, cache, settings, self._reporter, recordings=few)

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
            self._train if name == "train" else self._fit,
            self._work / "source",
            batch_size=settings.batch_size,
            title=f"source on {name}",
            reporter=self._reporter,
        )

    def predicted(self, settings: AdaptSettings) -> Splits:
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
            cache, train = self._cached("train", settings), Placed(self._train, self._of_sums)
            self._start = instant(groups, loops, train, cache, settings, self._reporter)
        return self._start

    def _modules(self, settings: AdaptSettings, start: Instant | None) -> tuple[RepairUNet, ...]:
        """The modules of all members, trained to repair what the loops start from."""
        train, fit = (
            (windows, cache if start is None else StartCache(start, windows, cache))
            for windows, cache in self.predicted(settings)
        )
        begin = [initial_module(train[0].fields, settings, n) for n in range(settings.members)]
        trainings = [
            partial(_trained, number, module, (train, fit), self._normalisers, settings, self._work)
            for number, module in enumerate(begin)  # made here: threads share the generator
        ]
        return tuple(side_by_side(trainings, jobs=settings.jobs, reporter=self._reporter))


def _started(settings: AdaptSettings, start: str, members: int) -> AdaptSettings:
    """The settings with loops from ``start``; one module stands for all of them, without budget."""
    budget = settings.budget if members == settings.members else None
    repair = changed(settings.repair, start=start)
    return changed(settings, members=members, budget=budget, repair=repair)


def _told(errors: Mapping[str, float]) -> str:
    return ", ".join(f"{error:.4f} from the {STARTS[start]}" for start, error in errors.items())


def _with_arguments(
    settings: AdaptSettings,
    fields: Fields,
    cells: FourierCells | str | None,
    target: str | None,
    given: Mapping[str, Number | None],
) -> AdaptSettings:
    """The settings with the arguments of :func:`adapt` that were given, checked."""
    ensemble: dict[str, Any] = {} if target is None else {"target": target}
    if isinstance(cells, FourierCells):
        if cells.grid != fields.grid or not cells.radial:
            raise GridMismatchError(
                f"`cells` must be polar cells of the data's grid {fields.grid}, but are of "
                f"{cells.grid}. Build them with `FourierCells.polar({fields.grid}, ...)`."
            )
        ensemble |= {
            "cells": "published",
            "radial": cells.radial,
            "angular": cells.angular,
            "extent": cells.extent,
            "shared_channels": cells.shared_channels,
        }
    elif cells is not None:
        ensemble["cells"] = cells
    update: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None and name == "minutes":
            update[name] = checks.real(name, value)
        elif value is not None:
            update[name] = checks.whole(name, value, least=int(name != "members"))
    return changed(settings, ensemble=changed(settings.ensemble, **ensemble), **update)


def _check_apart(train: Windows, fit: Windows, consent: bool) -> None:
    """Refuse a split that is given twice, or in parts, unless that is meant."""
    if consent:
        return
    recordings = [getattr(windows, "recordings", ()) for windows in (train, fit)]
    common = {id(one) for one in recordings[0]} & {id(one) for one in recordings[1]}
    if common or train.fingerprint == fit.fingerprint:
        shared = f"{len(common)} are in both" if common else "they are the same windows"
        raise ConfigError(
            f"`fit` must hold other recordings than `train`, but {shared}. What is "
            "fitted on windows the repair modules were trained on does not hold on new ones. "
            "Split the data (`data.split`), or pass shared_data=True."
        )


def _pair(normalisers: tuple[Normaliser, Normaliser]) -> tuple[Normaliser, Normaliser]:
    """The normalisers of history and field, checked."""
    found = checks.listed("normalisers", normalisers)
    if len(found) != 2:
        raise ConfigError(f"`normalisers` must be of history and field, but got {len(found)}.")
    first, second = (checks.instance("normalisers", one, Normaliser) for one in found)
    return first, second


def _trajectories(windows: Windows) -> int:
    return len(windows.origins[:, 0].unique())


def _recordings(train: Windows, fit: Windows) -> int | None:
    """Recordings of the fit split, where the train split has more of them; else ``None``.

    With as many in both, the splits are stretches of the same recordings, and so will be the use.
    """
    count = _trajectories(fit)
    return count if count < _trajectories(train) else None


def updated(model: AdaptedModel, windows: Windows, *, reporter: Reporter = SILENT) -> AdaptedModel:
    """What :meth:`AdaptedModel.update` returns: one pass over ``windows``, then sums are pooled."""
    _common_fields(windows, windows)
    if not windows.fields.agrees(model.fields):
        raise GridMismatchError(
            "`windows` must have the model's grid, frames and channels, but got "
            f"{windows.fields} instead of {model.fields}."
        )
    with _workplace() as work:
        cache = cached_source(
            model.source, windows, work, batch_size=model.settings.batch_size, reporter=reporter
        )
        settings = model.settings
        if model.ensemble.scoring_sums is None:  # judged by its own weighting
            same = settings.ensemble.model_copy(update={"target": None})
            settings = settings.model_copy(update={"ensemble": same})
        known = model.ensemble.plan.recordings is not None
        ensemble, errors, _ = fit_ensemble(
            model.loops,
            model.groups,
            Placed(windows, devices.of_sums(model.device)),
            cache,
            settings,
            reporter,
            recordings=_trajectories(windows) if known else None,
            like=model.ensemble,
            exponents=(model.ensemble.plan.weight_exponent,),
        )
        provenance = {**model.provenance, "fit": windows.fingerprint}
        added = replace(model, ensemble=ensemble, fit_errors=errors, provenance=provenance)
        blocks = held_out_blocks(windows, settings)
        added = calibrated(added, windows, blocks, cache, reporter)
    return model.merge(added)


class _Frozen:
    """Holds the source to its promise: same parameters, same answer, before and after."""

    def __init__(self, source: Operator, probe: Tensor, shape: tuple[int, ...]) -> None:
        self._source, self.probe, self._shape = source, probe, shape
        if isinstance(source, nn.Module):
            source.eval()
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
        return settings.module(
            fields.history_frames * len(fields.history_channels),
            fields.horizon_frames * len(fields.channels),
        )


def _trained(
    number: int,
    initial: RepairUNet,
    splits: Splits,
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
        repair.train.model_copy(update={"seed": seed}),
        folder=work / f"repair-{seed}{suffix}",
        title=f"repair module {number + 1} of {settings.members}",
        reporter=reporter,
    )
    return module


def _common_fields(train: Windows, fit: Windows) -> Fields:
    """What both splits agree on; splits that differ, or have no windows, are refused."""
    for name, windows in (("train", train), ("fit", fit)):
        checks.instance(name, windows, Windows)  # type: ignore[type-abstract]
        if len(windows) == 0:
            raise EmptySplitError(
                f"`{name}` holds no windows. Give at least one trajectory as long as history plus "
                "horizon."
            )
    if not train.fields.agrees(fit.fields):
        raise GridMismatchError(
            "`train` and `fit` must have the same grid, frames and channels, but got "
            f"{train.fields} and {fit.fields}."
        )
    return fit.fields
