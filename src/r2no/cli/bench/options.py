"""Options that several commands of the benchmark share, and how they become a config."""

from pathlib import Path
from typing import Annotated, Any

import typer

ConfigFile = Annotated[
    Path | None, typer.Argument(help="YAML file with any of the options below; options win.")
]
System = Annotated[
    str | None,
    typer.Option(help="cylinder, controlled_cylinder, fsi, foil or combustion."),
]
Backbone = Annotated[
    str | None, typer.Option(help="unet, deeponet, fno, cno, transolver or dpot_s.")
]
Data = Annotated[Path | None, typer.Option(help="Folder that holds one folder per system.")]
Layout = Annotated[str | None, typer.Option(help="auto, arrow or hdf5.")]
Statistics = Annotated[
    str | None, typer.Option(help="exact, benchmark, or a file such as mean_std.pt.")
]
NormaliserName = Annotated[str | None, typer.Option(help="gaussian, range or none.")]
Cache = Annotated[Path | None, typer.Option(help="Folder to share statistics between runs.")]
Exclude = Annotated[
    list[str] | None, typer.Option(help="Trajectory to leave out; repeat for several.")
]
Incomplete = Annotated[
    str | None, typer.Option(help="raise, or skip windows whose frames are not there.")
]
Small = Annotated[bool | None, typer.Option(help="A small network, for tiny data.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the run.")]
Device = Annotated[
    str | None,
    typer.Option(help="Where to compute: auto (an accelerator if there is one), cpu, cuda:1, ..."),
]
Precision = Annotated[
    str | None, typer.Option(help="How networks multiply: float32 (default), tf32 or bf16.")
]
Workers = Annotated[
    str | None,
    typer.Option(help="Processes that read ahead in training: auto (default), 0, 2, ..."),
]
Seed = Annotated[int | None, typer.Option(help="Seed.")]
Endpoint = Annotated[str | None, typer.Option(help="Another hub, such as a mirror.")]
Revision = Annotated[str, typer.Option(help="Branch, tag or commit.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before large downloads.")]


def given(arguments: dict[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """The config file and the options that were given, of a command's arguments."""
    values = {name: value for name, value in arguments.items() if value not in (None, [])}
    return values.pop("config", None), values
