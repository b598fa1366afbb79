"""The simulations behind the built-in wake: settings, random draws and the runs themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from r2no.checks import whole
from r2no.errors import ConfigError
from r2no.training.parallel import Progress, run_tasks
from r2no.wake.cylinder import Domain
from r2no.wake.lattice import LatticeFlow, start_shedding
from r2no.wake.standin import InflowTurbulence, Vibration, View, add_measurement_errors

# The domain around the view, in recorded cells: room for the inflow to reach the cylinder, for
# vortices to fade before the outlet, and for the flow to pass on both sides (blockage 1/8).
CELLS_PER_DIAMETER = 6
_BEFORE, _BEHIND, _BESIDE = 6, 8, 8
_UPSTREAM = 11.5  # from the left edge of the view to the cylinder
_COARSE, _FINE = 4 / 3, 2.0  # lattice cells per recorded cell
_FLOWS_PER_TASK = 4  # fixed, so the bits do not depend on the number of cores


@dataclass(frozen=True)
class WakeSettings:
    """Everything the wake depends on besides the code.

    Attributes:
        seed: of every random draw.
        grid: recorded cells (height, width).
        history: frames of a window that are given.
        horizon: frames of a window that are asked for.
        stride: frames between the starts of two windows.
        frame_time: time between frames in D/U; ten frames are about one shedding period.
        reynolds: range of nominal Reynolds numbers.
        numerical_train: simulated trajectories for training.
        numerical_val: simulated trajectories for validation.
        numerical_frames: frames of each.
        real_train: stand-in trajectories for training.
        real_fit: stand-in trajectories for fitting the ensemble.
        real_test: stand-in trajectories for testing.
        real_frames: frames of each.
        turbulence: inflow turbulence of the stand-in, as a fraction of the free stream.
        noise: noise of the stand-in's PIV, as a fraction of the free stream.
        outliers: fraction of wrong vectors.
        interrogation: width of an interrogation window in recorded cells.
        speed: free stream in lattice cells per step.
        spin_up: time in D/U for shedding to develop, never recorded.
        settle: time in D/U for the stand-in's disturbances to fill the domain, never recorded.
    """

    seed: int
    grid: tuple[int, int] = (32, 64)
    history: int = 10
    horizon: int = 10
    stride: int = 2
    frame_time: float = 0.5
    reynolds: tuple[float, float] = (80.0, 200.0)
    numerical_train: int = 6
    numerical_val: int = 2
    numerical_frames: int = 100
    real_train: int = 6
    real_fit: int = 6
    real_test: int = 4
    real_frames: int = 70
    turbulence: float = 0.025
    noise: float = 0.015
    outliers: float = 0.003
    interrogation: float = 2.0
    speed: float = 0.125
    spin_up: float = 40.0
    settle: float = 14.0

    @classmethod
    def quick(cls, seed: int) -> "WakeSettings":
        """Fewer and shorter trajectories, for trying things out."""
        return cls(
            seed,
            numerical_train=3,
            numerical_val=1,
            numerical_frames=50,
            real_train=3,
            real_fit=3,
            real_test=2,
            real_frames=40,
        )

    def __post_init__(self) -> None:
        whole("seed", self.seed, least=0)
        shortest = min(self.numerical_frames, self.real_frames)
        if shortest < self.history + self.horizon:
            raise ConfigError(
                f"Trajectories of {shortest} frames hold no window of {self.history} + "
                f"{self.horizon} frames. Raise `numerical_frames` and `real_frames`."
            )

    @property
    def numerical_count(self) -> int:
        """Simulated trajectories in all."""
        return self.numerical_train + self.numerical_val

    @property
    def real_count(self) -> int:
        """Stand-in trajectories in all."""
        return self.real_train + self.real_fit + self.real_test


def wake_domain(settings: WakeSettings, ratio: float) -> Domain:
    """The lattice of the wake with ``ratio`` cells per recorded cell."""
    height, width = settings.grid
    return Domain(
        height=round(ratio * (height + 2 * _BESIDE)),
        width=round(ratio * (width + _BEFORE + _BEHIND)),
        diameter=ratio * CELLS_PER_DIAMETER,
        centre=(ratio * (_BEFORE + _UPSTREAM), ratio * (height / 2 + _BESIDE)),
        speed=settings.speed,
        sides="periodic",
        sponge=round(ratio * _BEHIND),
    )


@dataclass(frozen=True, eq=False)
class _Draws:
    """All that is random before the flow starts, for all trajectories of both kinds."""

    numerical_reynolds: Tensor
    numerical_kick: Tensor
    real_reynolds: Tensor
    real_kick: Tensor
    viscosity_offset: float
    turbulence: InflowTurbulence
    vibration: Vibration

    @classmethod
    def draw(cls, settings: WakeSettings, generator: torch.Generator) -> "_Draws":
        """Draw everything that is random, in one fixed order."""
        fine, count = wake_domain(settings, _FINE), settings.real_count
        return cls(
            numerical_reynolds=_draw_reynolds(
                settings, (settings.numerical_train, settings.numerical_val), generator
            ),
            numerical_kick=_draw_kick(settings.numerical_count, generator),
            real_reynolds=_draw_reynolds(
                settings, (settings.real_train, settings.real_fit, settings.real_test), generator
            ),
            real_kick=_draw_kick(count, generator),
            viscosity_offset=0.10 + 0.05 * float(torch.rand((), generator=generator)),
            turbulence=InflowTurbulence.draw(
                fine, count, intensity=settings.turbulence, generator=generator
            ),
            vibration=Vibration.draw(fine, count, generator=generator),
        )


def _draw_reynolds(
    settings: WakeSettings, splits: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    """For each split: one Reynolds number from each of equal parts of the range."""
    low, high = settings.reynolds
    numbers = []
    for count in splits:
        position = (torch.arange(count) + torch.rand(count, generator=generator)) / count
        numbers.append(low + (high - low) * position)
    return torch.cat(numbers)


def _draw_kick(count: int, generator: torch.Generator) -> Tensor:
    sign = 2.0 * torch.randint(0, 2, (count,), generator=generator) - 1
    return sign * (0.4 + 0.4 * torch.rand(count, generator=generator))


def simulate_wake(settings: WakeSettings, progress: Progress | None) -> dict[str, Tensor]:
    """All trajectories as tensors (trajectory, time, height, width, channel)."""
    generator = torch.Generator().manual_seed(settings.seed)
    draws = _Draws.draw(settings, generator)
    real_tasks = [
        partial(_real_frames, settings, draws, part) for part in _tasks_of(settings.real_count)
    ]
    numerical_tasks = [
        partial(_numerical_frames, settings, draws, part)
        for part in _tasks_of(settings.numerical_count)
    ]
    work = _work(settings, len(real_tasks), len(numerical_tasks))
    results = run_tasks([*real_tasks, *numerical_tasks], work, progress)
    seen = torch.cat(results[: len(real_tasks)])
    velocity = add_measurement_errors(
        seen[..., :2],
        seen[..., 2],
        noise=settings.noise,
        outliers=settings.outliers,
        generator=generator,
    )
    unmeasured = torch.zeros_like(velocity[..., :1])  # pressure
    return {
        "numerical": torch.cat(results[len(real_tasks) :]).contiguous(),
        "numerical_reynolds": draws.numerical_reynolds,
        "real": torch.cat([velocity, unmeasured], -1),
        "real_reynolds": draws.real_reynolds,
        "viscosity_offset": torch.tensor(draws.viscosity_offset),
    }


def _work(settings: WakeSettings, real_tasks: int, numerical_tasks: int) -> int:
    """Frames that all tasks together go through, recorded or not."""
    spin_up = round(settings.spin_up / settings.frame_time)
    settle = round(settings.settle / settings.frame_time)
    real = real_tasks * (spin_up + settle + settings.real_frames)
    return real + numerical_tasks * (spin_up + settings.numerical_frames)


def _real_frames(
    settings: WakeSettings, draws: _Draws, flows: slice, tick: Callable[[], None]
) -> Float[Tensor, "flow time height width 3"]:
    """Velocity and visible fraction of some stand-in flows, as the camera averages them."""
    reynolds = draws.real_reynolds[flows] / (1 + draws.viscosity_offset)
    flow = _refine(settings, _spin_up(settings, reynolds, draws.real_kick[flows], tick), reynolds)
    turbulence, vibration = draws.turbulence[flows], draws.vibration[flows]
    view = _view(settings, _FINE, window=settings.interrogation)
    per_frame = _steps_per_frame(settings, flow.domain)
    settle, frames = round(settings.settle / settings.frame_time), []
    for frame in range(settle + settings.real_frames):
        steps = torch.arange(flow.steps, flow.steps + per_frame + 1)
        moving = vibration.speed(steps)
        inflow = turbulence.velocity(steps[1:])
        inflow[..., 0] += settings.speed
        inflow[..., 1] -= moving[1:, :, None].float()  # the lattice moves with the cylinder
        for arriving, push in zip(inflow, -moving.diff(dim=0).float(), strict=True):
            flow.step(arriving, push)
        flow.check()
        tick()
        if frame >= settle:
            place = vibration.displacement(steps[-1:])[0]
            frames.append(view.record(_as_seen(flow, moving[-1]), place))
    return torch.stack(frames, 1)


def _as_seen(
    flow: LatticeFlow, moving: Float[Tensor, " flow"]
) -> Float[Tensor, "flow 3 rows columns"]:
    """Velocity at rest with the camera, and 1 in the fluid; all zero in the cylinder."""
    velocity = flow.velocity.clone()
    velocity[:, 1] += (moving / flow.domain.speed).float()[:, None, None]
    fluid = (~flow.domain.solid()).float()
    return torch.cat([velocity * fluid, fluid.expand(len(velocity), 1, -1, -1)], 1)


def _numerical_frames(
    settings: WakeSettings, draws: _Draws, flows: slice, tick: Callable[[], None]
) -> Float[Tensor, "flow time height width 3"]:
    """Velocity and pressure of some ideal flows as cell averages."""
    flow = _spin_up(settings, draws.numerical_reynolds[flows], draws.numerical_kick[flows], tick)
    view, frames = _view(settings, _COARSE, window=1.0), []
    still = torch.zeros(len(flow.viscosity), dtype=torch.float64)
    for _ in range(settings.numerical_frames):
        _advance(settings, flow, tick)
        values = torch.cat([flow.velocity, flow.pressure[:, None]], 1)
        frames.append(view.record(values, still))
    return torch.stack(frames, 1)


def _spin_up(
    settings: WakeSettings,
    reynolds: Float[Tensor, " flow"],
    kick: Float[Tensor, " flow"],
    tick: Callable[[], None],
) -> LatticeFlow:
    """Ideal flow on the coarse lattice until it sheds."""
    domain = wake_domain(settings, _COARSE)
    flow = LatticeFlow(domain, settings.speed * domain.diameter / reynolds)
    start_shedding(flow, kick)
    for _ in range(round(settings.spin_up / settings.frame_time)):
        _advance(settings, flow, tick)
    return flow


def _refine(
    settings: WakeSettings, coarse: LatticeFlow, reynolds: Float[Tensor, " flow"]
) -> LatticeFlow:
    """The same flow on the fine lattice, by bilinear interpolation."""
    domain = wake_domain(settings, _FINE)
    flow = LatticeFlow(domain, settings.speed * domain.diameter / reynolds)
    size = (domain.height, domain.width)
    velocity = interpolate(coarse.velocity, size, mode="bilinear") * settings.speed
    density = interpolate(coarse.density[:, None], size, mode="bilinear")
    flow.set_state(density[:, 0], velocity[:, 0], velocity[:, 1])
    return flow


def _advance(settings: WakeSettings, flow: LatticeFlow, tick: Callable[[], None]) -> None:
    for _ in range(_steps_per_frame(settings, flow.domain)):
        flow.step()
    flow.check()
    tick()


def _view(settings: WakeSettings, ratio: float, *, window: float) -> View:
    return View(settings.grid, (_BEFORE, _BESIDE), ratio, window)


def _steps_per_frame(settings: WakeSettings, domain: Domain) -> int:
    return round(settings.frame_time * domain.steps_per_time)


def _tasks_of(count: int) -> list[slice]:
    return [slice(start, start + _FLOWS_PER_TASK) for start in range(0, count, _FLOWS_PER_TASK)]
