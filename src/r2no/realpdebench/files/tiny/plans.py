"""What a small data set holds: trajectories, grids and window settings per system."""

from dataclasses import dataclass, replace
from typing import Any

from r2no.realpdebench.systems import KINDS, System, lookup


@dataclass(frozen=True)
class TinyPlan:
    """Grids (real, numerical) keep the ratio of the full data, so strides give one grid."""

    sim_ids: tuple[str, ...]
    grids: tuple[tuple[int, int], tuple[int, int]]
    interval: int
    trunk_frames: int
    held_in: int
    held_out: int
    aspect: float = 2.0

    def grid(self, kind: str) -> tuple[int, int]:
        """Height and width of one kind."""
        return self.grids[KINDS.index(kind)]


_SIM_IDS = {
    "cylinder": "1800 2156 2906 3843 4875 6093 7406 8812 10312 11812",
    "controlled_cylinder": (
        "1781_0.5 3750_0.7 3750_0.9 3750_1.1 6000_0.7 6000_0.9 6000_1.1 9843_1.4"
    ),
    "fsi": (
        "3272_18.2_0.8_1 3272_18.2_0.8_2 4091_18.2_0.8_1 "
        "5318_20.8_0.8_1 6682_20.8_0.8_1 9068_20.8_0.8_2"
    ),
    "foil": "2968_0 6093_5 6093_10 6093_15 10312_5 10312_10 10312_15 17031_20",
    "combustion": "0NH3_0.75 40NH3_1.1 60NH3_1",
}
_SETTINGS: dict[str, tuple[Any, ...]] = {  # in the order of the plan's fields
    "cylinder": (((8, 16), (16, 32)), 5, 14, 2, 2),
    "controlled_cylinder": (((8, 16), (16, 32)), 5, 16, 1, 2),
    "fsi": (((16, 16), (16, 16)), 4, 11, 0, 2, 1.0),
    "foil": (((16, 32), (16, 32)), 5, 14, 1, 1),
    "combustion": (((16, 16), (16, 16)), 1, 7, 0, 0),
}
PLANS = {
    name: TinyPlan(tuple(f"{one}.h5" for one in _SIM_IDS[name].split()), *settings)
    for name, settings in _SETTINGS.items()
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
