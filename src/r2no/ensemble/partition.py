"""Choosing a polar partition that the fit split can carry, on held-out blocks."""

from collections.abc import Sequence

from r2no.ensemble.model import SpectralEnsemble
from r2no.errors import ConfigError
from r2no.spectral import FourierCells


def nested_partitions(cells: FourierCells) -> list[FourierCells]:
    """Polar partitions whose cells are unions of those of ``cells``, from one cell up to it.

    Bands and sectors are halved as often as their numbers allow; each pair of the two is one
    partition, and a single cell shared by all channels is the coarsest.
    """
    if not cells.radial:
        raise ConfigError("`cells` must be polar to have nested coarser partitions.")
    coarser = [
        FourierCells.polar(
            cells.grid,
            radial=radial,
            angular=angular,
            extent=cells.extent,
            shared_channels=cells.shared_channels,
        )
        for radial in _halvings(cells.radial)
        for angular in _halvings(cells.angular)
    ]
    return [FourierCells.single(cells.grid), *coarser]


def _halvings(number: int) -> list[int]:
    numbers = [number]
    while number % 2 == 0:
        number //= 2
        numbers.append(number)
    return sorted(numbers if numbers[-1] == 1 else [*numbers, 1])


def select_partition(
    ensemble: SpectralEnsemble, candidates: Sequence[FourierCells] | None = None
) -> SpectralEnsemble:
    """The derived ensemble whose partition has the lowest held-out error (coarsest in a tie).

    Args:
        ensemble: Fitted with ``ridge="auto"`` on the finest partition.
        candidates: Coarser partitions to consider; default all nested polar ones.
    """
    candidates = nested_partitions(ensemble.cells) if candidates is None else candidates
    fitted = [ensemble.derive(cells=cells) for cells in candidates]
    return min(fitted, key=lambda e: (e.held_out_score, int(e.cells.occupied.sum())))
