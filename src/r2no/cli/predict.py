"""``r2no predict``: forecasts of measured data as a NetCDF or Zarr file."""

from pathlib import Path
from typing import Annotated

import typer

from r2no.cli.app import app, console
from r2no.errors import ConfigError
from r2no.training import Reporter


@app.command()
def predict(
    artifact: Annotated[Path, typer.Argument(help="Folder that `r2no adapt` wrote.")],
    data: Annotated[
        list[str], typer.Argument(help="NetCDF, Zarr, HDF5, npz or npy files, or patterns.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: *.nc or *.zarr.")] = Path("forecast.nc"),
    origins: Annotated[
        str, typer.Option(help="all: every STRIDE frames and from the last ones; last: only those.")
    ] = "all",
    stride: Annotated[
        int | None, typer.Option(min=1, help="Frames between two forecasts; default the horizon.")
    ] = None,
    variables: Annotated[
        list[str] | None, typer.Option(help="Variable of the data; repeat, in order.")
    ] = None,
    dims: Annotated[
        list[str] | None, typer.Option(help="What a dimension is, as time=t; repeat.")
    ] = None,
    axes: Annotated[
        str | None, typer.Option(help="Axes of arrays without names, as time,y,x,channel.")
    ] = None,
    mask: Annotated[
        str, typer.Option(help="auto or nan: NaN is missing; or a variable, true where valid.")
    ] = "auto",
    conditioning: Annotated[
        list[str] | None, typer.Option(help="Scalar variable or attribute of the data; repeat.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Checkpoint of the source, if not in the artifact.")
    ] = None,
    trust_source: Annotated[
        bool, typer.Option(help="Import the factory, or open the program, the artifact names.")
    ] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Forecasts at a time.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a file of other origin.")] = False,
) -> None:
    """Forecast from measurements, also beyond their last frame, and write a file with coordinates.

    Data are read and written piece by piece. A run that is stopped goes on where it was.

    Example: r2no predict wake.r2no piv.nc --out forecast.nc
    """
    from r2no.adaptation import load, write_predictions
    from r2no.data import open as open_data
    from r2no.training import load_operator

    if origins not in ("all", "last"):
        raise ConfigError(f"`--origins` must be all or last, but got {origins!r}.")
    measured = open_data(
        data,
        variables=variables or None,
        dims=_pairs(dims or []),
        axes=axes.split(",") if axes else None,
        mask=mask,
        conditioning=conditioning or (),
    )
    console.print(measured.describe(), highlight=False, markup=False, soft_wrap=True)
    operator = None if source is None else load_operator(source)[0]
    model = load(artifact, operator, trust_source=trust_source)
    path = write_predictions(
        model,
        measured,
        out,
        origins="last" if origins == "last" else "all",
        stride=stride,
        batch_size=batch_size,
        overwrite=overwrite,
        reporter=Reporter(),
    )
    console.print(
        f'Wrote {path}. Open it with `xarray.open_dataset("{path}")`.',
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _pairs(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        role, separator, name = text.partition("=")
        if not (role and separator and name):
            raise ConfigError(f"`--dims` takes role=name, as in time=t, but got {text!r}.")
        found[role] = name
    return found
