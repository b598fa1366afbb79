"""Pooling: data added to a model, and models of two sites; sums go together, fields stay away.

Source and repair modules stay as they are, so nothing is trained.
"""

from dataclasses import replace

import torch

from r2no import devices
from r2no.adaptation.calibrating import calibrated
from r2no.adaptation.fitting import can_part, check_windows, fit_ensemble, held_out_blocks
from r2no.adaptation.model import AdaptedModel
from r2no.adaptation.task import workplace
from r2no.data.window import Placed, Windows, trajectories
from r2no.ensemble.holdout import folds_of_one_block, one_block
from r2no.errors import FingerprintError, GridMismatchError
from r2no.progress import SILENT, Reporter
from r2no.settings import changed
from r2no.training import cached_source, operator_identity, same_answer


def updated(model: AdaptedModel, windows: Windows, *, reporter: Reporter = SILENT) -> AdaptedModel:
    """What :meth:`AdaptedModel.update` returns: one pass over ``windows``, then sums are pooled."""
    check_windows("windows", windows)
    if not windows.fields.agrees(model.fields):
        raise GridMismatchError(
            "`windows` must have the model's grid, frames and channels, but got "
            f"{windows.fields} instead of {model.fields}."
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
        provenance = {**model.provenance, "fit": windows.fingerprint}
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
    fits = [model.provenance["fit"], other.provenance["fit"]]
    return replace(
        model,
        ensemble=model.ensemble.merge(other.ensemble).settled(),
        fit_errors=model.fit_errors.merge(other.fit_errors),
        provenance={**model.provenance, "merged": fits},
        calibration=both,
    )


@torch.no_grad()
def _same_source(model: AdaptedModel, other: AdaptedModel) -> bool:
    """By weights, and by the answer to a history but for the bits that machines differ in."""
    if operator_identity(model.source) != operator_identity(other.source):
        return False
    return same_answer(*(devices.answer(one.source, model.probe) for one in (model, other)))
