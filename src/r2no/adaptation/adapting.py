"""adapt(): arguments checked and settled, then a task; and a model that learns of further data.

Data added to a model, and models of two sites: sums go together, fields stay away. Source and
repair modules stay as they are, so nothing is trained.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from r2no import checks, devices
from r2no._types import Number, Operator, PathLike
from r2no.adaptation.calibrating import calibrated
from r2no.adaptation.columns import resolved
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.fitting import (
    can_part,
    check_adaptable,
    check_windows,
    common_fields,
    fit_ensemble,
    held_out_blocks,
)
from r2no.adaptation.groups import ColumnGroup, further_operators
from r2no.adaptation.minutes import DEFAULT_MINUTES
from r2no.adaptation.model import AdaptedModel
from r2no.adaptation.task import Task, workplace
from r2no.checks import changed
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields, Placed, Windows, trajectories
from r2no.ensemble.holdout import folds_of_one_block, one_block
from r2no.errors import ConfigError, FingerprintError, GridMismatchError
from r2no.progress import SILENT, Reporter
from r2no.spectral import FourierCells
from r2no.training import cached_source, operator_identity, same_answer


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

    Trains ``members`` repair modules on ``train`` from the frozen source's predictions, then fits
    on ``fit``, cell by cell in the Fourier domain and by lead time, how much to use of each repair,
    of the last frames of the history, of the mean field and of further operators.

    Args:
        source: Any callable or module, physical history in, physical prediction out; frozen.
        train: Real windows the repair modules learn from.
        fit: Other real windows, by trajectory, on which checkpoints and weights are chosen.
        members: Number of repair modules; with 0 nothing is trained, which takes seconds.
        also: Further operators of these windows by name, or a ``ColumnGroup`` of your own.
        cells: A partition for the published fit, or "auto" (default): as coarse as ``fit`` demands.
        target: Score that decides how windows are weighted, "rmse" or "rel_l2"; default published.
        budget: Most evaluations of the repair module per forecast, by the best model within it.
        minutes: Time to spend: a model without modules first, then modules that fit the time left,
            if better. Ten if neither this nor members, cells or settings are given.
        device: Where to compute, and the source is moved; "auto" (default): an accelerator if any.
        settings: Everything else, and what the arguments above leave open.
        normalisers: Of history and field for the loop; default fitted on ``train``.
        folder: Where to keep the work, so that a stopped run goes on; default a temporary folder.
        improved: With ``minutes``, called with every model that is better than the ones before.
        reporter: Where progress is shown; default a terminal or notebook, if this runs in one.
        shared_data: Allow recordings in both splits; the weights then hold less than they promise.

    Raises:
        ConfigError: for a wrong argument, with the nearest right one, or shared recordings.
        DeviceError: if the device is not there.
        EmptySplitError: for a split without windows, or too short to part.
        GridMismatchError: if the splits differ, or their grid has not two axes.
        ShapeError: if the source's answer has another shape, or is no tensor.
    """
    fields = _adaptable_fields(source, train, fit)
    settings = _with_arguments(settings, fields, cells, target, members, budget, minutes)
    settings, place = _resolved(settings, fields, device)
    _check_splits(train, fit, settings, shared_data)
    parts = (source, train, fit, further_operators(also), _pair(normalisers))
    reporter = reporter or Reporter.default()
    reporter.say(f"Computing on {devices.describe(place)}.")
    with workplace(folder) as work:
        return Task(*parts, work, reporter, place).carried_out(settings, improved)


def adapt_ahead(
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
    settings, place = _resolved(settings, common_fields(train, fit))
    task = Task(source, train, fit, (), normalisers, Path(folder), reporter, place)
    if member is None:
        task.predicted(settings)
    else:
        task.member(checks.whole("member", member, least=0), settings)


def _adaptable_fields(source: Operator, train: Windows, fit: Windows) -> Fields:
    """What the splits agree on, if the source is something that can be asked."""
    if not callable(source):
        raise ConfigError(
            f"`source` must be a network or a function, but is a `{type(source).__name__}`. Open "
            "a checkpoint with `r2no.operators` first."
        )
    if isinstance(source, type):
        raise ConfigError(
            f"`source` is the class `{source.__name__}`, which forecasts nothing yet. Build a "
            f"network of it, `{source.__name__}(...)`, and load its weights."
        )
    return common_fields(train, fit)


def _resolved(
    settings: AdaptSettings, fields: Fields, device: str | torch.device | None = None
) -> tuple[AdaptSettings, torch.device]:
    """The settings with nothing left open, and where they compute."""
    place = devices.choose(settings.device if device is None else device)
    return changed(resolved(settings, fields), device=str(place)), place


def _with_arguments(
    settings: AdaptSettings | None,
    fields: Fields,
    cells: FourierCells | str | None,
    target: str | None,
    members: int | None,
    budget: int | None,
    minutes: Number | None,
) -> AdaptSettings:
    """The settings with the arguments of :func:`adapt` that were given, checked."""
    if settings is None and members is None and minutes is None and cells is None:
        minutes = DEFAULT_MINUTES
    settings = AdaptSettings() if settings is None else settings
    checks.instance("settings", settings, AdaptSettings)
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
    if members is not None:
        update["members"] = checks.whole("members", members, least=0)
    if budget is not None:
        update["budget"] = checks.whole("budget", budget)
    if minutes is not None:
        update["minutes"] = checks.real("minutes", minutes)
    return changed(settings, ensemble=changed(settings.ensemble, **ensemble), **update)


def _check_splits(train: Windows, fit: Windows, settings: AdaptSettings, shared_data: bool) -> None:
    """Refuse data that cannot be used, and a split that is given twice unless that is meant."""
    check_adaptable(fit, settings)
    if shared_data:
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


def _pair(
    normalisers: tuple[Normaliser, Normaliser] | None,
) -> tuple[Normaliser, Normaliser] | None:
    """The normalisers of history and field, checked, if they are given."""
    if normalisers is None:
        return None
    found = checks.listed("normalisers", normalisers)
    if len(found) != 2:
        raise ConfigError(f"`normalisers` must be of history and field, but got {len(found)}.")
    first, second = (checks.instance("normalisers", one, Normaliser) for one in found)
    return first, second


def updated(model: AdaptedModel, windows: Windows, *, reporter: Reporter = SILENT) -> AdaptedModel:
    """What :meth:`AdaptedModel.update` returns: one pass over ``windows``, then sums are pooled."""
    check_windows("windows", windows)
    if not windows.fields.agrees(model.fields):
        raise GridMismatchError(
            "`windows` must have the model's grid, frames and channels, but got "
            f"{windows.fields} instead of {model.fields}."
        )
    if windows.fingerprint in _fits(model):
        raise ConfigError(
            "`windows` are in the model already, and would count twice. Update with new ones."
        )
    with workplace() as work:
        cache = cached_source(
            model.source, windows, work, batch_size=model.settings.batch_size, reporter=reporter
        )
        settings = model.settings
        if model.ensemble.scoring_sums is None:  # judged by its own weighting
            settings = changed(settings, ensemble=changed(settings.ensemble, target=None))
        known = model.ensemble.plan.recordings is not None
        short = not can_part(windows, settings)
        held_out = one_block(windows.origins) if short else held_out_blocks(windows, settings)
        ensemble, errors, _ = fit_ensemble(
            model.loops,
            model.groups,
            (Placed(windows, devices.of_sums(model.device)), cache),
            settings,
            reporter,
            held_out=held_out,
            recordings=trajectories(windows) if known else None,
            like=model.ensemble,
        )
        provenance = {**model.provenance, "fit": windows.fingerprint, "merged": []}
        added = replace(model, ensemble=ensemble, fit_errors=errors, provenance=provenance)
        weights, kept = None, model.verdict is not None and not model.verdict.deploy
        if short or not kept:  # the model never saw these windows, and knows more than they alone
            weights = [model.ensemble.weights] * (1 if short else len(ensemble.judging_folds))
        added = calibrated(added, windows, held_out, cache, reporter, weights=weights)
    if short:
        sizes = model.ensemble.needed_sums().windows.tolist()
        folds = folds_of_one_block(model.ensemble.folds, sizes)
        added = replace(added, ensemble=replace(added.ensemble, folds=folds))
    return merged(model, added)


def merged(model: AdaptedModel, other: AdaptedModel) -> AdaptedModel:
    """What :meth:`AdaptedModel.merge` returns: everything is decided again from both sums."""
    modules = model.modules_fingerprint() == other.modules_fingerprint()
    for name, same in (("source", _same_source(model, other)), ("repair modules", modules)):
        if not same:
            raise FingerprintError(
                f"`other` has another {name}, so its sums describe other columns. Merge fits "
                "of one source and one set of modules."
            )
    both = None
    if model.calibration is not None and other.calibration is not None:
        both = model.calibration.merge(other.calibration)
    return replace(
        model,
        ensemble=model.ensemble.merge(other.ensemble).settled(),
        fit_errors=model.fit_errors.merge(other.fit_errors),
        provenance={**model.provenance, "merged": _fits(model) + _fits(other)},
        calibration=both,
    )


def _fits(model: AdaptedModel) -> list[Any]:
    """The fingerprints of all windows that are in the sums."""
    known = model.provenance.get("merged")
    return list(known) if known else [model.provenance["fit"]]


@torch.no_grad()
def _same_source(model: AdaptedModel, other: AdaptedModel) -> bool:
    """By weights, and by the answer to a history but for the bits that machines differ in."""
    if operator_identity(model.source) != operator_identity(other.source):
        return False
    return same_answer(*(devices.answer(one.source, model.probe) for one in (model, other)))
