"""How much of the weights carries over to other recordings, seen on those of the train split.

Weights that are fitted on k recordings keep k/(k + v) of their size on others, v being how much
recordings differ. With few recordings to fit on, their blocks cannot tell; but the train split has
more, and its columns that cost nothing are as good there as anywhere.
"""

from collections.abc import Sequence

import torch

from r2no.adaptation.columns import columns_of
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.groups import ColumnGroup
from r2no.adaptation.loops import RepairLoops, gather_sums
from r2no.data.window import Windows
from r2no.ensemble import DepthErrors, GramAccumulator
from r2no.ensemble.ridge import scaled_ridge
from r2no.progress import Reporter
from r2no.spectral import FourierCells
from r2no.training import SourceCache

#: Bands, sectors and groups of lead time that are enough to see it, and a penalty.
_RADIAL, _ANGULAR, _LEADS, _RIDGE = 8, 4, 5, 1e-3
#: Recordings that are looked at, at most, and the least share that is ever kept.
_MOST, _LEAST = 12, 0.2


def variation(
    groups: Sequence[ColumnGroup],
    loops: RepairLoops,
    train: Windows,
    cache: SourceCache,
    settings: AdaptSettings,
    reporter: Reporter,
    *,
    recordings: int,
) -> float:
    """v, from fits on every run of ``recordings`` train recordings, scored on all others.

    The share of the weights that is best there is s = Σ r·w / Σ w·Gw, and v = k(1 - s)/s.
    """
    fields = train.fields
    unit = train.origins[:, 0].unique(return_inverse=True)[1] % _MOST
    number = int(unit.max()) + 1
    columns = columns_of(groups, settings, members=0, centred=True)
    cells = FourierCells.polar(fields.grid, radial=_RADIAL, angular=_ANGULAR)
    accumulator = GramAccumulator(
        columns,
        cells,
        measured=fields.measured,
        exponents=(settings.ensemble.weight_exponent,),
        groups=number,
        lead_groups=min(_LEADS, fields.horizon_frames),
        weigh_by="deviation",
    )
    bands = FourierCells.bands(fields.grid)
    errors = DepthErrors.empty(bands, members=0, steps=loops.steps, measured=fields.measured)
    none = RepairLoops((), loops.of_history, loops.of_field, loops.steps, loops.step_size)
    (sums,) = gather_sums(
        none,
        groups,
        train,
        cache,
        accumulator,
        errors,
        group=unit,
        batch_size=settings.batch_size,
        title="how much recordings differ",
        reporter=reporter,
    ).values()
    return _variation(sums.gram, sums.rhs, recordings)


def _variation(gram: torch.Tensor, rhs: torch.Tensor, recordings: int) -> float:
    number, cross, square = len(gram), 0.0, 0.0
    for first in range(number):
        fit = [(first + place) % number for place in range(recordings)]
        others = [unit for unit in range(number) if unit not in fit]
        weights = scaled_ridge(gram[fit].sum(0), rhs[fit].sum(0)[None], [_RIDGE])[0, 0]
        cross += float((weights * rhs[others].sum(0)).sum())
        square += float(torch.einsum("...i,...ij,...j->", weights, gram[others].sum(0), weights))
    share = min(max(cross / square if square > 0 else 1.0, _LEAST), 1.0)
    return recordings * (1 - share) / share
