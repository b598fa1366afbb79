"""StoredModel: an artifact read without its source, for everything that predicts nothing new.

The manifest lists the hash of every file and is covered by a hash of its own, so a single changed
bit anywhere is noticed. What files say is still held against each other: an artifact may come from
anybody, with all hashes right.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from r2no import checks, ranks, storage
from r2no._types import PathLike
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.group_files import group_labels, is_described
from r2no.data.window import Fields
from r2no.ensemble import DepthErrors, FittedEnsemble, Verdict
from r2no.ensemble.bands import Calibration
from r2no.errors import FileDamagedError, FileMissingError, FingerprintError, R2NOError
from r2no.operators.packing import SOURCE_FILE
from r2no.spectral import FourierCells

Result = TypeVar("Result")

MANIFEST = "manifest.json"
BANDS_FILE = "bands.safetensors"
FORMAT = "r2no.artifact/3"
_UNSEALED = ("r2no.artifact/1", "r2no.artifact/2")
_READABLE = (*_UNSEALED, FORMAT)
_SEAL = b"0" * 64  # stands for the manifest's hash while that is computed
_TRIES = 20  # of reading an artifact that others replace
_LARGEST = 64 * 2**20  # bytes of a manifest


@dataclass(frozen=True, eq=False)
class StoredModel:
    """What an artifact says about its fit; attributes as in :class:`AdaptedModel`.

    Attributes:
        manifest: The artifact's manifest, as read.
    """

    ensemble: FittedEnsemble
    fit_errors: DepthErrors
    fields: Fields
    settings: AdaptSettings
    provenance: dict[str, Any]
    manifest: dict[str, Any]
    calibration: Calibration | None = None

    def __repr__(self) -> str:
        verdict = "" if self.verdict is None else f"; {self.verdict}"
        return f"StoredModel({self.fields.describe()}; {len(self.files)} files{verdict})"

    @property
    def files(self) -> dict[str, str]:
        """SHA-256 of every file, by name."""
        files: dict[str, str] = self.manifest["files"]
        return files

    @property
    def verdict(self) -> Verdict | None:
        """Deploy or keep the source, with the evidence; ``None`` for a published fit."""
        return self.ensemble.verdict


def is_artifact(path: Path) -> bool:
    """Whether ``path`` is a folder with a manifest."""
    return (path / MANIFEST).is_file()


def read_stored(path: PathLike, *, ignored: Collection[str] = ()) -> StoredModel:
    """Read an artifact's fit; no source is needed and no network is built.

    Args:
        path: The folder.
        ignored: Files that may be missing or changed, since they will not be read.

    Raises:
        FileDamagedError: if a file is missing, its hash differs from the manifest's, or files
            contradict each other.
    """
    folder = checks.path("path", path)
    return read_steadily(folder, partial(_read_stored, folder, ignored))


def _read_stored(folder: Path, ignored: Collection[str]) -> StoredModel:
    """Put the parts of an artifact together and hold them against each other."""
    manifest = verified_manifest(folder, ignored)
    with understood(folder):
        context, extra = storage.load_tensors(folder / "context.safetensors")
        fields = _fields(manifest["fields"])
        settings = AdaptSettings(**manifest["settings"])
        ensemble = FittedEnsemble.load(folder / "ensemble.safetensors")
        errors = DepthErrors(
            FourierCells.from_state({"index": context["bands"]}, extra["bands"]),
            fields.measured,
            context["depth_errors"],
            windows=checks.whole("windows", extra["windows"], least=0),
            frames=checks.whole("frames", extra["frames"], least=0),
        )
        calibration = None
        if BANDS_FILE in manifest["files"]:
            calibration = Calibration.from_state(*storage.load_tensors(folder / BANDS_FILE))
        provenance = dict(manifest["provenance"])
        parts = (ensemble, errors, fields, settings, provenance, manifest, calibration)
        stored = StoredModel(*parts)
        _check_agreement(stored)
    return stored


def read_steadily(folder: Path, read: Callable[[], Result]) -> Result:
    """Read an artifact, again if it was replaced meanwhile by a process that saved over it."""
    for _ in range(_TRIES):
        before = _identity(folder)
        try:
            return read()
        except (FileDamagedError, FileMissingError):
            if _identity(folder) == before:
                raise
    return read()


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def understood(
    folder: Path, *, known: tuple[type[R2NOError], ...] = (FileDamagedError, FingerprintError)
) -> Iterator[None]:
    """Name the artifact in whatever goes wrong while its content is put together.

    Errors that are ``known`` say enough themselves.
    """
    try:
        yield
    except known:
        raise
    except (R2NOError, ArithmeticError, AssertionError, AttributeError, LookupError) as error:
        raise _contradicts(folder, error) from error
    except (RuntimeError, TypeError, ValueError) as error:
        raise _contradicts(folder, error) from error


def _contradicts(folder: Path, error: Exception) -> FileDamagedError:
    reason = (str(error).splitlines() or [""])[0][:300]
    return FileDamagedError(
        f"`{folder}` is no sound artifact: its files contradict each other or lack something "
        f"({type(error).__name__}: {reason}). Restore it from a copy, or save the model again."
    )


def _fields(content: dict[str, Any]) -> Fields:
    """The fields of a manifest; one that was edited is refused by what is wrong with it."""
    parts: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    fields = Fields(**parts)
    for name, number in (("history_frames", fields.history_frames), ("grid", len(fields.grid))):
        checks.whole(name, number)
    for name, numbers in (("grid", fields.grid), ("measured", fields.measured)):
        for number in numbers:
            checks.whole(name, number, least=0)
    checks.whole("horizon_frames", fields.horizon_frames)
    for name in ("channels", "conditioning", "units"):
        if not all(isinstance(text, str) for text in getattr(fields, name)):
            raise ValueError(f"`{name}` must hold names")
    if len(set(fields.channels)) < len(fields.channels) or len(set(fields.measured)) < len(
        fields.measured
    ):
        raise ValueError("a channel is named twice")
    steps = (*fields.spacing, fields.time_step)
    if not all(isinstance(step, (int, float)) and 0 < abs(step) < math.inf for step in steps):
        raise ValueError("`spacing` and `time_step` must be finite and not zero")
    return fields


def _check_agreement(stored: StoredModel) -> None:
    """Raise unless settings, fields, columns and errors by depth speak of one model."""
    fields, settings, ensemble = stored.fields, stored.settings, stored.ensemble
    columns, errors = ensemble.columns, stored.fit_errors
    members, steps = settings.members, settings.repair.steps
    bands = errors.cells.num_cells
    expected = (members, steps + 1, bands, len(fields.measured))
    found = {
        "errors by depth": (tuple(errors.squared.shape), expected),
        "grid of the cells": (ensemble.cells.grid, fields.grid),
        "grid of the bands": (errors.cells.grid, fields.grid),
        "measured channels": (ensemble.measured, fields.measured),
        "members": (columns.members, members),
        "further columns": (columns.further, group_labels(stored.manifest.get("groups", []))),
    }
    if stored.calibration is not None:
        shape = (*fields.target_shape[:-1], len(fields.measured))
        found["bands"] = (tuple(stored.calibration.bands.scale.shape), shape)
    for name, (value, wanted) in found.items():
        if value != wanted:
            raise ValueError(f"{name}: {value} instead of {wanted}")
    if columns.depths and columns.depths[-1] > steps:
        raise ValueError(f"depth {columns.depths[-1]} of {steps} steps")
    if not bool(errors.squared.isfinite().all()):
        raise ValueError("errors by depth are not finite")


def verified_manifest(folder: Path, ignored: Collection[str] = ()) -> dict[str, Any]:
    """The manifest of an artifact whose files, but for those ``ignored``, have their hashes."""
    manifest = read_manifest(folder)
    for name, expected in manifest["files"].items():
        if name not in ignored and not is_intact(folder / name, expected):
            raise _changed(folder / name)
    return manifest


def is_intact(path: Path, expected: Any) -> bool:
    """Whether a file is there with the hash that the manifest lists."""
    return path.is_file() and storage.file_sha256(path) == expected


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an artifact, as it was written; its files are not looked at.

    Raises:
        FileMissingError: if there is no such folder.
        FileDamagedError: if there is none, it was changed, or it lacks what every one has.
    """
    path = folder / MANIFEST
    if not folder.exists():
        raise FileMissingError(f"There is no artifact `{folder}`. Check the path.")
    if not is_artifact(folder):
        raise FileDamagedError(
            f"`{folder}` has no {MANIFEST}: it is not an artifact, or writing it was cut short. "
            "Save the model again."
        )
    if path.stat().st_size > _LARGEST:
        raise FileDamagedError(f"`{path}` is larger than any manifest. Restore it from a copy.")
    manifest: dict[str, Any] = storage.read_json(path)
    kind = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
    if kind not in _READABLE:
        raise FileDamagedError(
            f"`{folder}` is of format {kind!r}, but this version reads "
            f"{' and '.join(map(repr, _READABLE))}. Update r2no."
        )
    _check_seal(path, manifest)
    _check_parts(path, manifest)
    return _with_noted_source(manifest)


def _with_noted_source(manifest: dict[str, Any]) -> dict[str, Any]:
    """Runs on RealPDEBench once noted the hash of their source elsewhere."""
    noted = manifest["provenance"].get("source_sha256")
    known = manifest.get("source", {})
    if noted is None or known.get("included"):
        return manifest
    source = {**known, "included": True, "kind": "operator"}
    return {**manifest, "source": source, "files": {**manifest["files"], SOURCE_FILE: noted}}


def _check_parts(path: Path, manifest: dict[str, Any]) -> None:
    """Raise unless all parts are there and the list of files names what an artifact needs."""
    manifest = {"source": {}, **manifest}  # formats since 2 have it
    for part in ("settings", "fields", "source", "provenance", "files"):
        if not isinstance(manifest.get(part), dict):
            raise FileDamagedError(f"`{path}` has no `{part}`. Restore it from a copy.")
    if not is_described(manifest.get("groups", [])):
        raise FileDamagedError(f"`{path}` has `groups` that are none. Restore it from a copy.")
    files, members = manifest["files"], manifest["settings"].get("members")
    needed = {"ensemble.safetensors", "context.safetensors"}
    if type(members) is int and 0 < members <= len(files):
        needed |= {f"repair-{number}.safetensors" for number in range(members)}
    if missing := sorted(needed - set(files)):
        raise FileDamagedError(f"`{path}` does not list {missing}. Restore it from a copy.")
    for name in files:
        if Path(name).name != name or name in ("", "..", MANIFEST):
            raise FileDamagedError(
                f"`{path}` lists {name!r}, which is no file of its folder. Restore it from a copy."
            )


def _changed(path: Path) -> FileDamagedError:
    return FileDamagedError(
        f"`{path}` is missing or was changed after it was written. Restore the folder from a copy."
    )


def _check_seal(path: Path, manifest: dict[str, Any]) -> None:
    seal = manifest.get("sha256")
    if seal is None and manifest["format"] in _UNSEALED:
        return
    text = path.read_bytes()
    if not isinstance(seal, str) or _sealed(text.replace(seal.encode(), _SEAL, 1)) != seal:
        raise _changed(path)


def _sealed(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest with the hash of itself, which stands for every bit of it."""
    rest = {name: value for name, value in manifest.items() if name not in ("format", "sha256")}
    text = storage.json_text({"format": FORMAT, "sha256": _SEAL.decode(), **rest}).encode()
    storage.write_bytes(folder / MANIFEST, text.replace(_SEAL, _sealed(text).encode(), 1))


def listed_files(folder: Path) -> set[str]:
    """Files that belong to the artifact in a folder, if there is a readable one."""
    if not is_artifact(folder):
        return set()
    try:
        files = storage.read_json(folder / MANIFEST)["files"]
    except (FileDamagedError, LookupError, TypeError):
        files = {}
    return {MANIFEST, *(files if isinstance(files, dict) else ())}


@ranks.by_main
def store_beside(path: PathLike, name: str, content: Any) -> Path:
    """Add a JSON file to an artifact and list its hash in the manifest; both or nothing."""
    folder = Path(path)
    with storage.atomic_folder(folder) as sibling:
        manifest = verified_manifest(sibling)
        storage.write_json(sibling / name, content)
        files = {**manifest["files"], name: storage.file_sha256(sibling / name)}
        write_manifest(sibling, {**manifest, "files": files})
    return folder / name
