"""The folder of a run: whether it can be written, and whether what lies there is of this config."""

import os
from pathlib import Path
from typing import Any

from r2no import storage
from r2no.errors import FileDamagedError, FingerprintError, StorageError
from r2no.runs.config import OwnConfig
from r2no.runs.finish import ARTIFACT, SUMMARY

_BEGUN = "config.json"


def check_place(out: Path) -> None:
    """Refuse a folder that cannot be made or written.

    Raises:
        StorageError: if a file is in the way, or there is no permission.
    """
    place = next(one for one in (out, *out.absolute().parents) if os.path.lexists(one))
    if not place.is_dir():
        raise StorageError(
            f"`out` is `{out}`, but `{place}` is a file, not a folder. Choose another `out`."
        )
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(
            f"`out` is `{out}`, but you may not write in `{place}`. Choose another `out`."
        )


def remember(config: OwnConfig) -> None:
    """Note what the work in the folder is of."""
    storage.write_json(config.out / _BEGUN, config.model_dump(mode="json"))


def check_begun(config: OwnConfig) -> None:
    """Refuse a folder with the work of other data, another source or other repair modules.

    Raises:
        FingerprintError: naming what differs.
    """
    before, now = _stored(config.out), config.model_dump(mode="json")
    if before is None or not (config.out / "work").is_dir():
        return
    different = [
        f"`{name}` was {old!r} and is {new!r}"
        for part in ("data", "source", "adapt.repair")
        for name, old, new in _differences(part, _under(before, part), _under(now, part))
    ]
    if different:
        raise FingerprintError(
            f"`{config.out}` holds the work of another config: {'; '.join(different[:3])}. Choose "
            f"another `out`, or remove `{config.out / 'work'}` to begin anew."
        )


def replaces(config: OwnConfig) -> str | None:
    """What to say if an artifact of other settings lies in the folder."""
    before, now = _stored(config.out), config.model_dump(mode="json")
    if before is None or not (config.out / ARTIFACT).exists():
        return None
    different = [name for name, _, _ in _differences("adapt", before.get("adapt"), now["adapt"])]
    if not different:
        return None
    return (
        f"`{config.out / ARTIFACT}` was made with other settings ({', '.join(different[:3])}) and "
        "will be replaced. Set `out` to another folder to keep it."
    )


def _stored(out: Path) -> dict[str, Any] | None:
    """The config that the folder was begun with."""
    for name, key in ((_BEGUN, None), (SUMMARY, "config")):
        if not (out / name).is_file():
            continue
        try:
            content = storage.read_json(out / name)
        except FileDamagedError:
            continue
        found = content if key is None or not isinstance(content, dict) else content.get(key)
        if isinstance(found, dict):
            return found
    return None


def _under(content: Any, path: str) -> Any:
    for part in path.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def _differences(name: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Keys that both have with other values; a key that only one knows is of another version."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            found
            for key in old
            if key in new
            for found in _differences(f"{name}.{key}", old[key], new[key])
        ]
    return [] if old == new else [(name, old, new)]
