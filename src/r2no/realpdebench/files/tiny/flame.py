"""A closed-form V-shaped flame: the observed intensity and, simulated, fifteen fields."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2no.realpdebench.files.tiny.plans import PLANS, stream
from r2no.realpdebench.files.tiny.wake import Array, rounded
from r2no.realpdebench.systems import COMBUSTION_FIELDS, lookup

_BITS = dict(
    zip(COMBUSTION_FIELDS, (4, 6, 18, 18, 18, 18, 24, 18, 22, 8, 6, 12, 12, 12, 12), strict=True)
)


@dataclass(frozen=True)
class Flame:
    """Intensity (time, height, width), simulated fields with a last axis of 15, and the axes."""

    observed: NDArray[np.float32]
    fields: NDArray[np.float32] | None
    x: Array
    y: Array
    t: Array


def flame(sim_id: str, kind: str, *, frames: int, seed: int) -> Flame:
    """The flame of one trajectory."""
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
    fields = _fields(ammonia / 100, ratio, rate, rise, distance, across, up)
    stack = [rounded(np.broadcast_to(fields[key], rate.shape), _BITS[key]) for key in _BITS]
    return Flame(rounded(observed, 14), np.stack(stack, axis=-1), x, y, times)


def _fields(
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
