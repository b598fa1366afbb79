"""The lattice as a place: its edges, the cylinder in it, and how populations bounce off it."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

#: Lattice velocities (x, y), ordered so that direction 3 (cy + 1) + (cx + 1) is (cx, cy).
VELOCITIES = torch.tensor([(cx, cy) for cy in (-1, 0, 1) for cx in (-1, 0, 1)])


@dataclass(frozen=True)
class Domain:
    """The lattice: its size in cells, what lies on its edges, and the cylinder in it.

    Attributes:
        height: cells across the stream.
        width: cells along the stream.
        diameter: of the cylinder, in cells; 0 for none.
        centre: (x, y) of the cylinder in cells from the lower left corner of the domain.
        speed: free-stream velocity in cells per step; below about 0.15, a Mach number of 0.26.
        sides: ``"periodic"`` or ``"slip"`` (mirror) for the lower and upper edge.
        ends: ``"open"`` (velocity inlet, non-reflecting pressure outlet) or ``"periodic"``.
        sponge: cells before the outlet over which the viscosity grows, so vortices fade.
    """

    height: int
    width: int
    diameter: float = 0.0
    centre: tuple[float, float] = (0.0, 0.0)
    speed: float = 0.1
    sides: Literal["periodic", "slip"] = "periodic"
    ends: Literal["open", "periodic"] = "open"
    sponge: int = 0

    @property
    def steps_per_time(self) -> float:
        """Steps in one convective time D/U."""
        return self.diameter / self.speed

    @property
    def blockage(self) -> float:
        """Diameter over height."""
        return self.diameter / self.height

    def cell_centres(self) -> tuple[Tensor, Tensor]:
        """Coordinates (x, y) of all cell centres, broadcast to (height, width), in float64."""
        y = torch.arange(self.height, dtype=torch.float64)[:, None] + 0.5
        x = torch.arange(self.width, dtype=torch.float64)[None, :] + 0.5
        return x.expand(self.height, -1), y.expand(-1, self.width)

    def solid(self) -> Bool[Tensor, "height width"]:
        """True in cells whose centre lies in the cylinder."""
        x, y = self.cell_centres()
        return (x - self.centre[0]) ** 2 + (y - self.centre[1]) ** 2 < (self.diameter / 2) ** 2


@dataclass(frozen=True, eq=False)
class WallLinks:
    """Interpolated bounce-back (Bouzidi, Firdaouss and Lallemand 2001) as one blend per link.

    A link joins a fluid cell x to a solid one; the wall cuts it at the fraction q. The population
    that would come out of the solid is put there as a blend of two that are known at x or behind.
    """

    first: Tensor
    second: Tensor
    blend: Tensor
    target: Tensor

    @classmethod
    def around_cylinder(
        cls, domain: Domain, *, batch: int, dtype: torch.dtype = torch.float32
    ) -> "WallLinks":
        """Find all links of ``domain``, repeated for each simulation of the batch."""
        solid = domain.solid()
        rows, columns = domain.height + 2, domain.width + 2
        plane = rows * columns
        entries = []
        for y, x in solid.nonzero().tolist():
            for direction, (cx, cy) in enumerate(VELOCITIES.tolist()):
                if solid[y + cy, x + cx]:
                    continue
                fluid = (y + cy + 1) * columns + x + cx + 1
                q = _wall_fraction(domain, (x + cx + 0.5, y + cy + 0.5), (-cx, -cy))
                back, step = 8 - direction, cy * columns + cx
                near = (back, fluid)
                other = (back, fluid + step) if q < 0.5 else (direction, fluid)
                weight = 2 * q if q < 0.5 else 0.5 / q
                entries.append((*near, *other, weight, direction, fluid - step))
        table = torch.tensor(entries, dtype=torch.float64).reshape(-1, 7)
        offset = torch.arange(batch)[:, None] * plane

        def flat(direction: Tensor, cell: Tensor) -> Tensor:
            return (direction.long() * (batch * plane) + cell.long() + offset).reshape(-1)

        return cls(
            first=flat(table[:, 0], table[:, 1]),
            second=flat(table[:, 2], table[:, 3]),
            blend=table[:, 4].to(dtype).repeat(batch),
            target=flat(table[:, 5], table[:, 6]),
        )

    def apply(self, populations: Tensor) -> None:
        """Write the reflected populations into the solid cells from which they will stream."""
        reflected = torch.lerp(populations[self.second], populations[self.first], self.blend)
        populations.index_copy_(0, self.target, reflected)


def _wall_fraction(domain: Domain, start: tuple[float, float], step: tuple[int, int]) -> float:
    """Fraction of ``step`` from ``start`` (outside) at which the line enters the cylinder."""
    px, py = start[0] - domain.centre[0], start[1] - domain.centre[1]
    a = step[0] ** 2 + step[1] ** 2
    half_b = px * step[0] + py * step[1]
    c = px**2 + py**2 - (domain.diameter / 2) ** 2
    return (-half_b - math.sqrt(max(half_b**2 - a * c, 0.0))) / a
