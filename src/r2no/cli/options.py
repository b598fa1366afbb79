"""Options that several commands share, and how they become a config."""

from pathlib import Path
from typing import Annotated, Any

import typer

from r2no.errors import ConfigError

Config = Annotated[
    Path, typer.Argument(help="YAML file: data, source, adapt, out; see `r2no schema`.")
]
Device = Annotated[
    str,
    typer.Option(help="Where to compute: auto (an accelerator if there is one), cpu, cuda:1, ..."),
]
DeviceOfFile = Annotated[
    str | None, typer.Option("--device", help="Where to compute: auto, cpu, cuda:1, mps.")
]
AllowSparse = Annotated[
    bool, typer.Option(help="Open files that declare far more values than are in them.")
]

Variables = Annotated[
    list[str] | None, typer.Option(help="Variable of the data; repeat, in order.")
]
Dims = Annotated[list[str] | None, typer.Option(help="What a dimension is, as time=t; repeat.")]
AxesNames = Annotated[
    str | None, typer.Option(help="Axes of arrays without names, as time,y,x or y,x,time.")
]
Mask = Annotated[
    str,
    typer.Option(
        help="auto or nan: NaN is missing; none: it is an error; a variable, true where valid; or "
        "NAME=1,2 with the values that mean valid."
    ),
]
Conditioning = Annotated[
    list[str] | None, typer.Option(help="Scalar variable or attribute of the data; repeat.")
]
Units = Annotated[
    list[str] | None,
    typer.Option(help="Of data without units: one for all channels, or u=m/s; repeat."),
]
Spacing = Annotated[
    str | None, typer.Option(help="Of a grid without coordinates, as 0.5 or 0.5,0.8.")
]
TimeStep = Annotated[float | None, typer.Option(help="Of data without times.")]


def opening(
    variables: list[str] | None,
    dims: list[str] | None,
    axes: str | None,
    mask: str,
    conditioning: list[str] | None,
    units: list[str] | None,
    spacing: str | None,
    time_step: float | None,
    allow_sparse: bool,
) -> dict[str, Any]:
    """The options about data, in the order of every command, as arguments of ``data.open``."""
    return {
        "variables": variables or None,
        "dims": _pairs("--dims", dims or [], "role=name, as in time=t"),
        "axes": [part.strip() for part in axes.split(",")] if axes else None,
        "mask": _mask(mask),
        "conditioning": conditioning or (),
        "units": _units(units or []),
        "spacing": _numbers("--spacing", spacing) if spacing else None,
        "time_step": time_step,
        "allow_sparse": allow_sparse,
    }


def _mask(text: str) -> Any:
    if text == "none":
        return None
    name, separator, values = text.partition("=")
    return {"variable": name, "valid": _numbers("--mask", values)} if separator else text


def _units(texts: list[str]) -> Any:
    if not texts:
        return None
    if any("=" in text for text in texts):
        return _pairs("--units", texts, "one unit for all channels, or name=unit, as in u=m/s")
    return texts[0] if len(texts) == 1 else texts


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"`{option}` takes numbers, as in 1,2, but got {text!r}.") from None


def _pairs(option: str, texts: list[str], expected: str) -> dict[str, str]:
    found = {}
    for text in texts:
        role, separator, name = text.partition("=")
        if not (role and separator and name):
            raise ConfigError(f"`{option}` takes {expected}, but got {text!r}.")
        found[role] = name
    return found
