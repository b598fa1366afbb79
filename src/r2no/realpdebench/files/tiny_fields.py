"""Closed-form fields of the small data sets, measured and simulated with a gap: a wake and a flame.

The measured wake sheds 6 % faster and more weakly, drifts on a large scale and is noisy. Values are
rounded to a power of two, so float32 holds them exactly and the last bit of sin does not matter.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2no._types import Number
from r2no.realpdebench.systems import COMBUSTION_FIELDS, KINDS, System, lookup

Array = NDArray[np.floating[Any]]
_DIAMETER = 0.14
_CENTRE = {"cylinder": 0.5, "controlled_cylinder": 0.25, "fsi": 0.5, "foil": 0.25}
_BITS = dict(
    zip(COMBUSTION_FIELDS, (4, 6, 18, 18, 18, 18, 24, 18, 22, 8, 6, 12, 12, 12, 12), strict=True)
)


@dataclass(frozen=True)
class TinyPlan:
    """What a small data set holds: trajectories, named by ``parameters``, grids and windows.

    Grids (real, numerical) keep the ratio of the full data, so strides give one grid.
    """

    parameters: str
    grids: tuple[tuple[int, int], tuple[int, int]]
    interval: int
    trunk_frames: int
    held_in: int
    held_out: int
    aspect: float = 2.0

    @property
    def sim_ids(self) -> tuple[str, ...]:
        """Names of the trajectories."""
        return tuple(f"{one}.h5" for one in self.parameters.split())

    def grid(self, kind: str) -> tuple[int, int]:
        """Height and width of one kind."""
        return self.grids[KINDS.index(kind)]


PLANS = {  # windows: interval, trunk, trajectories held in and held out
    "cylinder": TinyPlan(
        "1800 2156 2906 3843 4875 6093 7406 8812 10312 11812", ((8, 16), (16, 32)), 5, 14, 2, 2
    ),
    "controlled_cylinder": TinyPlan(
        "1781_0.5 3750_0.7 3750_0.9 3750_1.1 6000_0.7 6000_0.9 6000_1.1 9843_1.4",
        ((8, 16), (16, 32)),
        *(5, 16, 1, 2),
    ),
    "fsi": TinyPlan(
        "3272_18.2_0.8_1 3272_18.2_0.8_2 4091_18.2_0.8_1 "
        "5318_20.8_0.8_1 6682_20.8_0.8_1 9068_20.8_0.8_2",
        ((16, 16), (16, 16)),
        *(4, 11, 0, 2),
        aspect=1.0,
    ),
    "foil": TinyPlan(
        "2968_0 6093_5 6093_10 6093_15 10312_5 10312_10 10312_15 17031_20",
        ((16, 32), (16, 32)),
        *(5, 14, 1, 1),
    ),
    "combustion": TinyPlan("0NH3_0.75 40NH3_1.1 60NH3_1", ((16, 16), (16, 16)), 1, 7, 0, 0),
}


def tiny_system(name: str, frames: int = 60) -> System:
    """The system with the settings of its small data set."""
    plan = PLANS[lookup(name).name]
    return replace(
        lookup(name),
        frames=frames,
        interval=plan.interval,
        trunk_frames=plan.trunk_frames,
        held_in=plan.held_in,
        held_out=plan.held_out,
        trajectories=(len(plan.sim_ids), len(plan.sim_ids)),
    )


def stream(name: str, sim_id: str, seed: int) -> list[int]:
    """Seed of a trajectory: the data set's, the system's place and the trajectory's place."""
    return [seed, list(PLANS).index(name), PLANS[name].sim_ids.index(sim_id)]


def rounded(values: Array, bits: int) -> NDArray[np.float32]:
    """Nearest multiples of 2^-bits, as float32."""
    return np.ldexp(np.rint(np.ldexp(values, bits)), -bits).astype(np.float32)


@dataclass(frozen=True)
class Wake:
    """Fields (time, height, width) on a grid x, y (height, width) at times t."""

    u: NDArray[np.float32]
    v: NDArray[np.float32]
    p: NDArray[np.float32]
    vorticity: NDArray[np.float32]
    x: Array
    y: Array
    t: Array


def wake(name: str, sim_id: str, kind: str, *, frames: int, seed: int) -> Wake:
    """The vortex street behind a body of one trajectory."""
    plan, system = PLANS[name], lookup(name)
    height, width = plan.grid(kind)
    real = kind == "real"
    random = np.random.default_rng(stream(name, sim_id, seed))
    phase, slant = random.uniform(0, 2 * math.pi), random.uniform(0.7, 1.3)
    wobble = random.uniform(0.5, 1.5)
    x, y = np.meshgrid(
        np.arange(width) * (plan.aspect / width), np.arange(height) * (1.0 / height) - 0.5
    )
    turns = (np.arange(frames) / 20.0)[:, None, None]  # about one period in 20 frames
    along, across = _body_frame(name, system.values(sim_id), x, y, turns, phase)

    speed = 0.05 + system.values(sim_id)[0] / 2.0e4
    onset = 1.0 / (1.0 + np.exp(-2.0 * (along - 1.0)))
    spread = 1.0 + 0.08 * np.maximum(along, 0.0)
    envelope = np.exp(-0.5 * (across / spread) ** 2) * onset
    deficit = (0.55 if real else 0.65) * envelope
    strength = 0.30 * (0.8 if real else 1.0)
    angle = 2 * math.pi * ((1.06 if real else 1.0) * turns - 0.28 * along) + phase

    u = speed * (1.0 - deficit + strength * slant * across * envelope * np.cos(angle))
    v = speed * strength * envelope * np.sin(angle)
    p = -0.5 * speed**2 * (deficit + 0.5 * strength * envelope * np.cos(2 * angle + wobble))
    if real:
        u = u + 0.03 * speed * np.sin(2 * math.pi * (y * slant + 0.3 * turns) + wobble)
        noise = np.random.default_rng([*stream(name, sim_id, seed), 99])
        u = u + 0.01 * speed * noise.standard_normal(u.shape)
        v = v + 0.01 * speed * noise.standard_normal(v.shape)
    body = _inside(name, along, across)
    u, v = (rounded(np.where(body, 0.0, velocity), 12) for velocity in (u, v))
    curl = _curl(u, v, spacing=(1.0 / height, plan.aspect / width))
    times = np.arange(frames) * system.time_step
    return Wake(u, v, rounded(p, 14), rounded(curl, 8), x, y, times)


def _body_frame(
    name: str, parameters: tuple[Number, ...], x: Array, y: Array, turns: Array, phase: float
) -> tuple[Array, Array]:
    """Coordinates along and across the wake in body diameters; the body may move or tilt."""
    centre: Array = np.zeros_like(turns)
    slope = 0.0
    if name == "controlled_cylinder":
        centre = 0.04 * np.sin(2 * math.pi * parameters[1] * turns + phase)
    elif name == "fsi":
        centre = 0.05 * np.sin(2 * math.pi * turns / parameters[1] * 18.0 + phase)
    elif name == "foil":
        slope = math.tan(math.radians(parameters[1]))
    behind = np.maximum(x - _CENTRE[name], 0.0)
    return (x - _CENTRE[name]) / _DIAMETER, (y - centre + slope * behind) / _DIAMETER


def _inside(name: str, along: Array, across: Array) -> NDArray[np.bool_]:
    if name == "foil":  # a thin plate
        return (np.abs(across) < 0.35) & (np.abs(along) < 1.2)
    return along**2 + across**2 < 0.25


def _curl(u: Array, v: Array, *, spacing: tuple[float, float]) -> Array:
    dv_dx = np.gradient(v.astype(np.float64), spacing[1], axis=2)
    du_dy = np.gradient(u.astype(np.float64), spacing[0], axis=1)
    return dv_dx - du_dy


@dataclass(frozen=True)
class Flame:
    """Intensity (time, height, width), simulated fields with a last axis of 15, and the axes."""

    observed: NDArray[np.float32]
    fields: NDArray[np.float32] | None
    x: Array
    y: Array
    t: Array


def flame(sim_id: str, kind: str, *, frames: int, seed: int) -> Flame:
    """The V-shaped flame of one trajectory: its intensity and, simulated, fifteen fields."""
    height, width = PLANS["combustion"].grid(kind)
    real = kind == "real"
    random = np.random.default_rng(stream("combustion", sim_id, seed))
    phase, waves = random.uniform(0, 2 * math.pi), random.uniform(1.5, 2.5)
    ammonia, ratio = lookup("combustion").values(sim_id)
    x, y = np.arange(width) / width - 0.5, np.arange(height) / height
    across, up = np.meshgrid(x, y)
    turns = (np.arange(frames) / 16.0)[:, None, None]

    rise = 2 * math.pi * (waves * up - (1.1 if real else 1.0) * turns) + phase
    front = 0.06 + 0.32 * up + 0.04 * np.sin(rise)  # half opening of the V
    distance = (np.abs(across) - front) / 0.07
    rate = np.exp(-(distance**2)) * np.exp(-(((up - 0.45) / 0.3) ** 2))
    brightness = (1.0 - 0.006 * ammonia) * (0.6 + 0.4 * math.exp(-8 * (ratio - 1.0) ** 2))
    times = np.arange(frames) * lookup("combustion").time_step
    if real:
        noise = np.random.default_rng([*stream("combustion", sim_id, seed), 99])
        grain = 0.004 * np.abs(noise.standard_normal(rate.shape))
        observed = 0.35 * brightness * rate**1.4 + grain
        return Flame(rounded(observed, 14), None, x, y, times)
    observed = 0.30 * brightness * rate**1.2
    fields = _flame_fields(ammonia / 100, ratio, rate, rise, distance, across, up)
    stack = [rounded(np.broadcast_to(fields[key], rate.shape), _BITS[key]) for key in _BITS]
    return Flame(rounded(observed, 14), np.stack(stack, axis=-1), x, y, times)


def _flame_fields(
    ammonia: float,
    ratio: float,
    rate: Array,
    rise: Array,
    distance: Array,
    across: Array,
    up: Array,
) -> dict[str, Any]:
    """The simulated fields, from the progress of the reaction (0 fresh, 1 burnt)."""
    burnt = 1.0 / (1.0 + np.exp(3.0 * distance))
    fresh = 1 - burnt
    methane = 1 - ammonia
    velocity = (
        4.0 * np.sign(across) * fresh * up + 0.6 * np.sin(rise),
        12.0 * (0.4 + burnt) + 0.8 * np.cos(rise),
        6.0 * across * fresh,
    )
    gauge = 40.0 * np.cos(rise) * fresh - 0.3 * velocity[1] ** 2
    values = (
        101325.0 + gauge,
        2.0e3 * rate,
        fresh * 0.095 * methane * ratio,
        0.03 * rate * methane,
        0.09 * burnt * methane,
        0.18 * burnt,
        1.0e-3 * rate * ammonia,
        fresh * 0.2 * ammonia,
        4.0e-3 * rate,
        gauge,
        300.0 + 1750.0 * burnt * (0.8 + 0.2 * ratio),
        *velocity,
        np.sqrt(velocity[0] ** 2 + velocity[1] ** 2 + velocity[2] ** 2),
    )
    return dict(zip(COMBUSTION_FIELDS, values, strict=True))
