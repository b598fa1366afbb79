"""Artifacts: an adapted model as a folder, written atomically and verified when read.

An artifact can bring its source and notes the source's answer to a stored history, so a source that
is given is recognised on another machine as well, where the last bits of an answer differ. Since
format 3 the manifest is covered by a hash of itself; formats 1 and 2 are still read.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from r2no import checks, devices, ranks, storage
from r2no._types import Operator, PathLike
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.group_files import check_included, group_tensors, load_groups, save_groups
from r2no.adaptation.groups import ColumnGroup, Instant
from r2no.adaptation.loops import RepairLoops
from r2no.adaptation.model import AdaptedModel, IncludeSource
from r2no.adaptation.stored import (
    BANDS_FILE,
    StoredModel,
    listed_files,
    read_steadily,
    read_stored,
    understood,
    write_manifest,
)
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields
from r2no.errors import ConfigError, FingerprintError, R2NOError
from r2no.operators.packing import (
    SOURCE_FILES,
    check_describable,
    describe_source,
    load_source,
    save_source,
)
from r2no.repair_loop import RepairUNet
from r2no.training import (
    operator_fingerprint,
    operator_identity,
    same_answer,
)

#: Larger repair modules are taken for damage.
_DEEPEST, _WIDEST = 12, 100_000


@ranks.by_main
def save(model: AdaptedModel, folder: Path, include_source: IncludeSource = "auto") -> Path:
    """Write a model; an artifact that is there stays whole until the new one takes its place.

    Files beside it that are not its own are kept.
    """
    if include_source is True:  # before anything is written
        check_describable(model.source)
        check_included(model.groups)
    others = bool(include_source)
    if include_source == "auto":
        include_source = describe_source(model.source) is not None
    files = {"ensemble.safetensors": model.ensemble.state()}
    for number, module in enumerate(model.loops.modules):
        shape = {"history": module.history_channels, "field": module.field_channels}
        files[f"repair-{number}.safetensors"] = (dict(module.state_dict()), shape)
    files["context.safetensors"] = _context(model)
    if model.calibration is not None:
        files[BANDS_FILE] = model.calibration.state()
    with storage.atomic_folder(folder, dropped=listed_files(folder)) as sibling:
        for name, (tensors, metadata) in files.items():
            storage.save_tensors(sibling / name, tensors, metadata)
        source, names = _write_source(model.source, sibling, include_source)
        groups, more = save_groups(model.groups, sibling, include=others)
        names += more
        manifest = {
            "settings": model.settings.model_dump(mode="json"),
            "fields": asdict(model.fields),
            "verdict": None if model.verdict is None else asdict(model.verdict),
            "source": source,
            "groups": groups,
            "provenance": model.provenance,
            "files": {name: storage.file_sha256(sibling / name) for name in [*files, *names]},
        }
        write_manifest(sibling, manifest)
    return folder


def load(
    path: PathLike,
    source: Operator | None = None,
    *,
    also: Mapping[str, Operator | ColumnGroup] | None = None,
    trust_source: bool = False,
    device: str | torch.device = "auto",
) -> AdaptedModel:
    """Read an artifact written by :meth:`AdaptedModel.save`, with its source.

    Args:
        path: The folder.
        source: The operator it was fitted to, if the artifact does not bring it.
        also: Further operators and column groups it was fitted with, by name, likewise.
        trust_source: Consent to import the factory, or open the exported program, that the
            artifact names as its source; both can run code that is not r2no's.
        device: Where the model shall compute, wherever it was written; ``source`` is moved there.

    Raises:
        DeviceError: if the device is not there.
        FileDamagedError: if a file is missing or its hash differs from the manifest's.
        FingerprintError: if ``source`` is not the operator the artifact was fitted to.
        ConfigError: if the artifact does not bring its source, or needs consent to make it.
    """
    folder = checks.path("path", path)
    place = devices.choose(device)
    return read_steadily(folder, partial(_load, folder, source, also, trust_source)).to(place)


def _load(
    folder: Path,
    source: Operator | None,
    also: Mapping[str, Operator | ColumnGroup] | None,
    trust_source: bool,
) -> AdaptedModel:
    """Read every file, check that they belong together, and find the source."""
    stored = read_stored(folder, ignored=() if source is None else SOURCE_FILES)
    manifest, fields = stored.manifest, stored.fields
    with understood(folder):
        context, _ = storage.load_tensors(folder / "context.safetensors")
        loops = _loops(folder, stored, context)
        _check_probe(fields, context)
    if source is None:
        source = _own_source(folder, manifest, fields, trust_source)
        if not _answers_alike(source, context):
            raise FingerprintError(
                f"The source in `{folder}` answers the stored history differently here than where "
                "it was saved. Install the versions in the manifest, or give `source`."
            )
    elif not _recognised(source, manifest, context):
        raise FingerprintError(
            f"`source` is not the operator `{folder}` was fitted to: its weights or its answer to "
            "the stored history differ. Load the checkpoint named in the manifest."
        )
    with understood(folder), torch.no_grad():
        answer = devices.answer(source, context["probe"])
        for _ in replace(loops, steps=1)(context["probe"], answer):
            pass  # each module takes what normalisers and source give
    with understood(folder, known=(R2NOError,)):
        described = manifest.get("groups", [])
        groups = load_groups(folder, described, context, fields, also=also, trust=trust_source)
        loops = replace(loops, start=next((g for g in groups if isinstance(g, Instant)), None))
    return AdaptedModel(
        source,
        loops,
        stored.ensemble,
        stored.fit_errors,
        fields,
        stored.settings,
        stored.provenance,
        context["probe"],
        groups,
        calibration=stored.calibration,
    )


def _write_source(
    source: Operator, folder: Path, include: bool
) -> tuple[dict[str, Any], list[str]]:
    identity = operator_identity(source)
    if not include:
        return {"included": False, "type": type(source).__name__, "identity": identity}, []
    found, names = save_source(source, folder)
    return {"included": True, "identity": identity, **found}, names


def _own_source(
    folder: Path, manifest: dict[str, Any], fields: Fields, trust_source: bool
) -> Operator:
    """The source that the artifact brings, made anew; code is run with consent only."""
    found = manifest.get("source", {})
    if found.get("included"):
        with understood(folder, known=(R2NOError,)):
            return load_source(folder, found, fields, trust=trust_source)
    raise ConfigError(
        f"`{folder}` does not bring its source, only its fingerprint. Pass the operator it was "
        f"fitted to as `source` (a `{found.get('type', 'callable')}`), or save the model again "
        "with `include_source=True`."
    )


def _recognised(source: Operator, manifest: dict[str, Any], context: dict[str, Tensor]) -> bool:
    """The same weights and the same answer but for rounding; in format 1 the same bits."""
    if "source" not in manifest:
        known = manifest["provenance"].get("source")
        result: bool = operator_fingerprint(source, context["probe"]) == known
        return result
    same = operator_identity(source) == manifest["source"].get("identity")
    return same and _answers_alike(source, context)


@torch.no_grad()
def _answers_alike(source: Operator, context: dict[str, Tensor]) -> bool:
    """Whether a source answers the stored history as it did when the artifact was written."""
    if "answer" not in context:  # format 1
        return True
    try:
        answer = devices.answer(source, context["probe"])
    except (RuntimeError, TypeError, ValueError) as error:
        raise FingerprintError(
            "`source` cannot answer the stored history of shape (batch, time, height, width, "
            f"channel) = {tuple(context['probe'].shape)}: {error} Wrap it in r2no's layout with "
            "`r2no.operators.wrap`, as it was when the model was adapted."
        ) from error
    return isinstance(answer, Tensor) and same_answer(answer, context["answer"])


def _check_probe(fields: Fields, context: dict[str, Tensor]) -> None:
    shape = (1, *fields.history_shape)
    if tuple(context["probe"].shape) != shape or not bool(context["probe"].isfinite().all()):
        raise ValueError(f"the stored history must be finite and of shape {shape}")


def _context(model: AdaptedModel) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What the model needs beside weights: statistics, probe, errors by depth."""
    of_history, of_field = model.loops.of_history, model.loops.of_field
    band_tensors, bands = model.fit_errors.cells.state()
    with torch.no_grad():
        answer = devices.answer(model.source, model.probe)
    tensors = {
        "history_shift": of_history.shift,
        "history_scale": of_history.scale,
        "field_shift": of_field.shift,
        "field_scale": of_field.scale,
        "depth_errors": model.fit_errors.squared,
        "bands": band_tensors["index"],
        "probe": model.probe,
        "answer": answer,
        **group_tensors(model.groups, model.probe, answer),
    }
    counts = {"windows": model.fit_errors.windows, "frames": model.fit_errors.frames}
    return tensors, {"bands": bands, **counts}


def _loops(folder: Path, stored: StoredModel, context: dict[str, Tensor]) -> RepairLoops:
    settings, fields = stored.settings, stored.fields
    return RepairLoops(
        tuple(_module(folder, number, settings) for number in range(settings.members)),
        _normaliser(context, "history", len(fields.history_channels)),
        _normaliser(context, "field", len(fields.channels)),
        settings.repair.steps,
        settings.repair.step_size,
    )


def _normaliser(context: dict[str, Tensor], name: str, channels: int) -> Normaliser:
    shift, scale = context[f"{name}_shift"], context[f"{name}_scale"]
    if not shift.shape == scale.shape == (channels,):
        raise ValueError(f"the normaliser of the {name} must have {channels} channels")
    if not bool((shift.isfinite() & scale.isfinite() & (scale >= 0)).all()):
        raise ValueError(f"the normaliser of the {name} must be finite and not negative")
    return Normaliser(shift, scale)


def _module(folder: Path, number: int, settings: AdaptSettings) -> RepairUNet:
    """A member from its file; nothing is allocated before the file is known to hold it."""
    path = folder / f"repair-{number}.safetensors"
    tensors, shape = storage.load_tensors(path)
    repair = settings.repair
    if repair.depth > _DEEPEST or max(repair.width, *map(int, shape.values())) > _WIDEST:
        raise ValueError(f"a repair module of width {repair.width} and depth {repair.depth}")
    with torch.device("meta"):
        module = settings.module(shape["history"], shape["field"])
    expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    if {name: tuple(value.shape) for name, value in tensors.items()} != expected:
        raise ValueError(f"`{path.name}` does not hold the weights of such a module")
    if not all(bool(value.isfinite().all()) for value in tensors.values()):
        raise ValueError(f"`{path.name}` holds weights that are NaN or infinite")
    module.load_state_dict(tensors, assign=True)
    return module.eval()
