"""What a small data set holds: trajectories, grids and window settings per system."""

from dataclasses import dataclass, replace

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


def _sim_ids(text: str) -> tuple[str, ...]:
    return tuple(f"{name}.h5" for name in text.split())


PLANS = {
    "cylinder": TinyPlan(
        _sim_ids("1800 2156 2906 3843 4875 6093 7406 8812 10312 11812"),
        ((8, 16), (16, 32)),
        interval=5,
        trunk_frames=14,
        held_in=2,
        held_out=2,
    ),
    "controlled_cylinder": TinyPlan(
        _sim_ids("1781_0.5 3750_0.7 3750_0.9 3750_1.1 6000_0.7 6000_0.9 6000_1.1 9843_1.4"),
        ((8, 16), (16, 32)),
        interval=5,
        trunk_frames=16,
        held_in=1,
        held_out=2,
    ),
    "fsi": TinyPlan(
        _sim_ids(
            "3272_18.2_0.8_1 3272_18.2_0.8_2 4091_18.2_0.8_1 "
            "5318_20.8_0.8_1 6682_20.8_0.8_1 9068_20.8_0.8_2"
        ),
        ((16, 16), (16, 16)),
        interval=4,
        trunk_frames=11,
        held_in=0,
        held_out=2,
        aspect=1.0,
    ),
    "foil": TinyPlan(
        _sim_ids("2968_0 6093_5 6093_10 6093_15 10312_5 10312_10 10312_15 17031_20"),
        ((16, 32), (16, 32)),
        interval=5,
        trunk_frames=14,
        held_in=1,
        held_out=1,
    ),
    "combustion": TinyPlan(
        _sim_ids("0NH3_0.75 40NH3_1.1 60NH3_1"),
        ((16, 16), (16, 16)),
        interval=1,
        trunk_frames=7,
        held_in=0,
        held_out=0,
    ),
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
