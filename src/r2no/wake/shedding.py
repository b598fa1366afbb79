"""Starting a vortex street and measuring its frequency and its mass balance."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from r2no.errors import DataError
from r2no.wake.cylinder import Domain
from r2no.wake.lattice import LatticeFlow


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
