"""Which columns and how fine: what the settings leave open, decided by data and memory (M5, M13).

The published fit has the paper's columns. Otherwise the cells may also use what costs nothing: the
last frames of the history with their partners, and the mean field; of every repair loop a few
depths, which do as well as all of them; and weights by lead time, since a recalled frame ages.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from r2no.adaptation.config import AdaptSettings, EnsembleSettings
from r2no.adaptation.groups import ColumnGroup, MeanField, Recall, check_groups
from r2no.checks import changed
from r2no.data.window import Fields, Windows
from r2no.ensemble import Columns, GramSums
from r2no.progress import Reporter
from r2no.spectral import FourierCells

#: Frames of the history that are recalled.
_RECALLED = 5
#: Groups of lead time that are told apart at most.
_LEADS = 10
#: Bytes that the sums of a fit may take.
_MOST_BYTES = 512 * 2**20


def resolved(settings: AdaptSettings, fields: Fields) -> AdaptSettings:
    """The settings without "auto" for columns and bands; :func:`partition` decides on lead time."""
    chosen, steps = settings.ensemble, settings.repair.steps
    published = chosen.cells == "published"
    some = tuple(sorted({1, -(-steps // 3), steps}))
    automatic: dict[str, Any] = {
        "depths": tuple(range(1, steps + 1)) if published else some,
        "recall": 0 if published else min(_RECALLED, fields.history_frames),
        "mean_field": not published,
        "partners": not published,
    }
    if published:
        automatic["lead_groups"] = 1
    given = {k: v for k, v in automatic.items() if getattr(chosen, k) == "auto"}
    bands = not published if settings.bands == "auto" else settings.bands
    return changed(settings, ensemble=changed(chosen, **given), bands=bands)


def free_groups(
    chosen: EnsembleSettings,
    train: Windows,
    further: Sequence[ColumnGroup],
    probe: tuple[Tensor, Tensor],
    *,
    batch_size: int,
    reporter: Reporter,
) -> tuple[ColumnGroup, ...]:
    """The groups of resolved settings: recalled frames, the mean field, then those given.

    ``probe`` is a history with the source's answer, on which they are checked before the mean is
    taken, which reads all of ``train``.
    """
    own = _recalled(chosen)
    check_groups([*own, *further], *probe, train.fields)
    if chosen.mean_field:
        own.append(MeanField.of(train, batch_size=batch_size, reporter=reporter))
    return (*own, *further)


def _recalled(chosen: EnsembleSettings) -> list[ColumnGroup]:
    return [Recall(int(chosen.recall), bool(chosen.partners))] if chosen.recall else []


def columns_of(
    groups: Sequence[ColumnGroup], settings: AdaptSettings, *, members: int, centred: bool
) -> Columns:
    """The columns of resolved settings."""
    chosen = settings.ensemble
    assert chosen.depths != "auto"
    return Columns(
        members,
        tuple(chosen.depths) if members else (),
        chosen.base_column,
        centred,
        tuple(label for group in groups for label in group.labels),
        tuple(label for group in groups for label in group.partners),
    )


def expected(
    settings: AdaptSettings, fields: Fields, *, blocks: int
) -> tuple[Columns, FourierCells, int]:
    """Columns, finest cells and groups of lead time of a run, before there is anything to fit."""
    settings = resolved(settings, fields)
    chosen, groups = settings.ensemble, _recalled(settings.ensemble)
    if chosen.mean_field:
        groups.append(MeanField(torch.zeros(1)))
    centred = chosen.cells != "published"
    columns = columns_of(groups, settings, members=settings.members, centred=centred)
    return columns, *partition(chosen, fields, columns, blocks=blocks)


def partition(
    chosen: EnsembleSettings, fields: Fields, columns: Columns, *, blocks: int
) -> tuple[FourierCells, int]:
    """The finest cells and groups of lead time; if left open, within the memory of the sums.

    Groups of lead time come first: cells of one or two coefficients rarely carry weights of their
    own.
    """
    channels = len(fields.measured)

    def cells(coarser: int) -> FourierCells:
        radial, angular = (max(1, n // coarser) for n in (chosen.radial, chosen.angular))
        return changed(chosen, radial=radial, angular=angular).partition(fields.grid)

    if chosen.lead_groups != "auto":
        return cells(1), chosen.lead_groups
    leads = range(min(_LEADS, fields.horizon_frames), 0, -1)
    for coarser in (1, 2, 4):
        finest = cells(coarser)
        for number in leads:
            size = GramSums.bytes(columns, finest, channels, blocks, number)
            if size <= _MOST_BYTES and (number == leads[0] or coarser == 4):
                return finest, number
    return finest, 1
