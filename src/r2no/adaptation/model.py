"""AdaptedModel: a frozen source, its repair modules and the ensemble that composes them."""

import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from r2no import storage
from r2no._types import Operator, PathLike
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.trajectories import Trajectories
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields, Windows, batches
from r2no.ensemble import (
    BudgetPoint,
    DepthErrors,
    LearningPoint,
    SpectralEnsemble,
    Verdict,
    budget,
    cheapest,
    learning_curve,
)
from r2no.errors import FileDamagedError, FingerprintError, ShapeError
from r2no.metrics import Accumulator
from r2no.repair import RepairUNet
from r2no.spectral import FourierCells
from r2no.training import Reporter, operator_fingerprint

FORMAT = "r2no.artifact/1"
_MANIFEST = "manifest.json"


@dataclass(eq=False)
class AdaptedModel:
    """What :func:`r2no.adapt` returns: predicts, scores itself, and can be shipped as a folder.

    Attributes:
        source: The frozen operator, physical units in and out.
        trajectories: The repair loops.
        ensemble: The fitted spectral ensemble.
        fit_errors: Errors by depth and band on the fit split.
        fields: Meaning of axes and channels.
        settings: What was decided.
        provenance: Fingerprints of source and data, seeds, versions.
        probe: The history on which the source's fingerprint was taken.
    """

    source: Operator
    trajectories: Trajectories
    ensemble: SpectralEnsemble
    fit_errors: DepthErrors
    fields: Fields
    settings: AdaptSettings
    provenance: dict[str, Any]
    probe: Tensor

    @torch.no_grad()
    def predict(
        self, history: Float[Tensor, "batch history_time *space_history_channel"]
    ) -> Float[Tensor, "batch time *space_channel"]:
        """Forecast from a physical history, in constant memory over depth and members (M8)."""
        expected = (
            self.fields.history_frames,
            *self.fields.grid,
            len(self.fields.history_channels),
        )
        if tuple(history.shape[1:]) != expected:
            raise ShapeError(
                f"`history` must be (batch, {', '.join(map(str, expected))}) as in training, but "
                f"got shape {tuple(history.shape)}. Channels are {self.fields.history_channels}."
            )
        source = self.source(history)
        composition = self.ensemble.compose(source)
        for member, depth, iterate in self.trajectories(history, source):
            composition.add(member, depth, iterate)
        return composition.result()

    def for_members(self, members: int) -> SpectralEnsemble:
        """The ensemble of the first ``members`` members, fitted to the same sums; no new pass."""
        return self.ensemble.derive(members=members)

    @property
    def verdict(self) -> Verdict | None:
        """Deploy or keep the source, with the evidence; ``None`` for a published fit."""
        return None if self.ensemble.nested_ is None else self.ensemble.nested_.verdict

    def budget(self) -> list[BudgetPoint]:
        """Held-out error against evaluations of the repair module, from the sums alone."""
        return budget(self.ensemble)

    def learning_curve(self, *, repeats: int = 8) -> list[LearningPoint]:
        """How much fit data the weights need: held-out error against windows, with spread."""
        return learning_curve(self.ensemble, repeats=repeats)

    def truncate(self, evaluations: int) -> "AdaptedModel":
        """The model of lowest held-out error that evaluates the module at most so often."""
        point = cheapest(self.budget(), evaluations)
        loops = replace(
            self.trajectories,
            modules=self.trajectories.modules[: point.members],
            steps=point.depth,
            _fast=[],
        )
        errors = replace(
            self.fit_errors,
            squared=self.fit_errors.squared[: point.members, : point.depth + 1],
        )
        repair = self.settings.repair.model_copy(update={"steps": point.depth})
        update = {"members": point.members, "repair": repair}
        ensemble = self.ensemble.derive(members=point.members, depth=point.depth)
        return replace(
            self,
            trajectories=loops,
            ensemble=ensemble,
            fit_errors=errors,
            settings=self.settings.model_copy(update=update),
        )

    def merge(self, other: "AdaptedModel") -> "AdaptedModel":
        """Pool the fit with that of another site: same frozen source, same modules, other data.

        Only sums travel, no fields; see the documentation for what they reveal.
        """
        for name, mine, theirs in (
            ("source", self.provenance["source"], other.provenance["source"]),
            ("repair modules", self._modules_fingerprint(), other._modules_fingerprint()),
        ):
            if mine != theirs:
                raise FingerprintError(
                    f"`other` has another {name}, so its sums describe other columns. Merge fits "
                    "of one source and one set of modules."
                )
        pooled = self.ensemble.derive().merge(other.ensemble)
        provenance = {
            **self.provenance,
            "merged": [self.provenance["fit"], other.provenance["fit"]],
        }
        errors = replace(
            self.fit_errors,
            squared=self.fit_errors.squared + other.fit_errors.squared,
            windows=self.fit_errors.windows + other.fit_errors.windows,
        )
        return replace(self, ensemble=pooled, fit_errors=errors, provenance=provenance)

    def _modules_fingerprint(self) -> str:
        states = [dict(module.state_dict()) for module in self.trajectories.modules]
        of = self.trajectories.of_history, self.trajectories.of_field
        statistics = [part for one in of for part in (one.shift, one.scale)]
        return storage.fingerprint(states, statistics, self.trajectories.step_size)

    def evaluate(self, windows: Windows, *, reporter: Reporter | None = None) -> dict[str, float]:
        """All metrics over a split, on the measured channels."""
        metrics = Accumulator(measured=self.fields.measured)
        reporter = reporter or Reporter(quiet=True)
        with reporter.step("scoring", len(windows)) as step:
            for numbers, window in batches(windows, self.settings.batch_size):
                metrics.update(self.predict(window.history), window.target, window.mask)
                step.advance(len(numbers))
        return metrics.compute()

    def save(self, path: PathLike) -> Path:
        """Write the artifact: a folder with ``manifest.json`` and safetensors files.

        The source is referenced by its fingerprint. The manifest is written last, so a folder
        without one is an unfinished artifact.
        """
        folder = Path(path)
        (folder / _MANIFEST).unlink(missing_ok=True)
        files = {"ensemble.safetensors": self.ensemble.state()}
        for number, module in enumerate(self.trajectories.modules):
            shape = {"history": module.history_channels, "field": module.field_channels}
            files[f"repair-{number}.safetensors"] = (dict(module.state_dict()), shape)
        files["context.safetensors"] = self._context()
        for name, (tensors, metadata) in files.items():
            storage.save_tensors(folder / name, tensors, metadata)
        manifest = {
            "format": FORMAT,
            "settings": self.settings.model_dump(mode="json"),
            "fields": asdict(self.fields),
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "provenance": self.provenance,
            "files": {name: storage.file_sha256(folder / name) for name in files},
        }
        storage.write_json(folder / _MANIFEST, manifest)
        return folder

    def _context(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        of_history, of_field = self.trajectories.of_history, self.trajectories.of_field
        band_tensors, bands = self.fit_errors.cells.state()
        tensors = {
            "history_shift": of_history.shift,
            "history_scale": of_history.scale,
            "field_shift": of_field.shift,
            "field_scale": of_field.scale,
            "depth_errors": self.fit_errors.squared,
            "bands": band_tensors["index"],
            "probe": self.probe,
        }
        counts = {"windows": self.fit_errors.windows, "frames": self.fit_errors.frames}
        return tensors, {"bands": bands, **counts}


def load(path: PathLike, source: Operator) -> AdaptedModel:
    """Read an artifact written by :meth:`AdaptedModel.save` and join it with its source.

    Raises:
        FileDamagedError: if a file is missing or its hash differs from the manifest's.
        FingerprintError: if ``source`` is not the operator the artifact was fitted to.
    """
    folder = Path(path)
    manifest = verified_manifest(folder)
    settings = AdaptSettings(**manifest["settings"])
    context, extra = storage.load_tensors(folder / "context.safetensors")
    found = operator_fingerprint(source, context["probe"])
    if found != manifest["provenance"]["source"]:
        raise FingerprintError(
            f"`source` is not the operator `{folder}` was fitted to: its weights or its answer to "
            "the stored history differ. Load the checkpoint named in the manifest."
        )
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in manifest["fields"].items()
    }
    trajectories = Trajectories(
        tuple(_module(folder, number, settings) for number in range(settings.members)),
        Normaliser(context["history_shift"], context["history_scale"]),
        Normaliser(context["field_shift"], context["field_scale"]),
        settings.repair.steps,
        settings.repair.step_size,
    )
    bands = FourierCells.from_state({"index": context["bands"]}, extra["bands"])
    errors = DepthErrors(
        bands,
        fields["measured"],
        context["depth_errors"],
        windows=extra["windows"],
        frames=extra["frames"],
    )
    return AdaptedModel(
        source,
        trajectories,
        SpectralEnsemble.load(folder / "ensemble.safetensors"),
        errors,
        Fields(**fields),
        settings,
        manifest["provenance"],
        context["probe"],
    )


def verified_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an artifact whose files are all as they were written."""
    if not (folder / _MANIFEST).is_file():
        raise FileDamagedError(
            f"`{folder}` has no {_MANIFEST}: it is not an artifact, or writing it was cut short. "
            "Save the model again."
        )
    manifest = storage.read_json(folder / _MANIFEST)
    if manifest.get("format") != FORMAT:
        raise FileDamagedError(
            f"`{folder}` is of format {manifest.get('format')!r}, but this version reads "
            f"{FORMAT!r}. Update r2no."
        )
    for name, expected in manifest["files"].items():
        if not (folder / name).is_file() or storage.file_sha256(folder / name) != expected:
            raise FileDamagedError(
                f"`{folder / name}` is missing or was changed after it was written. "
                "Restore the folder from a copy."
            )
    return manifest


def _module(folder: Path, number: int, settings: AdaptSettings) -> RepairUNet:
    tensors, shape = storage.load_tensors(folder / f"repair-{number}.safetensors")
    repair = settings.repair
    module = RepairUNet(
        shape["history"], shape["field"], repair.width, repair.depth, padding=repair.padding
    )
    module.load_state_dict(tensors)
    return module.eval()


def versions() -> dict[str, str]:
    """Versions that the numbers may depend on."""
    from r2no import __version__

    return {"r2no": __version__, "torch": torch.__version__, "python": platform.python_version()}
