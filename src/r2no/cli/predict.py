"""``r2no predict``: forecasts of measured data as a NetCDF or Zarr file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from r2no.cli import options
from r2no.cli.app import app, check_exists, say
from r2no.errors import ConfigError
from r2no.progress import Reporter

Measured = Annotated[
    list[str],
    typer.Argument(help="NetCDF, Zarr, HDF5, MATLAB, npz or npy files, folders or patterns."),
]
_NAMED = 10  # unfamiliar windows


@app.command()
@options.also(options.opening)
def predict(
    artifact: options.Artifact,
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
    trust_source: options.TrustSource = False,
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
    from r2no.data import open as open_data
    from r2no.devices import choose, describe
    from r2no.training import load_operator

    if origins not in ("all", "last"):
        raise ConfigError(f"`--origins` must be all or last, but got {origins!r}.")
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
        reporter=Reporter(),
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
