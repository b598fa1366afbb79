"""Artifacts: an adapted model as a folder, written atomically and verified when read.

Format 2 can bring its source and notes the source's answer to a stored history, so a source that
is given is recognised on another machine as well, where the last bits of an answer differ.
Format 1 is still read.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from r2no import storage
from r2no._types import Operator, PathLike
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.model import AdaptedModel, IncludeSource
from r2no.adaptation.stored import FORMAT, MANIFEST, read_stored
from r2no.adaptation.trajectories import Trajectories
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields
from r2no.errors import ConfigError, FingerprintError
from r2no.operators.packing import (
    SOURCE_FILE,
    check_describable,
    describe_source,
    load_source,
    save_source,
)
from r2no.repair import RepairUNet
from r2no.training import load_operator, operator_fingerprint
from r2no.training.operator import operator_identity

#: Largest difference of a source's answer, relative to its largest value, between two machines.
_SAME_ANSWER = 1e-4


def save(model: AdaptedModel, folder: Path, include_source: IncludeSource = "auto") -> Path:
    """Write a model; the manifest comes last, so a folder without one is unfinished."""
    if include_source == "auto":
        include_source = describe_source(model.source) is not None
    elif include_source:
        check_describable(model.source)  # before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    files = {"ensemble.safetensors": model.ensemble.state()}
    for number, module in enumerate(model.trajectories.modules):
        shape = {"history": module.history_channels, "field": module.field_channels}
        files[f"repair-{number}.safetensors"] = (dict(module.state_dict()), shape)
    files["context.safetensors"] = _context(model)
    for name, (tensors, metadata) in files.items():
        storage.save_tensors(folder / name, tensors, metadata)
    source, names = _write_source(model.source, folder, include_source)
    manifest = {
        "format": FORMAT,
        "settings": model.settings.model_dump(mode="json"),
        "fields": asdict(model.fields),
        "verdict": None if model.verdict is None else asdict(model.verdict),
        "source": source,
        "provenance": model.provenance,
        "files": {name: storage.file_sha256(folder / name) for name in [*files, *names]},
    }
    storage.write_json(folder / MANIFEST, manifest)
    return folder


def load(
    path: PathLike, source: Operator | None = None, *, trust_source: bool = False
) -> AdaptedModel:
    """Read an artifact written by :meth:`AdaptedModel.save`, with its source.

    Args:
        path: The folder.
        source: The operator it was fitted to, if the artifact does not bring it.
        trust_source: Consent to import the factory, or open the exported program, that the
            artifact names as its source; both can run code that is not r2no's.

    Raises:
        FileDamagedError: if a file is missing or its hash differs from the manifest's.
        FingerprintError: if ``source`` is not the operator the artifact was fitted to.
        ConfigError: if the artifact does not bring its source, or needs consent to make it.
    """
    folder = Path(path)
    stored = read_stored(folder)
    manifest, fields = stored.manifest, stored.fields
    context, _ = storage.load_tensors(folder / "context.safetensors")
    if source is None:
        source = _own_source(folder, manifest, fields, trust_source)
        if not _same_answer(source, context):
            raise FingerprintError(
                f"The source in `{folder}` answers the stored history differently here than where "
                "it was saved. Install the versions in the manifest, or give `source`."
            )
    elif not _recognised(source, manifest, context):
        raise FingerprintError(
            f"`source` is not the operator `{folder}` was fitted to: its weights or its answer to "
            "the stored history differ. Load the checkpoint named in the manifest."
        )
    return AdaptedModel(
        source,
        _trajectories(folder, stored.settings, context),
        stored.ensemble,
        stored.fit_errors,
        fields,
        stored.settings,
        stored.provenance,
        context["probe"],
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
    found = manifest.get("source", {})
    if found.get("included"):
        return load_source(folder, found, fields, trust=trust_source)
    beside = manifest["provenance"].get("source_sha256")  # as the benchmark's runs leave it
    path = folder / SOURCE_FILE
    if beside is not None and path.is_file() and storage.file_sha256(path) == beside:
        return load_operator(path)[0]
    raise ConfigError(
        f"`{folder}` does not bring its source, only its fingerprint. Pass the operator it was "
        f"fitted to as `source` (a `{found.get('type', 'callable')}`), or save the model again "
        "with `include_source=True`."
    )


def _recognised(source: Operator, manifest: dict[str, Any], context: dict[str, Tensor]) -> bool:
    """Same bits, or in format 2 the same weights and the same answer but for rounding."""
    if operator_fingerprint(source, context["probe"]) == manifest["provenance"]["source"]:
        return True
    if "source" not in manifest:
        return False
    same = operator_identity(source) == manifest["source"]["identity"]
    return same and _same_answer(source, context)


@torch.no_grad()
def _same_answer(source: Operator, context: dict[str, Tensor]) -> bool:
    if "answer" not in context:  # format 1
        return True
    answer, expected = source(context["probe"]).cpu(), context["answer"]
    if answer.shape != expected.shape:
        return False
    scale = float(expected.abs().max())
    return float((answer - expected).abs().max()) <= _SAME_ANSWER * scale


def _context(model: AdaptedModel) -> tuple[dict[str, Tensor], dict[str, Any]]:
    of_history, of_field = model.trajectories.of_history, model.trajectories.of_field
    band_tensors, bands = model.fit_errors.cells.state()
    with torch.no_grad():
        answer = model.source(model.probe)
    tensors = {
        "history_shift": of_history.shift,
        "history_scale": of_history.scale,
        "field_shift": of_field.shift,
        "field_scale": of_field.scale,
        "depth_errors": model.fit_errors.squared,
        "bands": band_tensors["index"],
        "probe": model.probe,
        "answer": answer,
    }
    counts = {"windows": model.fit_errors.windows, "frames": model.fit_errors.frames}
    return tensors, {"bands": bands, **counts}


def _trajectories(
    folder: Path, settings: AdaptSettings, context: dict[str, Tensor]
) -> Trajectories:
    return Trajectories(
        tuple(_module(folder, number, settings) for number in range(settings.members)),
        Normaliser(context["history_shift"], context["history_scale"]),
        Normaliser(context["field_shift"], context["field_scale"]),
        settings.repair.steps,
        settings.repair.step_size,
    )


def _module(folder: Path, number: int, settings: AdaptSettings) -> RepairUNet:
    tensors, shape = storage.load_tensors(folder / f"repair-{number}.safetensors")
    repair = settings.repair
    module = RepairUNet(
        shape["history"], shape["field"], repair.width, repair.depth, padding=repair.padding
    )
    module.load_state_dict(tensors)
    return module.eval()
