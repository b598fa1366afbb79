"""The registry of networks, the configs RealPDEBench published, and what all networks share."""

import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

import torch
from jaxtyping import Float
from pydantic import BaseModel, PositiveInt
from torch import Tensor, nn

from r2no.checks import choice, valid
from r2no.errors import ConfigError, ShapeError

#: Frames, height, width and channels of a window without its batch axis.
Shape = tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt]

_NETWORKS = {  # name: module, class; imported on first use
    "unet": ("unet", "UNet"),
    "deeponet": ("deeponet", "DeepONet"),
    "fno": ("fno", "FNO"),
    "cno": ("cno", "CNO"),
    "transolver": ("transolver", "Transolver"),
    "dpot_s": ("dpot", "DPOT"),
}


def names() -> tuple[str, ...]:
    """Names of the networks that :func:`build` knows."""
    return tuple(_NETWORKS)


def systems() -> tuple[str, ...]:
    """Names of the RealPDEBench systems with a published config of every network."""
    return tuple(_published()["fno"])


def network_class(name: str) -> type[nn.Module]:
    """The class behind a registry name."""
    module, attribute = _NETWORKS[choice("network", name, names())]
    found: type[nn.Module] = getattr(importlib.import_module(f"r2no.backbones.{module}"), attribute)
    return found


def config_class(name: str) -> type[BaseModel]:
    """The config class behind a registry name."""
    network = network_class(name)
    module = importlib.import_module(network.__module__)
    found: type[BaseModel] = getattr(module, f"{network.__name__}Config")
    return found


def published_config(name: str, system: str) -> BaseModel:
    """The config with which RealPDEBench trained network ``name`` on ``system``."""
    settings = _published()[choice("network", name, names())]
    return config_class(name)(**settings[choice("system", system, settings)])


def build(
    name: str,
    *,
    system: str | None = None,
    config: BaseModel | Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build a network with fresh weights, from a published config or from your own.

    Args:
        name: one of :func:`names`.
        system: one of :func:`systems`, for the published config.
        config: the network's config, or its fields as a mapping; instead of ``system``.

    Raises:
        ConfigError: for an unknown name, a bad config, or unless exactly one of ``system`` and
            ``config`` is given.
    """
    if (system is None) == (config is None):
        raise ConfigError(
            "`build` needs either `system` (a published config) or `config`, "
            f"but got system={system!r} and {'no' if config is None else 'a'} config."
        )
    settings = published_config(name, system) if system is not None else config
    return network_class(name)(_as_config(name, settings))


def small_config(name: str, *, shape_in: tuple[int, ...], shape_out: tuple[int, ...]) -> BaseModel:
    """A config that trains in seconds on a CPU, for trying things out on any grid.

    Networks stay under 300,000 parameters where their structure permits; DeepONet has fixed layers
    of three million. Shapes are (time, height, width, channel).

    Raises:
        ConfigError: if the network cannot work on these shapes.
    """
    _check_shapes(name, tuple(shape_in), tuple(shape_out))
    return _as_config(name, _small_settings(name, tuple(shape_in), tuple(shape_out)))


def _check_shapes(name: str, shape_in: tuple[int, ...], shape_out: tuple[int, ...]) -> None:
    """The limits that a config without the grid (U-Net, CNO, Transolver) cannot see."""
    for shape in (shape_in, shape_out):
        if len(shape) != 4 or any(type(size) is not int or size < 1 for size in shape):
            raise ConfigError(
                "`shape_in` and `shape_out` must be (time, height, width, channel), four positive "
                f"integers each, but got {shape_in} and {shape_out}."
            )
    (time, *grid, channels), (time_out, *grid_out, _) = shape_in, shape_out
    rules = {
        "one grid for history and prediction": grid == grid_out and len(grid) == 2,
        "a multiple of the history's frames": (
            time_out % time == 0 or name not in ("unet", "cno", "fno")
        ),
        "as many frames out as in": time_out == time or name != "transolver",
        "fewer channels than frames": channels < time or name != "cno",
    }
    if broken := [rule for rule, holds in rules.items() if not holds]:
        raise ConfigError(
            f"Network {name!r} needs {' and '.join(broken)}, but got {shape_in} -> {shape_out} "
            "as (time, height, width, channel). Choose another network or cut the windows."
        )


def _small_settings(
    name: str, shape_in: tuple[int, ...], shape_out: tuple[int, ...]
) -> dict[str, Any]:
    """Settings of a network that trains in seconds on windows of these shapes."""
    (time, height, width, channels), (time_out, _, _, channels_out) = shape_in, shape_out
    shapes = {"shape_in": shape_in, "shape_out": shape_out}
    match choice("network", name, names()):
        case "fno":
            modes = {"modes1": 2, "modes2": min(6, height), "modes3": min(8, width // 2 + 1)}
            return {**shapes, **modes, "n_layers": 3, "width": 12}
        case "deeponet":
            return {**shapes, "p": 32, "dropout_rate": 0.0}
        case "unet":
            data = {"channels": channels, "out_channels": channels_out}
            levels = (1,) if height % 2 or width % 2 else (1, 2)
            return {**data, "in_time": time, "out_time": time_out, "dim": 8, "dim_mults": levels}
        case "cno":
            data = {"in_dim": channels, "out_dim": channels_out, "out_dim_mult": time_out // time}
            return {**data, "in_size": width, "N_layers": 1, "N_res_neck": 1}
        case "transolver":  # the mesh in the order of the data, so neighbours stay neighbours
            mesh = {"H": time, "W": height, "D": width}
            sizes = {"n_layers": 2, "n_hidden": 32, "n_head": 4, "mlp_ratio": 2, "slice_num": 16}
            return {"space_dim": channels, "out_dim": channels_out, **mesh, **sizes, "dropout": 0.0}
        case _:  # dpot_s, on the smallest square of whole patches that holds the grid
            patch = 4 if max(height, width) <= 32 else 8
            frames = {"in_timesteps": time, "out_timesteps": time_out}
            data = {"in_channels": max(channels, 4), "out_channels": max(channels_out, 4)}
            size = {"img_size": -(-max(height, width) // patch) * patch, "patch_size": patch}
            sizes = {"embed_dim": 64, "depth": 2, "n_blocks": 4, "modes": 16, "out_layer_dim": 16}
            return {**shapes, **frames, **data, **size, **sizes}


def _as_config(name: str, config: Any) -> BaseModel:
    """A config of the network's class, from one or from its fields by name."""
    expected = config_class(name)
    if isinstance(config, expected):
        return config
    if isinstance(config, BaseModel):
        raise ConfigError(
            f"Network {name!r} needs a `{expected.__name__}`, but got a `{type(config).__name__}`."
        )
    if not isinstance(config, Mapping) or any(not isinstance(key, str) for key in config):
        raise ConfigError(
            f"`config` must be a `{expected.__name__}` or its fields by name, but got {config!r}."
        )
    return valid(expected, config, f"The config of network {name!r}")


@cache
def _published() -> dict[str, dict[str, dict[str, Any]]]:
    """Published configs by network, then by system."""
    text = resources.files("r2no.backbones").joinpath("published.json").read_text()
    published: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    return published


def unit_grid(sizes: Iterable[int]) -> Float[Tensor, "*sizes axis"]:
    """Coordinates of a grid, each axis from 0 to 1, computed in float64 and stored in float32."""
    axes = [torch.linspace(0, 1, size, dtype=torch.float64) for size in sizes]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).float()


def check_window(x: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse an input that is not a batch of windows of ``shape``."""
    wanted = f"(time, height, width, channel) = {tuple(shape)}"
    check_input(x, wanted, lambda: tuple(x.shape[1:]) == tuple(shape))


def check_input(x: Tensor, wanted: str, fits: Callable[[], bool]) -> None:
    """Refuse an input that is not a batch of windows, or does not fit; silent while compiling.

    Raises:
        ShapeError: naming what was wanted and the shape that came.
    """
    if torch.compiler.is_compiling():
        return
    if x.ndim != 5 or len(x) == 0 or not fits():
        raise ShapeError(
            "`x` must be at least one window, (batch, time, height, width, channel), with "
            f"{wanted}, but got shape {tuple(x.shape)}. "
            "Cut or pad the window, or build the network for this shape."
        )
