"""StoredModel: an artifact read without its source, for everything that predicts nothing new."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2no import storage
from r2no._types import PathLike
from r2no.adaptation.config import AdaptSettings
from r2no.data.window import Fields
from r2no.ensemble import DepthErrors, SpectralEnsemble, Verdict
from r2no.errors import FileDamagedError
from r2no.spectral import FourierCells

MANIFEST = "manifest.json"
FORMAT = "r2no.artifact/2"
_READABLE = ("r2no.artifact/1", FORMAT)


@dataclass(frozen=True, eq=False)
class StoredModel:
    """What an artifact says about its fit; attributes as in :class:`AdaptedModel`.

    Attributes:
        manifest: The artifact's manifest, as read.
    """

    ensemble: SpectralEnsemble
    fit_errors: DepthErrors
    fields: Fields
    settings: AdaptSettings
    provenance: dict[str, Any]
    manifest: dict[str, Any]

    @property
    def files(self) -> dict[str, str]:
        """SHA-256 of every file, by name."""
        files: dict[str, str] = self.manifest["files"]
        return files

    @property
    def verdict(self) -> Verdict | None:
        """Deploy or keep the source, with the evidence; ``None`` for a published fit."""
        return None if self.ensemble.nested_ is None else self.ensemble.nested_.verdict


def read_stored(path: PathLike) -> StoredModel:
    """Read an artifact's fit; no source is needed and no network is built.

    Raises:
        FileDamagedError: if a file is missing or its hash differs from the manifest's.
    """
    folder = Path(path)
    manifest = verified_manifest(folder)
    context, extra = storage.load_tensors(folder / "context.safetensors")
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in manifest["fields"].items()
    }
    errors = DepthErrors(
        FourierCells.from_state({"index": context["bands"]}, extra["bands"]),
        fields["measured"],
        context["depth_errors"],
        windows=extra["windows"],
        frames=extra["frames"],
    )
    return StoredModel(
        SpectralEnsemble.load(folder / "ensemble.safetensors"),
        errors,
        Fields(**fields),
        AdaptSettings(**manifest["settings"]),
        manifest["provenance"],
        manifest,
    )


def verified_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an artifact whose files all have their hashes."""
    if not (folder / MANIFEST).is_file():
        raise FileDamagedError(
            f"`{folder}` has no {MANIFEST}: it is not an artifact, or writing it was cut short. "
            "Save the model again."
        )
    manifest: dict[str, Any] = storage.read_json(folder / MANIFEST)
    if manifest.get("format") not in _READABLE:
        raise FileDamagedError(
            f"`{folder}` is of format {manifest.get('format')!r}, but this version reads "
            f"{' and '.join(map(repr, _READABLE))}. Update r2no."
        )
    for name, expected in manifest["files"].items():
        if not (folder / name).is_file() or storage.file_sha256(folder / name) != expected:
            raise FileDamagedError(
                f"`{folder / name}` is missing or was changed after it was written. "
                "Restore the folder from a copy."
            )
    return manifest


def store_beside(path: PathLike, name: str, content: Any) -> Path:
    """Add a JSON file to an artifact and list its hash in the manifest."""
    folder = Path(path)
    manifest = verified_manifest(folder)
    storage.write_json(folder / name, content)
    manifest["files"] = {**manifest["files"], name: storage.file_sha256(folder / name)}
    storage.write_json(folder / MANIFEST, manifest)
    return folder / name
