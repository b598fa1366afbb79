"""Columns: what a cell may combine, and in which order (M5, M13).

A column is u - h_0 for any forecast u of the window: an iterate of a repair loop, a recalled frame,
the mean field, another operator; and, as the base column, u = 0. Each has a label, "group" or
"group:which". The quadrature partner of a column, "~label", is the same field with every wave
shifted by a quarter of its length, so that real weights can move a wave and not only scale it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from r2no import checks
from r2no.errors import ConfigError, ShapeError


def lead_slices(frames: int, groups: int) -> list[slice]:
    """Forecast frames 0..frames-1 in ``groups`` runs of nearly equal length, by lead time."""
    if not 1 <= groups <= frames:
        raise ConfigError(
            f"`lead_groups` must lie in 1..{frames}, the number of forecast frames, but got "
            f"{groups}. Leave it at 1 to share the weights over lead times."
        )
    ends = [round(number * frames / groups) for number in range(groups + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


REPAIR, BASE, PARTNER = "repair", "base", "~"


def repair_label(member: int, depth: int) -> str:
    """Label of iterate h_ℓ of a member."""
    return f"{REPAIR}:{member}.{depth}"


def last_depths(labels: Iterable[str]) -> dict[int, int]:
    """By member, the last depth among labels of repairs and their partners."""
    last: dict[int, int] = {}
    for label in labels:
        group, _, which = label.removeprefix(PARTNER).partition(":")
        if group == REPAIR:
            member, depth = map(int, which.split("."))
            last[member] = max(last.get(member, 0), depth)
    return last


def group_of(label: str) -> str:
    """The group a column belongs to; a partner belongs to that of its column."""
    return label.removeprefix(PARTNER).split(":")[0]


@dataclass(frozen=True)
class Columns:
    """The candidate columns c_1..c_J of the ensemble (M5, M13).

    Order: for each member its retained residuals h_ℓ - h_0 by depth, further forecasts, quadrature
    partners, then the base column -h_0. A ``centred`` base column is -(h_0 - its mean over space),
    so that no column changes when a constant is added to a channel.

    Attributes:
        members: Number of repair modules M.
        depths: Retained depths S, increasing, from 1..L; empty without members.
        base: Whether the base column is present.
        centred: Whether it leaves the mean over space alone.
        further: Labels of further forecasts.
        partners: Labels of the columns that come with their quadrature partner.
    """

    members: int
    depths: tuple[int, ...]
    base: bool = True
    centred: bool = False
    further: tuple[str, ...] = ()
    partners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ordered = tuple(sorted(set(self.depths))) == self.depths
        if self.members < 0 or not ordered or (self.depths and self.depths[0] < 1):
            raise ConfigError(
                "`members` must not be negative and `depths` increasing numbers from 1 on, but got "
                f"members={self.members}, depths={self.depths}. Depth 0 is the source itself."
            )
        if bool(self.members) != bool(self.depths) or self.number == 0:
            raise ConfigError(
                "`members` need `depths` and depths members, and at least one column must remain, "
                f"but got members={self.members}, depths={self.depths}, further={self.further}."
            )
        labels = self.labels
        unknown = [label for label in self.partners if label not in labels]
        if unknown or len(set(labels)) < len(labels):
            raise ConfigError(
                f"Labels of columns must differ and partners be of columns, but got {labels}."
            )

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Label of every column, in order."""
        iterates = (repair_label(m, d) for m in range(self.members) for d in self.depths)
        partners = (PARTNER + label for label in self.partners)
        return (*iterates, *self.further, *partners, *([BASE] if self.base else []))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {label: place for place, label in enumerate(self.labels)}

    @property
    def number(self) -> int:
        """J = M·|S| + further columns and partners + 1 (one less without the base column)."""
        more = len(self.further) + len(self.partners)
        return self.members * len(self.depths) + more + int(self.base)

    @property
    def evaluations(self) -> int:
        """Repair budget: evaluations of the module, M times the largest retained depth."""
        return self.members * (self.depths[-1] if self.depths else 0)

    def groups(self) -> dict[str, list[int]]:
        """Positions of the columns of each group."""
        found: dict[str, list[int]] = {}
        for place, label in enumerate(self.labels):
            found.setdefault(group_of(label), []).append(place)
        return found

    def place(self, label: str) -> int | None:
        """Position of a column by its label, or ``None`` if it is not one of the columns."""
        return self._places.get(label)

    def one_hot(self, member: int, depth: int) -> Float[Tensor, " column"]:
        """Weights that return one iterate; depth 0 gives all zeros, the source."""
        weights = torch.zeros(self.number, dtype=torch.float64)
        if depth > 0:
            position = self.place(repair_label(member, depth))
            if position is None:
                raise ConfigError(
                    f"`depth` must be 0 or one of the retained depths {self.depths}, got {depth}."
                )
            weights[position] = 1.0
        return weights

    def mean_final(self) -> Float[Tensor, " column"]:
        """Weights of the mean of the members' final iterates."""
        final = [self.one_hot(member, self.depths[-1]) for member in range(self.members)]
        return torch.stack(final).mean(0)

    def mean_all(self) -> Float[Tensor, " column"]:
        """Weights of the mean of all retained iterates of all members."""
        iterates = self.members * len(self.depths)
        weights = torch.zeros(self.number, dtype=torch.float64)
        weights[:iterates] = torch.full((iterates,), 1.0 / iterates).double()
        return weights

    def restricted(
        self,
        members: int | None = None,
        depth: int | None = None,
        *,
        depths: Sequence[int] | None = None,
        base: bool | None = None,
        without: Sequence[str] = (),
    ) -> "Columns":
        """The columns of the first ``members`` members up to ``depth``, or at ``depths``.

        Default all; ``base=False`` drops the base column, ``without`` whole groups.
        """
        kept = self.members if members is None else checks.whole("members", members, least=0)
        wanted = self.depths if depths is None else tuple(depths)
        fewer = tuple(d for d in wanted if depth is None or d <= depth) if kept else ()
        least = 0 if self.further else 1
        sound = least <= kept <= self.members and set(fewer) <= set(self.depths)
        if not sound or (kept and not fewer):
            raise ConfigError(
                f"`members` must lie in {least}..{self.members} and the depths among "
                f"{self.depths}, but got members={members}, depth={depth}, depths={depths}."
            )
        if base and not self.base:
            raise ConfigError("`base` column: these columns have none, so it cannot be kept.")
        if REPAIR in without:
            kept, fewer = 0, ()
        bare = replace(
            self,
            members=kept,
            depths=fewer,
            base=(self.base if base is None else base) and BASE not in without,
            further=tuple(label for label in self.further if group_of(label) not in without),
            partners=(),
        )
        return replace(bare, partners=tuple(p for p in self.partners if p in bare.labels))

    def base_column(
        self, source: Float[Tensor, "batch time *channel_space"]
    ) -> Float[Tensor, "batch time *channel_space"]:
        """The last column of a source whose spatial axes come last."""
        if not self.centred:
            return -source
        space = tuple(range(3, source.ndim))
        wide = source.double()  # a mean of 1e5 would leave two digits of the rest in float32
        return (wide.mean(space, keepdim=True) - wide).to(source.dtype)

    def positions(self, fewer: "Columns") -> list[int]:
        """Positions, among these columns, of those of a restriction of them."""
        return [self._places[label] for label in fewer.labels]

    def check_iterates(self, iterates: Tensor) -> None:
        """Raise unless ``iterates`` is (member, depth 1..L, ...) and covers the columns."""
        if iterates.shape[0] != self.members or iterates.shape[1] < self.depths[-1]:
            raise ShapeError(
                f"`iterates` must be (member, depth, batch, ...) with {self.members} members and "
                f"at least {self.depths[-1]} depths, but got shape {tuple(iterates.shape)}. "
                "Depth 1 comes first; leave out the source, depth 0."
            )

    def json(self) -> list[Any]:
        """The columns as plain values, as a file holds them."""
        parts = [self.members, list(self.depths), self.base]
        more = self.further or self.partners
        return [*parts, list(self.further), list(self.partners)] if more else parts

    @classmethod
    def of(cls, stored: list[Any], *, centred: bool) -> "Columns":
        """Inverse of :meth:`json`."""
        members, depths, base, *more = stored
        further, partners = more or ((), ())
        return cls(members, tuple(depths), base, centred, tuple(further), tuple(partners))
