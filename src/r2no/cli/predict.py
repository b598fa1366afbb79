"""``r2no predict``: forecasts of measured data as a NetCDF or Zarr file."""

from pathlib import Path
from typing import Annotated

import typer

from r2no.cli import options
from r2no.cli.app import app, check_exists, console
from r2no.errors import ConfigError
from r2no.progress import Reporter


@app.command()
def predict(
    artifact: Annotated[Path, typer.Argument(help="Folder that `r2no adapt` wrote.")],
    data: Annotated[
        list[str],
        typer.Argument(help="NetCDF, Zarr, HDF5, MATLAB, npz or npy files, folders or patterns."),
    ],
    out: Annotated[Path, typer.Option(help="File to write: *.nc or *.zarr.")] = Path("forecast.nc"),
    origins: Annotated[
        str, typer.Option(help="all: every STRIDE frames and from the last ones; last: only those.")
    ] = "all",
    stride: Annotated[
        int | None, typer.Option(min=1, help="Frames between two forecasts; default the horizon.")
    ] = None,
    variables: options.Variables = None,
    dims: options.Dims = None,
    axes: options.AxesNames = None,
    mask: options.Mask = "auto",
    conditioning: options.Conditioning = None,
    units: options.Units = None,
    spacing: options.Spacing = None,
    time_step: options.TimeStep = None,
    allow_sparse: options.AllowSparse = False,
    source: Annotated[
        Path | None, typer.Option(help="Checkpoint of the source, if not in the artifact.")
    ] = None,
    trust_source: Annotated[
        bool, typer.Option(help="Import the factory, or open the program, the artifact names.")
    ] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Forecasts at a time.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a file of other origin.")] = False,
    device: options.Device = "auto",
) -> None:
    """Forecast from measurements, also beyond their last frame, and write a file with coordinates.

    Data are read and written piece by piece. A run that is stopped goes on where it was. Data
    without coordinates are taken to have the spacing and time step the model was adapted to.

    Example: r2no predict wake.r2no piv.nc --out forecast.nc
    """
    from r2no.adaptation import load, write_predictions
    from r2no.data import open as open_data
    from r2no.devices import choose, describe
    from r2no.training import load_operator

    if origins not in ("all", "last"):
        raise ConfigError(f"`--origins` must be all or last, but got {origins!r}.")
    check_exists(artifact, "There is no artifact")
    place = choose(device)
    about = options.opening(
        variables=variables,
        dims=dims,
        axes=axes,
        mask=mask,
        conditioning=conditioning,
        units=units,
        spacing=spacing,
        time_step=time_step,
        allow_sparse=allow_sparse,
    )
    measured = open_data(data, **about)
    operator = None if source is None else load_operator(source)[0]
    model = load(artifact, operator, trust_source=trust_source, device=place)
    measured = measured.completed(model.fields)
    console.print(measured.describe(), highlight=False, soft_wrap=True)
    console.print(f"Computing on {describe(model.device)}.", highlight=False, soft_wrap=True)
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
