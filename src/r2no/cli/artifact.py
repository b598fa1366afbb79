"""``r2no predict | evaluate | report | inspect``: what an artifact does, and what a file holds."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from r2no.cli import options
from r2no.cli.app import HalfMoved, app, check_exists, command_line, reporter, say, say_json, shown
from r2no.errors import ConfigError

Artifact = Annotated[Path, typer.Argument(help="Folder that `r2no adapt` wrote.")]
TrustSource = Annotated[
    bool, typer.Option(help="Import the factory, or open the program, the artifact names.")
]
Measured = Annotated[
    list[str],
    typer.Argument(help="NetCDF, Zarr, HDF5, MATLAB, npz or npy files, folders or patterns."),
]
_NAMED = 10  # unfamiliar windows


@app.command()
@options.also(options.opening)
def predict(
    artifact: Artifact,
    data: Measured,
    out: Annotated[Path, typer.Option(help="File to write: *.nc or *.zarr.")] = Path("forecast.nc"),
    origins: Annotated[
        str, typer.Option(help="all: every STRIDE frames and from the last ones; last: only those.")
    ] = "all",
    stride: Annotated[
        int | None, typer.Option(min=1, help="Frames between two forecasts; default the horizon.")
    ] = None,
    coverage: Annotated[
        list[float] | None,
        typer.Option(help="Write bands that hold the measured value so often: 0.5 0.9."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Checkpoint of the source, if not in the artifact.")
    ] = None,
    trust_source: TrustSource = False,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Forecasts at a time.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a file of other origin.")] = False,
    device: options.Device = "auto",
    **about: Any,
) -> None:
    """Forecast from measurements, also beyond their last frame, and write a file with coordinates.

    Data are read and written piece by piece. A run that is stopped goes on where it was. Data
    without coordinates are taken to have the spacing and time step the model was adapted to.

    Windows unlike those of the fit are named: their forecasts, and bands, may not hold.

    Example: r2no predict wake.r2no piv.nc --out forecast.nc --coverage 0.5 0.9
    """
    from r2no.adaptation import load, write_predictions
    from r2no.checks import choice
    from r2no.data import open as open_data
    from r2no.devices import choose, describe
    from r2no.training import load_operator

    choice("--origins", origins, ("all", "last"))
    check_exists(artifact, "There is no artifact")
    place = choose(device)
    data, wanted = _apart(data, coverage or [])
    measured = open_data(data, **options.opening(**about))
    operator = None if source is None else load_operator(source)[0]
    model = load(artifact, operator, trust_source=trust_source, device=place)
    measured = measured.completed(model.fields)
    say(measured.describe(), f"Computing on {describe(model.device)}.")
    path = write_predictions(
        model,
        measured,
        out,
        origins="last" if origins == "last" else "all",
        stride=stride,
        coverage=wanted or None,
        batch_size=batch_size,
        overwrite=overwrite,
        reporter=reporter(),
    )
    say(*_unfamiliar(path), f'Wrote {path}. Open it with `xarray.open_dataset("{path}")`.')


def _apart(data: list[str], coverage: list[float]) -> tuple[list[str], tuple[float, ...]]:
    """Files, and coverages: an option takes one value, so the others are found among the files."""
    if not coverage:
        return data, ()
    more = [text for text in data if _is_number(text) and not Path(text).exists()]
    return [text for text in data if text not in more], (*coverage, *map(float, more))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _unfamiliar(path: Path) -> list[str]:
    """A line on windows unlike those of the fit, and the first of them by name; none if none is."""
    from r2no.adaptation import unfamiliar

    found = unfamiliar(path)
    if not found:
        return []
    shown = [f"  {text}" for text in found[:_NAMED]]
    more = [] if len(found) <= _NAMED else [f"  and {len(found) - _NAMED} more"]
    return [f"{len(found)} window(s) look unlike all windows of the fit:", *shown, *more]


@app.command(cls=HalfMoved)
def evaluate(
    artifact: Artifact,
    split: Annotated[str, typer.Option(help="train, fit or test.")] = "test",
    output: Annotated[Path | None, typer.Option(help="Also write the JSON here.")] = None,
    trust_source: TrustSource = False,
    device: options.Device = "auto",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Windows at a time; default as the artifact says.")
    ] = None,
) -> None:
    """Score an artifact, its source and persistence on a split, and print JSON.

    The artifact knows its data, which are read anew. Progress goes to standard error. Checkpoints
    and artifacts of RealPDEBench are scored by `r2no bench evaluate`.

    Example: r2no evaluate runs/piv/model.r2no --output scores.json
    """
    from r2no import storage
    from r2no.runs import evaluate_own

    check_exists(artifact, "There is no artifact")
    found = evaluate_own(
        artifact,
        name=split,
        trust_source=trust_source,
        device=device,
        batch_size=batch_size,
        reporter=reporter(),
    )
    say_json(found)  # first: the file may not be writable
    if output is not None:
        storage.write_json(output, found)


@app.command()
def report(
    artifact: Annotated[Path, typer.Argument(help="An artifact folder.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page; default the folder's name.")] = "",
) -> None:
    """Write one self-contained HTML page: verdict, scores, retention map, fields, provenance.

    Needs neither source nor data: scores and fields are shown if the artifact holds an evaluation,
    as that of `r2no demo` does.

    Example: r2no report demo-out/wake.r2no --out report.html
    """
    from r2no.report import write_report

    check_exists(artifact, "There is no artifact")

    path = write_report(artifact, out, title=title, command=command_line(), reporter=reporter())
    size = path.stat().st_size / 1e6
    say(f"Wrote {path} ({size:.1f} MB).")


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
    from r2no.data.files import is_data

    path = Path(paths[0])
    if len(paths) > 1 or is_data(paths[0]):
        found = _data(paths, options.opening(**about))
    else:
        found = _artifact(path) if path.is_dir() else _checkpoint(path)
    if as_json:
        say_json(found)
        return
    for name, value in found.items():
        text = value if isinstance(value, str) else json.dumps(value)
        line = Text.assemble((shown(name), "bold"), ": ", shown(text))
        say(line)


def _data(paths: list[str], about: dict[str, Any]) -> dict[str, Any]:
    """How data files are understood, and the share of missing values."""
    from r2no.data import open as open_data
    from r2no.data.recordings import look_for_gaps

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
    from r2no import backbones

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
    """The manifest, and whether its files are as it says."""
    from r2no.adaptation.group_files import columns_in_words
    from r2no.adaptation.stored import is_artifact, is_intact, read_manifest, understood

    if not is_artifact(folder):
        raise ConfigError(f"`{folder}` has no manifest.json, so it is no artifact, and no data.")
    manifest = read_manifest(folder)
    files = {
        name: "intact" if is_intact(folder / name, expected) else "missing or changed"
        for name, expected in manifest["files"].items()
    }
    with understood(folder):
        columns = columns_in_words(manifest)
    return {"folder": str(folder), **manifest, "columns": columns, "files": files}
