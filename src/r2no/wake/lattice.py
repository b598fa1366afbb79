"""A lattice Boltzmann solver (D2Q9) for a batch of two-dimensional flows past a cylinder.

Populations are rebuilt from their moments in every step (regularised collision), so the state is
density, momentum and stress. With f_i the populations, c_i the lattice velocities, w_i the weights
and c_s² = 1/3, one step is

    ρ = Σ f_i,  j = Σ c_i f_i,  Π = Σ c_i c_i f_i                            (moments)
    Π* = Π + ω (Π_eq - Π),  Π_eq = c_s² ρ I + j j                            (collision)
    f_i = w_i (ρ + c_i·j / c_s² + (Π* - c_s² ρ I) : (c_i c_i - c_s² I) / 2 c_s⁴)   (rebuild)
    f_i(x + c_i, t + 1) = f_i(x, t)                                          (streaming)

with ν = c_s² (1/ω - 1/2). The density in Π_eq is that of the incompressible model of He and Luo
(1997): j is the velocity. The trace of Π relaxes at once, which damps sound. Densities are stored
as their difference from one, so single precision loses nothing to the background.

Then how a vortex street is started, and its frequency and mass balance measured.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from r2no._repr import brief_repr
from r2no.errors import ConfigError, DataError, NonFiniteError
from r2no.wake.cylinder import VELOCITIES, Domain, WallLinks

SOUND_SPEED = 3.0**-0.5
WEIGHTS = torch.tensor([1, 4, 1, 4, 16, 4, 1, 4, 1], dtype=torch.float64) / 36


def _moment_matrix(dtype: torch.dtype) -> Tensor:
    """Rows ρ, j_x, j_y, Π_xx - Π_yy, Π_xy as sums over populations."""
    cx, cy = VELOCITIES.to(dtype).T
    return torch.stack([torch.ones_like(cx), cx, cy, cx**2 - cy**2, cx * cy])


def _rebuild_matrix(dtype: torch.dtype) -> Tensor:
    """Populations from ρ, j_x, j_y, |j|², (Π_xx - Π_yy)*, Π_xy*; the trace is at equilibrium."""
    cx, cy = VELOCITIES.double().T
    columns = [
        torch.ones_like(cx),
        3 * cx,
        3 * cy,
        4.5 * 0.5 * (cx**2 + cy**2 - 2 / 3),
        4.5 * 0.5 * (cx**2 - cy**2),
        4.5 * 2 * cx * cy,
    ]
    return (WEIGHTS[:, None] * torch.stack(columns, 1)).to(dtype)


@dataclass(eq=False)
class LatticeFlow:
    """A batch of independent flows on one lattice, each with its own viscosity.

    Memory is nine populations and eleven moments per cell in float32. One step costs two small
    matrix products and one strided copy, about 10 ns per cell on two cores.

    Attributes:
        domain: the lattice.
        viscosity: one kinematic viscosity per flow, in cells² per step; its precision is that of
            the whole flow, and float32 does for all but checks.
        steps: steps taken so far.
    """

    domain: Domain
    viscosity: Float[Tensor, " batch"]
    steps: int = field(default=0, init=False)

    __repr__ = brief_repr

    def __post_init__(self) -> None:
        domain, batch, dtype = self.domain, len(self.viscosity), self.viscosity.dtype
        if not bool((self.viscosity > 0).all()):
            raise ConfigError(
                f"`viscosity` must be positive, but got {self.viscosity.tolist()}. "
                "Use speed * diameter / Reynolds number."
            )
        if not 0 < domain.speed < 0.3:
            raise ConfigError(
                f"`speed` must lie between 0 and 0.3 cells per step, but got {domain.speed}. "
                "Use 0.1 and more steps."
            )
        rows, columns = domain.height + 2, domain.width + 2  # one ghost cell on each edge
        cells = batch * rows * columns
        self._moments = torch.zeros(6, batch, rows, columns, dtype=dtype)  # after the collision
        self._sums = torch.zeros(5, batch, rows, columns, dtype=dtype)  # before it
        slack = columns + 1
        self._buffer = torch.zeros(9 * cells + 2 * slack, dtype=dtype)
        self._populations = self._buffer[slack : slack + 9 * cells]
        self._arrived = torch.zeros(3, 3, cells, dtype=dtype)
        # Direction (cy, cx) arrives from cy rows and cx cells before: a shift that is linear in
        # cy and cx, so all nine shifts together are one strided view.
        strides = (3 * cells - columns, cells - 1, 1)
        self._shifted = self._buffer.as_strided((3, 3, cells), strides, slack + columns + 1)
        self._to_moments, self._from_moments = _moment_matrix(dtype), _rebuild_matrix(dtype)
        self._links = WallLinks.around_cylinder(domain, batch=batch, dtype=dtype)
        self._fluid = (~domain.solid()).to(dtype)
        self._solid_cells = torch.nn.functional.pad(domain.solid(), (1, 1, 1, 1)).nonzero(
            as_tuple=True
        )
        # Mirrored, j_y and Π_xy change their sign.
        self._mirror = torch.tensor([1, 1, -1, 1, 1, -1], dtype=dtype)[:, None, None]
        self._relaxation = self._relaxation_rates()
        uniform = torch.zeros(batch, domain.height, domain.width, dtype=dtype)
        self.set_state(uniform, uniform + domain.speed, uniform)

    def _relaxation_rates(self) -> Float[Tensor, "batch 1 columns"]:
        """ω, lowered in the sponge until the Reynolds number there is about 20."""
        domain = self.domain
        position = torch.arange(domain.width + 2) - (domain.width + 1 - domain.sponge)
        ramp = (position / max(domain.sponge, 1)).clamp(0, 1) ** 2
        extra = domain.speed * domain.diameter / 20 * ramp
        viscosity = self.viscosity[:, None, None] + extra
        return 1 / (3 * viscosity + 0.5)

    def set_state(
        self,
        density: Float[Tensor, "batch height width"],
        along: Float[Tensor, "batch height width"],
        across: Float[Tensor, "batch height width"],
    ) -> None:
        """Start from a density difference and a velocity, with the stress at equilibrium."""
        inner = self._sums[:, :, 1:-1, 1:-1]
        inner[0] = density
        inner[1] = along * self._fluid
        inner[2] = across * self._fluid
        inner[3] = inner[1] ** 2 - inner[2] ** 2
        inner[4] = inner[1] * inner[2]
        self._collide()
        self._fill_ghosts(None)

    def step(
        self,
        inflow: Float[Tensor, "batch height 2"] | None = None,
        acceleration: Float[Tensor, " batch"] | None = None,
    ) -> None:
        """Advance by one step.

        Args:
            inflow: velocity at the inlet; the uniform free stream if not given.
            acceleration: transverse body force per mass, the same in all cells of a flow.
        """
        cells = self._arrived.shape[-1]
        torch.mm(
            self._from_moments,
            self._moments.view(6, cells),
            out=self._populations.view(9, cells),
        )
        self._links.apply(self._populations)
        self._arrived.copy_(self._shifted)
        torch.mm(self._to_moments, self._arrived.view(9, cells), out=self._sums.view(5, cells))
        if acceleration is not None:
            self._sums[2] += acceleration[:, None, None]
        self._collide()
        self._fill_ghosts(inflow)
        self.steps += 1

    def _collide(self) -> None:
        """Relax the stress towards equilibrium; rest in the solid."""
        _, along, across, difference, shear = self._sums
        after = self._moments
        after[:3].copy_(self._sums[:3])
        torch.mul(across, across, out=after[3])
        torch.addcmul(after[3], along, along, out=after[3])
        equilibrium = torch.addcmul(after[3], across, across, value=-2)
        torch.lerp(difference, equilibrium, self._relaxation, out=after[4])
        torch.mul(along, across, out=equilibrium)
        torch.lerp(shear, equilibrium, self._relaxation, out=after[5])
        rows, columns = self._solid_cells
        after[:, :, rows, columns] = 0.0

    def _fill_ghosts(self, inflow: Tensor | None) -> None:
        """Fill the ring of cells around the domain by the rules of its sides and ends."""
        after = self._moments
        if self.domain.ends == "periodic":
            after[..., 0] = after[..., -2]
            after[..., -1] = after[..., 1]
        else:
            self._set_inlet(inflow)
            self._set_outlet()
        if self.domain.sides == "periodic":
            after[:, :, 0] = after[:, :, -2]
            after[:, :, -1] = after[:, :, 1]
        else:
            after[:, :, 0] = self._mirror * after[:, :, 1]
            after[:, :, -1] = self._mirror * after[:, :, -2]

    def _set_inlet(self, inflow: Tensor | None) -> None:
        """Velocity given; density and viscous stress from the next cell (Guo et al. 2002)."""
        ghost, inside = self._moments[:, :, 1:-1, 0], self._moments[:, :, 1:-1, 1]
        ghost[0] = inside[0]
        if inflow is None:
            ghost[1], ghost[2] = self.domain.speed, 0.0
        else:
            ghost[1], ghost[2] = inflow[..., 0], inflow[..., 1]
        (u, v), (u_in, v_in) = ghost[1:3], inside[1:3]
        ghost[3] = u * u + v * v
        ghost[4] = inside[4] - inside[3] + ghost[3] + 2 * (v_in * v_in - v * v)
        ghost[5] = inside[5] + u * v - u_in * v_in

    def _set_outlet(self) -> None:
        """Everything from the next cell but the density, which lets plane sound waves out.

        Without sound the mean outflow is the inflow, and the pressure is that of the free stream.
        A wave that travels outwards has ρ' = u'/c_s; setting it so leaves nothing to reflect.
        """
        ghost, inside = self._moments[:, :, 1:-1, -1], self._moments[:, :, 1:-1, -2]
        ghost.copy_(inside)
        excess = inside[1].mean(-1, keepdim=True) - self.domain.speed
        ghost[0] = excess / SOUND_SPEED

    @property
    def velocity(self) -> Float[Tensor, "batch 2 height width"]:
        """Velocity (along, across) in units of the free stream; zero in the cylinder."""
        inner = self._moments[1:3, :, 1:-1, 1:-1]
        return (inner / self.domain.speed).transpose(0, 1)

    @property
    def density(self) -> Float[Tensor, "batch height width"]:
        """Density as a difference from one."""
        return self._moments[0, :, 1:-1, 1:-1]

    @property
    def pressure(self) -> Float[Tensor, "batch height width"]:
        """Pressure relative to the outlet in units of density times free stream squared."""
        return self.density * (SOUND_SPEED / self.domain.speed) ** 2

    @property
    def mass(self) -> Float[Tensor, " batch"]:
        """Mass of the fluid, summed in float64."""
        return self.density.double().sum((-2, -1)) + self._fluid.double().sum()

    @property
    def fluxes(self) -> Float[Tensor, "batch 2"]:
        """Mean velocity through the first and the last column, in units of the free stream."""
        ends = self._moments[1, :, 1:-1, [1, -2]].double().mean(1)
        return ends / self.domain.speed

    def check(self) -> None:
        """Raise :class:`NonFiniteError` if a flow has become unstable."""
        fastest = self.velocity.abs().amax((1, 2, 3))
        if bool((fastest < 4).all()):  # false for NaN as well
            return
        raise NonFiniteError(
            f"The lattice flow left the stable range after {self.steps} steps: fastest velocities "
            f"are {fastest.tolist()} free streams. Use a finer lattice or a lower Reynolds number."
        )


@dataclass(frozen=True)
class Shedding:
    """What :func:`measure_shedding` found for one flow.

    Attributes:
        strouhal: shedding frequency times diameter over free stream.
        periods: shedding periods it was measured over.
        imbalance: mean outflow minus mean inflow over these periods, relative to the inflow.
    """

    strouhal: float
    periods: int
    imbalance: float


def start_shedding(flow: LatticeFlow, kick: Float[Tensor, " batch"]) -> None:
    """Start from the free stream with a push across it behind each cylinder.

    ``kick`` is the strength of the push in free streams. It falls off like a power of the
    distance: the tail of a Gaussian would be subnormal numbers, which are slow to compute with.
    """
    domain = flow.domain
    x, y = domain.cell_centres()
    distance = torch.hypot(x - domain.centre[0] - 1.5 * domain.diameter, y - domain.centre[1])
    push = domain.speed * (1 + (distance / domain.diameter) ** 2).float() ** -2
    rest = torch.zeros(len(kick), domain.height, domain.width)
    flow.set_state(rest, rest + domain.speed, kick[:, None, None] * push)


def measure_shedding(
    domain: Domain, reynolds: float, *, spin_up: float = 60.0, duration: float = 60.0
) -> Shedding:
    """Simulate one wake and measure its shedding, two diameters behind the cylinder.

    The frequency is that of the upward zero crossings of the transverse velocity.

    Args:
        domain: lattice with a cylinder.
        reynolds: free stream times diameter over viscosity.
        spin_up: time in D/U that is left out.
        duration: time in D/U that is measured.

    Raises:
        DataError: if there are fewer than two crossings.
    """
    flow = LatticeFlow(domain, torch.tensor([domain.speed * domain.diameter / reynolds]))
    start_shedding(flow, torch.tensor([0.6]))
    column = int(domain.centre[0] + 2 * domain.diameter)
    signal, fluxes = [], []
    steps = round((spin_up + duration) * domain.steps_per_time)
    for step in range(steps):
        flow.step()
        if step >= spin_up * domain.steps_per_time:
            signal.append(flow.velocity[0, 1, int(domain.centre[1]), column].item())
            fluxes.append(flow.fluxes[0])
    flow.check()
    crossings = _upward_crossings(torch.tensor(signal, dtype=torch.float64))
    if len(crossings) < 2:
        raise DataError(
            f"No shedding period was seen in {duration} D/U at Reynolds number {reynolds}. "
            "Raise `spin_up` and `duration`, or the Reynolds number if it is below about 47."
        )
    periods = len(crossings) - 1
    period = float(crossings[-1] - crossings[0]) / periods
    whole = torch.stack(fluxes)[int(crossings[0]) : int(crossings[-1])].mean(0)
    return Shedding(
        strouhal=domain.steps_per_time / period,
        periods=periods,
        imbalance=float(whole[1] / whole[0] - 1),
    )


def _upward_crossings(signal: Float[Tensor, " time"]) -> Float[Tensor, " crossing"]:
    """Times at which the signal, less its mean, passes zero upwards; linear in between."""
    centred = signal - signal.mean()
    before = ((centred[:-1] < 0) & (centred[1:] >= 0)).nonzero()[:, 0]
    rise = centred[before + 1] - centred[before]
    return before - centred[before] / rise
