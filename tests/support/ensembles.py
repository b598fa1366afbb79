"""A source, iterates and a target, made of noise."""

import torch

from r2no.ensemble.chains import ChainSearch


def problem(seed=0, grid=(6, 7), windows=5, members=2, depths=3, channels=3, frames=2):
    """A source and iterates that carry some information about the target, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shape = (windows, frames, *grid, channels)
    target = 1.0 + noise(*shape)
    source = target + noise(*shape)
    iterates = torch.stack(
        [
            torch.stack(
                [
                    source + 0.2 * d * (target - source) + 0.3 * noise(*shape)
                    for d in range(1, depths + 1)
                ]
            )
            for _ in range(members)
        ]
    )
    return source, iterates, target


def refit_chains(sums, finest, chains, *, leads=1, **columns):
    """The mean of given chains, fitted on the total of ``sums``; on the finest cells."""
    return ChainSearch(sums, (), finest, (), leads=leads, **columns).refit(chains)
