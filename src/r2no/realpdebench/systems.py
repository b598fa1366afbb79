"""The five systems of RealPDEBench: channels, sizes, file names and default window settings.

The numbers are those of the benchmark's own constructors. Sizes of a stored trajectory are always
read from its file, never taken from here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from r2no._types import Number
from r2no.checks import choice, whole
from r2no.errors import ConfigError, DataError, FileDamagedError
from r2no.storage import read_json

KINDS = ("real", "numerical")
SPLITS = ("train", "val", "test")
TEST_MODES = ("all", "in_dist", "out_dist", "seen", "unseen")
LAYOUTS = ("auto", "arrow", "hdf5")

COMBUSTION_FIELDS = (
    "Absolute_Pressure",
    "Chemistry_Heat_Release_Rate",
    *(f"Mole_Fraction_of_{species}" for species in ("CH4", "CO", "CO2", "H2O", "NH2", "NH3", "OH")),
    "Pressure",
    "Temperature",
    "Velocity[i]",
    "Velocity[j]",
    "Velocity[k]",
    "Velocity_Magnitude",
)

#: What the benchmark calls the settings of a system.
_SETTINGS = {
    "history_frames": "in_step",
    "horizon_frames": "out_step",
    "interval": "interval",
    "trunk_frames": "trunk_length",
    "frames": "n_sim_frame",
    "held_in": "n_sim_in_distribution",
    "held_out": "n_sim_out_distribution",
}
_STRIDES = ("sub_s_real", "sub_s_numerical")
_TRANSOLVER = ("transolver", "trainsolver")


def spellings(backbone: str) -> tuple[str, ...]:
    """How the benchmark's released files write the name of a network."""
    return _TRANSOLVER if backbone in _TRANSOLVER else (backbone,)


class Body(NamedTuple):
    """What stands in the flow, in native pixels of the real data; behind it lie the probes."""

    diameter: int
    center: tuple[int, int]  # (x, y)


class Column(NamedTuple):
    """A stored array of shape (time, height, width) or (time, height, width, channel)."""

    name: str
    channels: tuple[str, ...]
    measured: bool


_FLUID = tuple(Column(name, (name,), name != "p") for name in ("u", "v", "p"))
_FLAME = (
    Column("observed", ("observed",), True),
    Column("numerical", COMBUSTION_FIELDS, False),
)


@dataclass(frozen=True)
class System:
    """One system and the settings its windows were cut with; change them with ``replace``.

    ``frames`` is the nominal length of a trajectory, which the split algorithm and the
    autoregressive filter use; ``held_in`` and ``held_out`` count the real trajectories kept out of
    training; ``stride`` and ``trajectories`` are (real, numerical).
    """

    name: str
    pattern: str
    parameters: tuple[str, ...]
    columns: tuple[Column, ...] = _FLUID
    conditioned: bool = False
    history_frames: int = 20
    horizon_frames: int = 20
    interval: int = 20
    trunk_frames: int = 250
    frames: int = 3990
    time_step: float = 2.5e-3
    stride: tuple[int, int] = (2, 2)
    held_in: int = 10
    held_out: int = 10
    train_ratio: Number = 0.5
    mask_prob: Number = 0.5
    trajectories: tuple[int, int] = (0, 0)
    body: Body | None = None

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of all channels, measured ones first."""
        return tuple(channel for column in self.columns for channel in column.channels)

    @property
    def measured(self) -> tuple[int, ...]:
        """Positions of the measured channels."""
        count = sum(len(column.channels) for column in self.columns if column.measured)
        return tuple(range(count))

    def values(self, sim_id: str) -> tuple[Number, ...]:
        """The parameters that the file name ``sim_id`` spells out."""
        match = re.match(self.pattern, sim_id)
        if match is None:
            raise DataError(
                f"The trajectory name `{sim_id}` does not follow `{self.pattern}`, the pattern of "
                f"`{self.name}`. Rename the file or choose the right system."
            )
        numbers = tuple(float(group) for group in match.groups())
        return (int(numbers[0]), *numbers[1:]) if self.name == "combustion" else numbers

    def changed(self, kind: str, **settings: Any) -> "System":
        """The system with those settings that are not None, each checked; a stride is the kind's.

        Raises:
            ConfigError: for a count below one or a share that is none.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        for name in given.keys() - {"mask_prob"}:
            whole(name, given[name])
        if not 0 <= given.get("mask_prob", 0) <= 1:
            raise ConfigError(f"`mask_prob` must lie in [0, 1], but got {given['mask_prob']}.")
        if "stride" in given:
            both = list(self.stride)
            both[KINDS.index(kind)] = given["stride"]
            given["stride"] = tuple(both)
        return replace(self, **given)

    def benchmark_settings(self) -> dict[str, Any]:
        """The numbers that windows are cut with, under the benchmark's names."""
        strides = dict(zip(_STRIDES, self.stride, strict=True))
        return {theirs: getattr(self, ours) for ours, theirs in _SETTINGS.items()} | strides

    def with_benchmark_settings(self, content: Mapping[str, Any]) -> "System":
        """The system with such numbers, of data whose trajectories are not counted."""
        settings = {ours: content[theirs] for ours, theirs in _SETTINGS.items()}
        stride = content[_STRIDES[0]], content[_STRIDES[1]]
        return replace(self, **settings, stride=stride, trajectories=(0, 0))


_TWO = r"(\d+)_(\d+\.?\d*)\.h5"
_ALL = (
    System(
        "cylinder",
        r"(\d+)\.h5",
        ("reynolds",),
        stride=(1, 2),
        trajectories=(92, 92),
        body=Body(18, (32, 32)),
    ),
    System(
        "controlled_cylinder",
        _TWO,
        ("reynolds", "frequency"),
        conditioned=True,
        history_frames=10,
        horizon_frames=10,
        stride=(1, 2),
        trajectories=(96, 96),
        body=Body(18, (16, 32)),
    ),
    System(
        "fsi",
        r"(\d+)_([\d\.]+)_",
        ("reynolds", "mass_ratio"),
        interval=10,
        trunk_frames=190,
        frames=2173,
        time_step=2.0e-3,
        held_in=0,
        held_out=4,
        trajectories=(51, 51),
        body=Body(24, (66, 64)),
    ),
    System(
        "foil",
        _TWO,
        ("reynolds", "angle_of_attack"),
        trajectories=(98, 99),
        body=Body(62, (30, 64)),
    ),
    System(
        "combustion",
        r"(\d+)NH3_(\d+\.?\d*)\.h5",
        ("ammonia_percent", "equivalence_ratio"),
        columns=_FLAME,
        interval=1,
        trunk_frames=101,
        frames=2001,
        time_step=2.5e-4,
        held_in=0,
        held_out=0,
        mask_prob=0.8,
        trajectories=(30, 30),
    ),
)
SYSTEMS = {system.name: system for system in _ALL}


def lookup(name: str, root: Path | None = None) -> System:
    """Find a system by name; a small data set below ``root`` brings its own settings.

    Data written by ``write_tiny`` carry ``tiny.json``, the settings their windows were cut with.
    """
    system = SYSTEMS[choice("system", name, tuple(SYSTEMS))]
    small = root / name / "tiny.json" if root is not None else None
    if small is None or not small.is_file():
        return system
    content = read_json(small)
    try:
        return system.with_benchmark_settings(content)
    except (KeyError, TypeError) as error:
        raise FileDamagedError(
            f"`{small}` lacks the setting {error}. Write the small data set again with "
            "`r2no bench tiny`."
        ) from error
