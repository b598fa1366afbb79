"""Levels: partitions nested in wavenumber, orientation, channel and lead time (M7).

Everything is over *slots*: pairs of an occupied finest cell and a channel with its group of lead
time. A level maps each slot to one of its cells, so all levels come from the same sums.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from r2no.errors import ConfigError
from r2no.spectral import FourierCells

#: Bands, sectors and groups of lead time; no bands and sectors mean one cell for all channels.
Level = tuple[int, int, int]


class Levels:
    """The polar partitions nested in the finest one, with groups of lead time joined."""

    def __init__(self, finest: FourierCells, channels: int, leads: int) -> None:
        if not finest.radial:
            raise ConfigError("`cells` must be polar to have nested coarser partitions.")
        self.finest, self.channels, self.leads = finest, channels, leads
        self.occupied = finest.occupied  # the others hold nothing, and would only cost time
        self.slots = int(self.occupied.sum()) * channels * leads
        size = (1, 1) if finest.shared_channels else (0, 0)
        self.root: Level = (*size, 1)
        self._maps: dict[Level, tuple[Tensor, int]] = {}

    def sizes(self) -> list[tuple[int, int]]:
        """Bands and sectors of every partition but the root's, coarse ones first."""
        bands, sectors = self._bands_and_sectors()
        sizes = [(r, a) for r in bands for a in sectors if (r, a) != self.root[:2]]
        return sorted(sizes, key=lambda size: size[0] * size[1])

    def coarser(self, size: tuple[int, int]) -> list[tuple[int, int]]:
        """The sizes from which one is reached by one refinement."""
        bands, sectors = self._bands_and_sectors()
        radial, angular = bands.index(size[0]), sectors.index(size[1])
        found = [(bands[radial - 1], size[1])] if radial else []
        return found + ([(size[0], sectors[angular - 1])] if angular else [])

    def _bands_and_sectors(self) -> tuple[list[int], list[int]]:
        return _quarterings(self.finest.radial), sorted({1, self.finest.angular})

    def lead_groups(self) -> list[int]:
        """Shared over lead times, and as many groups as there are."""
        return sorted({1, self.leads})

    def map(self, level: Level) -> tuple[Int[Tensor, " slot"], int]:
        """For each slot its cell in a partition (occupied ones), and their number."""
        if level not in self._maps:
            radial, angular, groups = level
            cell = torch.zeros(self.finest.num_cells, dtype=torch.long)
            channel = torch.arange(self.channels)
            if (radial, angular) == (0, 0):
                channel = torch.zeros_like(channel)
            else:
                cell = self.finest.parents(self.finest.coarser(radial, angular))
            lead = torch.arange(self.leads) * groups // self.leads
            slot = cell[self.occupied][:, None, None] * self.channels + channel[:, None]
            slot = slot * groups + lead
            met, index = slot.reshape(-1).unique(return_inverse=True)
            self._maps[level] = (index, len(met))
        return self._maps[level]

    def parents(self, coarse: Level, fine: Level) -> Int[Tensor, " cell"]:
        """For each cell of a level its cell in a coarser one."""
        (child, number), (parent, _) = self.map(fine), self.map(coarse)
        found = torch.zeros(number, dtype=torch.long)
        found[child] = parent
        return found

    def compact(
        self, moments: Float[Tensor, "group cell channel size size"]
    ) -> Float[Tensor, "group slot size size"]:
        """Moments by slot."""
        return moments[:, self.occupied].flatten(1, 2)

    def coarsen(
        self, moments: Float[Tensor, "group slot *rest"], level: Level
    ) -> Float[Tensor, "group cell *rest"]:
        """Moments of a level's cells."""
        index, number = self.map(level)
        shape = (moments.shape[0], number, *moments.shape[2:])
        return moments.new_zeros(shape).index_add_(1, index, moments)

    def spread(self, weights: Float[Tensor, "slot column"]) -> Float[Tensor, "cell channel column"]:
        """Weights by slot as the ensemble holds them, zero in empty cells."""
        shape = (self.finest.num_cells, self.channels * self.leads, weights.shape[-1])
        everywhere = weights.new_zeros(shape)
        everywhere[self.occupied] = weights.unflatten(0, (-1, shape[1]))
        return everywhere


def _quarterings(number: int) -> list[int]:
    """1 and the numbers met on the way there by quartering, while halves are whole; increasing."""
    numbers = [number]
    while number % 4 == 0:
        number //= 4
        numbers.append(number)
    return sorted({1, *numbers})
