"""Options that several commands share, and how a group of them becomes one argument."""

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, get_annotations, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

import typer
from pydantic import BaseModel

from r2no.errors import ConfigError

Device = Annotated[
    str,
    typer.Option(help="Where to compute: auto (an accelerator if there is one), cpu, cuda:1, ..."),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Command = TypeVar("Command", bound=Callable[..., None])


def also(
    group: Sequence[Parameter] | Callable[..., Any], *, first: bool = False
) -> Callable[[Command], Command]:
    """Give a command more options, of a function or of :func:`fields`; they arrive in its ``**``.

    They stand behind the command's own in its help, or ``first``.
    """
    shared = _parameters(group) if callable(group) else group

    def decorate(command: Command) -> Command:
        own = _parameters(command)
        named = {one.name for one in own}
        more = [one for one in shared if one.name not in named]
        together = more + own if first else own + more
        keywords = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in together]
        command.__signature__ = Signature(keywords)  # type: ignore[attr-defined]
        command.__annotations__ |= {one.name: one.annotation for one in more}
        return command

    return decorate


def fields(config: type[BaseModel], *names: str, **flags: str) -> list[Parameter]:
    """Options for fields of a config, by default for all; without defaults, which it knows itself.

    Its own fields come before those it inherits. ``flags`` name options that are not called as
    their fields are.
    """
    own_first = [name for kind in config.__mro__ for name in get_annotations(kind)]
    known = dict.fromkeys(name for name in own_first if name in config.model_fields)
    found = []
    for name in (*names, *flags) or known:
        field = config.model_fields[name]
        shown = typer.Option(*filter(None, [flags.get(name)]), help=field.description)
        kind: Any = _parsed(field.annotation)
        option = Annotated[kind | None, shown]
        found.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=option))
    return found


def _parsed(annotation: Any) -> Any:
    """What the parser can make of a field's type; the config checks the rest."""
    kinds = [kind for kind in get_args(annotation) or [annotation] if kind is not NoneType]
    if Ellipsis in kinds:
        return list[str]
    return kinds[0] if kinds[0] in (bool, int, float, Path) else str


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Those of a function, but for its ``**``."""
    found = signature(function).parameters.values()
    return [one for one in found if one.kind is not Parameter.VAR_KEYWORD]


def given(**options: Any) -> dict[str, Any]:
    """Those that were given; a config knows what the others are."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def opening(
    variables: Annotated[
        list[str] | None, typer.Option(help="Variable of the data; repeat, in order.")
    ] = None,
    dims: Annotated[
        list[str] | None, typer.Option(help="What a dimension is, as time=t; repeat.")
    ] = None,
    axes: Annotated[
        str | None, typer.Option(help="Axes of arrays without names, as time,y,x or y,x,time.")
    ] = None,
    mask: Annotated[
        str,
        typer.Option(
            help="auto or nan: NaN is missing; none: it is an error; a variable, true where valid; "
            "or NAME=1,2 with the values that mean valid."
        ),
    ] = "auto",
    conditioning: Annotated[
        list[str] | None, typer.Option(help="Scalar variable or attribute of the data; repeat.")
    ] = None,
    units: Annotated[
        list[str] | None,
        typer.Option(help="Of data without units: one for all channels, or u=m/s; repeat."),
    ] = None,
    spacing: Annotated[
        str | None, typer.Option(help="Of a grid without coordinates, as 0.5 or 0.5,0.8.")
    ] = None,
    time_step: Annotated[float | None, typer.Option(help="Of data without times.")] = None,
    allow_sparse: Annotated[
        bool, typer.Option(help="Open files that declare far more values than are in them.")
    ] = False,
) -> dict[str, Any]:
    """The options about data as arguments of ``data.open``."""
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
