"""What separates the stand-in for measurement from the simulation: physics and the camera.

The stand-in is simulated too. It has what the ideal simulation leaves out (inflow turbulence, a
vibrating cylinder) and is seen through a model of particle image velocimetry (PIV): averages over
interrogation windows, noise and outliers.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from r2no.wake.cylinder import Domain


@dataclass(frozen=True, eq=False)
class InflowTurbulence:
    """Random Fourier modes carried through the inlet by the free stream (Kraichnan 1970).

    Mode m has wavevector k_m and a random phase; the velocity is perpendicular to k_m, so the
    inflow is free of divergence, its mean across the inlet is the free stream at all times, and it
    repeats across the domain's periodic sides. Velocities are in cells per step.
    """

    along: Float[Tensor, "batch mode"]  # k_x
    across: Float[Tensor, "batch mode"]  # k_y
    phase: Float[Tensor, "batch mode"]
    amplitude: float
    speed: float
    height: int

    @classmethod
    def draw(
        cls, domain: Domain, batch: int, *, intensity: float, generator: torch.Generator
    ) -> "InflowTurbulence":
        """Draw wavelengths of about two to eight diameters.

        Args:
            domain: lattice whose inlet it enters.
            batch: number of independent inflows.
            intensity: root mean square of each velocity component over the free stream.
            generator: source of all randomness.
        """
        shape = (batch, 24)
        highest = max(1, int(domain.height / (2 * domain.diameter)))
        order = torch.randint(-highest, highest + 1, shape, generator=generator)
        along = torch.randn(shape, generator=generator).abs() + 0.1
        return cls(
            along=along * (2 * math.pi / (5 * domain.diameter)),
            across=order * (2 * math.pi / domain.height),
            phase=2 * math.pi * torch.rand(shape, generator=generator),
            amplitude=2 * intensity * domain.speed / math.sqrt(shape[1]),
            speed=domain.speed,
            height=domain.height,
        )

    def __getitem__(self, flows: slice) -> "InflowTurbulence":
        """The inflow of some flows of the batch."""
        parts = (self.along[flows], self.across[flows], self.phase[flows])
        return InflowTurbulence(*parts, self.amplitude, self.speed, self.height)

    def velocity(self, steps: Int[Tensor, " step"]) -> Float[Tensor, "step batch height 2"]:
        """Disturbance (along, across) at the inlet at each of ``steps``.

        With cos(k_y y + a) = cos k_y y cos a - sin k_y y sin a this is one matrix product.
        """
        y = torch.arange(self.height)[:, None] + 0.5
        waves = y * self.across[:, None, :]
        angle = self.phase - self.along * (self.speed * steps[:, None, None])
        length = torch.hypot(self.along, self.across)
        normal = torch.stack([self.across / length, -self.along / length], -1)
        in_space = torch.cat([waves.cos(), waves.sin()], -1)
        in_time = torch.cat([angle.cos(), -angle.sin()], -1)
        return in_space @ (self.amplitude * in_time[..., None] * normal.repeat(1, 2, 1))


@dataclass(frozen=True, eq=False)
class Vibration:
    """A small sinusoidal motion of the cylinder across the stream, faded in over four times D/U.

    Amplitude in cells, frequency in turns per step.
    """

    amplitude: Float[Tensor, " batch"]
    frequency: Float[Tensor, " batch"]
    phase: Float[Tensor, " batch"]
    fade: float

    @classmethod
    def draw(cls, domain: Domain, batch: int, *, generator: torch.Generator) -> "Vibration":
        """Amplitudes of 0.05 to 0.10 diameters at 0.10 to 0.25 turns per D/U."""
        amplitude, frequency, phase = torch.rand(3, batch, generator=generator).double()
        return cls(
            amplitude=(0.05 + 0.05 * amplitude) * domain.diameter,
            frequency=(0.10 + 0.15 * frequency) / domain.steps_per_time,
            phase=2 * math.pi * phase,
            fade=4 * domain.steps_per_time,
        )

    def __getitem__(self, flows: slice) -> "Vibration":
        """The motion of some cylinders of the batch."""
        parts = (self.amplitude[flows], self.frequency[flows], self.phase[flows])
        return Vibration(*parts, self.fade)

    def displacement(self, steps: Shaped[Tensor, " step"]) -> Float[Tensor, "step batch"]:
        """Position of the cylinder at each of ``steps``, in cells."""
        time = steps.double()[:, None]
        ramp = torch.sin(0.5 * math.pi * (time / self.fade).clamp(0, 1)) ** 2
        return ramp * self.amplitude * torch.sin(2 * math.pi * self.frequency * time + self.phase)

    def speed(self, steps: Shaped[Tensor, " step"]) -> Float[Tensor, "step batch"]:
        """Velocity of the cylinder at each of ``steps``, in cells per step."""
        return self.displacement(steps + 0.5) - self.displacement(steps - 0.5)


def box_average(
    lower: Float[Tensor, "*batch window"], *, width: float, cells: int
) -> Float[Tensor, "*batch window {cells}"]:
    """Weights that average a row of unit cells over windows [lower, lower + width].

    Windows need not start or end at the edge of a cell; a cell counts by its overlap. Rows sum to
    one as long as the window lies within the row of cells.
    """
    edge = torch.arange(cells, dtype=lower.dtype)
    begin = torch.maximum(lower[..., None], edge)
    end = torch.minimum(lower[..., None] + width, edge + 1)
    return (end - begin).clamp(min=0) / width


@dataclass(frozen=True)
class View:
    """The part of a lattice that is recorded, on a grid of square cells.

    Attributes:
        grid: recorded cells (height, width).
        corner: (x, y) of the lower left corner of the view, in recorded cells.
        ratio: lattice cells per recorded cell.
        window: width of the averaging window in recorded cells; 1 for cell averages.
    """

    grid: tuple[int, int]
    corner: tuple[int, int]
    ratio: float
    window: float = 1.0

    def record(
        self,
        values: Float[Tensor, "batch channel rows columns"],
        displacement: Float[Tensor, " batch"],
    ) -> Float[Tensor, "batch height width channel"]:
        """Average lattice values; the lattice moves with the cylinder, the view does not."""
        margin = (self.window - 1) / 2
        lower_y = torch.arange(self.grid[0], dtype=torch.float64) + self.corner[1] - margin
        lower_x = torch.arange(self.grid[1], dtype=torch.float64) + self.corner[0] - margin
        lower = lower_y * self.ratio - displacement[:, None]
        width, (rows, columns) = self.window * self.ratio, values.shape[-2:]
        vertical = box_average(lower, width=width, cells=rows).float()
        horizontal = box_average(lower_x * self.ratio, width=width, cells=columns).float()
        return torch.einsum("bhr,bcrk,wk->bhwc", vertical, values, horizontal)


def add_measurement_errors(
    velocity: Float[Tensor, "*axes 2"],
    visible: Float[Tensor, "*axes"],
    *,
    noise: float,
    outliers: float,
    generator: torch.Generator,
) -> Float[Tensor, "*axes 2"]:
    """Add Gaussian noise to all vectors and replace a few by wrong ones, as PIV does.

    Args:
        velocity: true window averages in units of the free stream.
        visible: fraction of each window that lies in the fluid; below one half no vector is
            found and the value is zero.
        noise: standard deviation of the noise.
        outliers: fraction of vectors that are wrong, by up to half of the free stream.
        generator: source of all randomness.
    """
    disturbed = velocity + noise * torch.randn(velocity.shape, generator=generator)
    wrong = torch.rand(visible.shape, generator=generator) < outliers
    jump = torch.rand(velocity.shape, generator=generator) - 0.5
    disturbed = disturbed + wrong[..., None] * jump
    return torch.where(visible[..., None] < 0.5, torch.zeros(()), disturbed)
