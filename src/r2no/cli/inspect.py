"""``r2no inspect``: what a checkpoint, an artifact or a data file holds."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from r2no import backbones, storage
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.stored import is_artifact, is_intact, read_manifest, understood
from r2no.cli import options
from r2no.cli.app import app, say, shown
from r2no.data import open as open_data
from r2no.data.files import is_data
from r2no.data.recordings import look_for_gaps
from r2no.errors import ConfigError


@app.command()
@options.also(options.opening)
def inspect(
    paths: Annotated[
        list[str],
        typer.Argument(help="A checkpoint, an artifact, or data: files, a folder, a pattern."),
    ],
    as_json: options.AsJSON = False,
    **about: Any,
) -> None:
    """Say what a file or an artifact holds, without running anything in it.

    The options below are about data, as in `r2no.data.open`; more than one path is data.

    Example: r2no inspect piv.mat --mask typevector=1 --units mm/s --time-step 0.01
    """
    path = Path(paths[0])
    if len(paths) > 1 or is_data(paths[0]):
        found = _data(paths, options.opening(**about))
    else:
        found = _artifact(path) if path.is_dir() else _checkpoint(path)
    if as_json:
        typer.echo(storage.json_text(found), nl=False)
        return
    for name, value in found.items():
        text = value if isinstance(value, str) else json.dumps(value)
        line = Text.assemble((shown(name), "bold"), ": ", shown(text))
        say(line)


def _data(paths: list[str], about: dict[str, Any]) -> dict[str, Any]:
    """How data files are understood, and the share of missing values."""
    data = open_data(paths, **about)
    missing, counted = look_for_gaps(data.recordings)
    return {
        "file": ", ".join(paths),
        "channels": list(data.channels),
        "units": list(data.units),
        "dimensions": dict(data.recordings[0].roles),
        "left_out": dict(data.recordings[0].ignored),
        "grid": list(data.grid),
        "spacing": [axis.step for axis in data.space],
        "time_step": data.time_step,
        "coordinates": [axis.name for axis in data.axes if axis.variable is not None],
        "trajectories": len(data),
        "frames": list(data.frames),
        "bytes": data.nbytes,
        "missing": missing if missing is not None else "not counted: one frame is too large",
        "counted_frames": counted,
    }


def _checkpoint(path: Path) -> dict[str, Any]:
    """What a file of weights holds and which networks it fits."""
    if not path.is_file():
        raise ConfigError(f"There is no file or folder `{path}`.")
    found = backbones.describe(path)
    notes = {key: value for key, value in found.context.items() if key != "normalisers"}
    return {
        "file": str(path),
        "format": found.record.format,
        "sha256": found.record.sha256,
        "parameters": found.parameters,
        "tensors": found.tensors,
        "types": list(found.types),
        "network": found.network,
        "fits": [f"{system}/{name}" for system, name in found.fits],
        "iteration": found.record.iteration,
        "best_iteration": found.record.best_iteration,
        "best_val_loss": found.record.best_val_loss,
        "left_out": list(found.record.left_out),
        **notes,
    }


def _artifact(folder: Path) -> dict[str, Any]:
    if not is_artifact(folder):
        raise ConfigError(f"`{folder}` has no manifest.json, so it is no artifact, and no data.")
    manifest = read_manifest(folder)
    files = {
        name: "intact" if is_intact(folder / name, expected) else "missing or changed"
        for name, expected in manifest["files"].items()
    }
    with understood(folder):
        columns = _columns(manifest)
    return {"folder": str(folder), **manifest, "columns": columns, "files": files}


def _columns(manifest: dict[str, Any]) -> dict[str, str]:
    """What the cells of an artifact combine, by group, in words."""
    settings = AdaptSettings(**manifest["settings"])
    chosen, members = settings.ensemble, settings.members
    found = {}
    if members:
        depths = chosen.depths
        which = "all" if depths == "auto" else ", ".join(map(str, depths))
        found["repair"] = f"{members} module{'s' * (members > 1)}, depths {which}"
    for group in manifest.get("groups", []):
        found[group["name"]] = _group(group)
    return found | ({"base": "the source itself, rescaled"} if chosen.base_column else {})


def _group(group: dict[str, Any]) -> str:
    if group["kind"] == "recall":
        partners = " and their quadrature partners" if group["partners"] else ""
        return f"last {group['frames']} frames of the history{partners}"
    if group["kind"] == "mean":
        return "mean field of the train split"
    number = len(group["labels"])
    words = f"{number} forecast{'s' * (number > 1)} of a further operator or group"
    return f"{words}, {'included' if group['kind'] == 'operator' else 'given again to load'}"
