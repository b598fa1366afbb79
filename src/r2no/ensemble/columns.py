"""Columns: which iterates enter the combination, and in which order (M5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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


@dataclass(frozen=True)
class Columns:
    """The candidate columns c_1..c_J of the ensemble (M5).

    Order: for each member its retained residuals h_ℓ - h_0 by depth, then the base column -h_0.
    A ``centred`` base column is -(h_0 - its mean over space), so that no column changes when a
    constant is added to a channel.

    Attributes:
        members: Number of repair modules M.
        depths: Retained depths S, increasing, from 1..L.
        base: Whether the base column is present.
        centred: Whether it leaves the mean over space alone.
    """

    members: int
    depths: tuple[int, ...]
    base: bool = True
    centred: bool = False

    def __post_init__(self) -> None:
        ordered = tuple(sorted(set(self.depths))) == self.depths
        if self.members < 1 or not self.depths or self.depths[0] < 1 or not ordered:
            raise ConfigError(
                "`members` must be at least 1 and `depths` increasing numbers from 1 on, but got "
                f"members={self.members}, depths={self.depths}. Depth 0 is the source itself."
            )

    @property
    def number(self) -> int:
        """J = M·|S| + 1 (one less without the base column)."""
        return self.members * len(self.depths) + int(self.base)

    @property
    def evaluations(self) -> int:
        """Repair budget: evaluations of the module, M times the largest retained depth."""
        return self.members * self.depths[-1]

    def position(self, member: int, depth: int) -> int | None:
        """Number of the column of an iterate, or ``None`` if it is not one of the columns."""
        if member >= self.members or depth not in self.depths:
            return None
        return member * len(self.depths) + self.depths.index(depth)

    def one_hot(self, member: int, depth: int) -> Float[Tensor, " column"]:
        """Weights that return one iterate; depth 0 gives all zeros, the source."""
        weights = torch.zeros(self.number, dtype=torch.float64)
        if depth > 0:
            position = self.position(member, depth)
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
        weights = torch.full((self.number,), 1.0 / (self.members * len(self.depths))).double()
        if self.base:
            weights[-1] = 0.0
        return weights

    def restricted(
        self,
        members: int | None = None,
        depth: int | None = None,
        *,
        depths: Sequence[int] | None = None,
        base: bool | None = None,
    ) -> "Columns":
        """The columns of the first ``members`` members up to ``depth``, or at ``depths``.

        Default all; ``base=False`` drops the base column.
        """
        kept = self.members if members is None else checks.whole("members", members)
        wanted = self.depths if depths is None else tuple(depths)
        fewer = tuple(d for d in wanted if depth is None or d <= depth)
        if not 1 <= kept <= self.members or not fewer or not set(fewer) <= set(self.depths):
            raise ConfigError(
                f"`members` must lie in 1..{self.members} and the depths among {self.depths}, but "
                f"got members={members}, depth={depth}, depths={depths}."
            )
        if base and not self.base:
            raise ConfigError("`base` column: these columns have none, so it cannot be kept.")
        return Columns(kept, fewer, self.base if base is None else base, self.centred)

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
        kept = [
            member * len(self.depths) + self.depths.index(depth)
            for member in range(fewer.members)
            for depth in fewer.depths
        ]
        return [*kept, self.number - 1] if fewer.base else kept

    def check_iterates(self, iterates: Tensor) -> None:
        """Raise unless ``iterates`` is (member, depth 1..L, ...) and covers the columns."""
        if iterates.shape[0] != self.members or iterates.shape[1] < self.depths[-1]:
            raise ShapeError(
                f"`iterates` must be (member, depth, batch, ...) with {self.members} members and "
                f"at least {self.depths[-1]} depths, but got shape {tuple(iterates.shape)}. "
                "Depth 1 comes first; leave out the source, depth 0."
            )
