"""Column groups: forecasts that cost nothing, or that somebody already has (M5, M13, M16).

A group gives one forecast, or several, of a window from its history and the source's answer; every
cell may then use as much of each as held-out data justify. A group of your own needs no more than
:class:`ColumnGroup` asks for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from r2no import ranks, storage
from r2no._types import Operator
from r2no.data.window import Fields, Window, Windows, on_every_batch
from r2no.ensemble import FittedEnsemble
from r2no.ensemble.columns import BASE, PARTNER, REPAIR, group_of
from r2no.errors import ConfigError, NonFiniteError, R2NOError, ShapeError
from r2no.progress import SILENT, Reporter
from r2no.training import asked, operator_identity, same_answer

RECALL, MEAN, INSTANT = "recall", "mean", "instant"
#: Names that r2no gives itself.
RESERVED = (REPAIR, BASE, RECALL, MEAN, INSTANT, "source", "persistence")


@runtime_checkable
class ColumnGroup(Protocol):
    """A name and forecasts u of a window, each of which becomes a column u - h_0.

    Labels are ``name``, or ``name:which`` where there are several forecasts. Those among
    ``partners`` come with their quadrature partner, so that real weights can shift their waves.
    """

    @property
    def name(self) -> str:
        """How reports call it."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """One for each forecast."""
        ...

    @property
    def partners(self) -> tuple[str, ...]:
        """Those with a quadrature partner."""
        ...

    def forecasts(self, history: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield (label, forecast) in the order of ``labels``.

        Args:
            history: (batch, time, *space, channel), physical, without gaps.
            source: h_0, (batch, time, *space, channel); a forecast has its shape.
        """
        ...


@dataclass(frozen=True)
class Recall:
    """The last frames of the history, each as a forecast that stays as it is.

    ``recall:1`` is persistence. Weights that fall with lead time let a frame fade.
    """

    frames: int
    with_partners: bool = True
    name = RECALL

    @property
    def labels(self) -> tuple[str, ...]:
        """``recall:1`` (the last frame) and those before it."""
        return tuple(f"{RECALL}:{age}" for age in range(1, self.frames + 1))

    @property
    def partners(self) -> tuple[str, ...]:
        """All or none."""
        return self.labels if self.with_partners else ()

    def forecasts(self, history: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each frame, over the whole horizon."""
        for age, label in enumerate(self.labels, 1):
            frame = history[:, -age, ..., : source.shape[-1]]
            yield label, frame[:, None].to(source.dtype).expand_as(source)


@dataclass(frozen=True, eq=False)
class MeanField:
    """The mean of the train split at every point, whatever the history.

    In float64, so that little is lost in the difference from a source far from zero.
    """

    field: Tensor  # *space, channel
    name = MEAN
    labels = (MEAN,)
    partners = ()

    def forecasts(self, history: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The mean at every time."""
        yield MEAN, self.field.to(source.device).expand_as(source)

    @classmethod
    def of(
        cls, windows: Windows, *, batch_size: int = 8, reporter: Reporter = SILENT
    ) -> "MeanField":
        """The mean over windows and frames of what was measured, in float64.

        Where a point was never measured, the mean of its channel stands.
        """
        fields = windows.fields
        total = torch.zeros(*fields.grid, len(fields.channels), dtype=torch.float64)
        count = torch.zeros_like(total)

        def add(numbers: range, window: Window) -> None:
            valid = torch.ones_like(window.target, dtype=torch.bool)
            valid = valid if window.mask is None else window.mask
            total.add_(torch.where(valid, window.target, 0).double().sum((0, 1)).cpu())
            count.add_(valid.sum((0, 1)).cpu())

        title = "mean field"
        on_every_batch(add, windows, batch_size=batch_size, title=title, reporter=reporter)
        ranks.add_up(total, count)
        space = tuple(range(total.ndim - 1))
        overall = total.sum(space) / count.sum(space).clamp_min(1)
        mean = torch.where(count > 0, total / count.clamp_min(1), overall)
        return cls(mean)


@dataclass(frozen=True, eq=False)
class FurtherOperator:
    """Another operator for the same windows: the pretrained one, another network, stored ones."""

    name: str
    operator: Operator
    partners = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Its name."""
        return (self.name,)

    def forecasts(self, history: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Its answer, checked as the source's is."""
        try:
            yield self.name, asked(self.operator, history, tuple(source.shape[1:])).to(source)
        except R2NOError as error:
            raise type(error)(f"Operator `{self.name}`: {error}") from error


@dataclass(frozen=True, eq=False)
class Instant:
    """The instant forecast: the source composed with ``groups``, by weights that are settled (M16).

    Repair loops may start from it, so its weights are fitted on the train split: the modules are
    trained there, and the fit split, which judges them, stays unseen. As a column group cells can
    use it beside the repairs of it.

    Attributes:
        ensemble: The weights, without sums.
        groups: The columns that they weigh.
    """

    ensemble: FittedEnsemble
    groups: tuple[ColumnGroup, ...]
    name = INSTANT
    labels = (INSTANT,)
    partners = ()

    @torch.no_grad()
    def __call__(self, history: Tensor, source: Tensor) -> Tensor:
        """The instant forecast."""
        composition = self.ensemble.compose(source)
        for label, forecast in group_forecasts(self.groups, history, source, self._used):
            composition.put(label, forecast)
        return composition.result()

    @property
    def key(self) -> str:
        """Hash of what it was fitted with; not of its weights, whose last bits machines differ in.

        Source and train split have keys of their own.
        """
        fitted = self.ensemble
        others = [operator_identity(g.operator) for g in self.groups if hasattr(g, "operator")]
        given = (fitted.plan.json(), fitted.columns.json(), fitted.cells.state()[1], *others)
        return f"{INSTANT}-{storage.fingerprint(*given)[:12]}"

    @cached_property
    def _used(self) -> set[str]:
        return self.ensemble.spread.labels

    def forecasts(self, history: Tensor, source: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The instant forecast as a column."""
        yield INSTANT, self(history, source)


def further_operators(also: Mapping[str, Operator | ColumnGroup] | None) -> list[ColumnGroup]:
    """``also`` of :func:`r2no.adapt` as groups; names checked."""
    groups: list[ColumnGroup] = []
    for name, given in (also or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED:
            raise ConfigError(
                f"`also` must name operators by plain words other than {', '.join(RESERVED)}, but "
                f"got {name!r}."
            )
        if isinstance(given, ColumnGroup):
            if given.name != name:
                raise ConfigError(
                    f"`also`: the group under {name!r} calls itself {given.name!r}. Use one name."
                )
            groups.append(given)
        elif callable(given):
            groups.append(FurtherOperator(name, given))
        else:
            raise ConfigError(
                f"`also[{name!r}]` must be an operator or a column group, but is a "
                f"`{type(given).__name__}`. A group has name, labels, partners and forecasts()."
            )
    return groups


def group_forecasts(
    groups: Sequence[ColumnGroup], history: Tensor, source: Tensor, wanted: set[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """(label, forecast) of all groups, or of those with a wanted column."""
    for group in groups:
        if wanted is None or any(label in wanted for label in group.labels):
            for label, forecast in group.forecasts(history, source):
                yield label, forecast.to(source.device)


@torch.no_grad()
def check_groups(
    groups: Sequence[ColumnGroup], history: Tensor, source: Tensor, fields: Fields
) -> None:
    """Refuse, on one history, groups whose forecasts cannot be columns or say nothing new.

    Raises:
        ConfigError: for wrong labels, a history shorter than the recall, or a forecast that is the
            source's or another's.
        ShapeError: for another grid, horizon or number of channels.
        NonFiniteError: for NaN.
    """
    seen: dict[str, Tensor] = {"source": source}
    for group in groups:
        if isinstance(group, Recall) and not 1 <= group.frames <= fields.history_frames:
            raise ConfigError(
                f"`recall` must lie in 0..{fields.history_frames}, the frames of a history, but is "
                f"{group.frames}."
            )
        _check_labels(group)
        found = dict(group.forecasts(history, source))
        if tuple(found) != tuple(group.labels):
            raise ConfigError(
                f"Group `{group.name}` must give forecasts under its labels {group.labels}, in "
                f"this order, but gave {tuple(found)}."
            )
        for label, forecast in found.items():
            _check_forecast(label, forecast, source)
            same = [name for name, other in seen.items() if same_answer(forecast, other)]
            if same and group.name not in (RECALL, MEAN):  # a still flow may repeat its frames
                raise ConfigError(
                    f"`{label}` forecasts what `{same[0]}` does, so it adds nothing to choose from."
                    " Leave it out."
                )
            seen[label] = forecast


def _check_labels(group: ColumnGroup) -> None:
    labels = tuple(group.labels)
    own = all(group_of(label) == group.name and PARTNER not in label for label in labels)
    if not labels or not own or len(set(labels)) < len(labels):
        raise ConfigError(
            f"Group `{group.name}` must label its columns `{group.name}` or "
            f"`{group.name}:which`, each once, but has {labels}."
        )
    if not set(group.partners) <= set(labels):
        raise ConfigError(
            f"`partners` of group `{group.name}` must be among its labels {labels}, but are "
            f"{tuple(group.partners)}."
        )


def _check_forecast(label: str, forecast: Any, source: Tensor) -> None:
    if not isinstance(forecast, Tensor) or forecast.shape != source.shape:
        kind = tuple(forecast.shape) if isinstance(forecast, Tensor) else type(forecast).__name__
        raise ShapeError(
            f"`{label}` must forecast the source's frames, grid and channels, "
            f"{tuple(source.shape)}, but gave {kind}."
        )
    if not bool(torch.isfinite(forecast).all()):
        raise NonFiniteError(f"`{label}` forecast NaN or infinity. Check its weights and input.")
