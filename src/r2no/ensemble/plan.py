"""FitPlan: what to fit and how to choose, checked; as a file holds it (M7)."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from r2no import checks
from r2no.ensemble.columns import Columns
from r2no.ensemble.ridge import RIDGE_GRID
from r2no.errors import ConfigError

Ridge = float | Literal["auto", "nested"]


@dataclass(frozen=True)
class FitPlan:
    """What to fit and how to choose; see :class:`r2no.SpectralEnsemble` for each."""

    ridge: Ridge = "auto"
    measured: tuple[int, ...] = (0,)
    weight_exponent: float = 1.0
    base_column: bool = True
    depths: tuple[int, ...] | None = None
    ridge_grid: tuple[float, ...] = RIDGE_GRID
    lead_groups: int = 1
    centred: bool = False
    weigh_by: Literal["norm", "deviation"] = "norm"
    recordings: int | None = None
    units: tuple[int, ...] = ()
    variation: float = 1.0
    spread: float = 0.0

    @classmethod
    def of(cls, given: dict[str, Any]) -> "FitPlan":
        """A plan from arguments as users give them, or as a file holds them; checked."""
        known = {part.name: given.get(part.name, part.default) for part in fields(cls)}
        ridge, depths = known["ridge"], known["depths"]
        plan = cls(
            **{
                **known,
                "ridge": ridge
                if isinstance(ridge, str)
                else checks.real("ridge", ridge, finite=False),
                "measured": _wholes("measured", known["measured"], least=0),
                "weight_exponent": checks.real("weight_exponent", known["weight_exponent"]),
                "depths": None if depths is None else _wholes("depths", depths),
                "ridge_grid": tuple(float(r) for r in known["ridge_grid"]),
                "lead_groups": checks.whole("lead_groups", known["lead_groups"]),
                "units": _wholes("units", known["units"], least=0),
                "variation": checks.real("variation", known["variation"]),
                "spread": checks.real("spread", known["spread"]),
            }
        )
        named = plan.ridge in ("auto", "nested")
        if not named and (isinstance(plan.ridge, str) or not plan.ridge >= 0):
            raise ConfigError(
                f"`ridge` must be 'auto', 'nested' or a number >= 0, but got {plan.ridge!r}."
            )
        if plan.recordings is not None and plan.recordings < 1:
            raise ConfigError(f"`recordings` must be at least 1 or None, got {plan.recordings}.")
        if plan.weight_exponent < 0:
            raise ConfigError(f"`weight_exponent` must be >= 0, got {plan.weight_exponent}.")
        return plan

    def columns(self, members: int, steps: int) -> Columns:
        """The columns of ``members`` trajectories of ``steps`` iterates."""
        depths = self.depths or tuple(range(1, steps + 1))
        columns = Columns(members, depths, self.base_column, self.centred)
        if columns.depths[-1] > steps:
            raise ConfigError(
                f"`depths` must not exceed the {steps} iterates at hand, but got {columns.depths}."
            )
        return columns

    def json(self) -> dict[str, Any]:
        """The plan as plain values, as a file holds it."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in parts.items()}

    def agrees(self, other: "FitPlan") -> bool:
        """Whether the other asks for the same, whatever recordings it was made for."""
        return self == replace(
            other,
            recordings=self.recordings,
            units=self.units,
            variation=self.variation,
            spread=self.spread,
        )

    def joined(self, other: "FitPlan") -> "FitPlan":
        """The plan for the groups of two sites together, whose recordings are different ones."""
        known = self.recordings is not None and other.recordings is not None
        return replace(
            self,
            recordings=(self.recordings or 0) + (other.recordings or 0) if known else None,
            units=_joined_units(self.units, other.units),
            variation=(self.variation + other.variation) / 2,
            spread=(self.spread + other.spread) / 2,
        )


def _joined_units(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Recordings of the groups of two sites, which are different ones; unknown if one's are."""
    if not first or not second:
        return ()
    return (*first, *(max(first) + 1 + unit for unit in second))


def _wholes(name: str, given: Any, *, least: int = 1) -> tuple[int, ...]:
    return tuple(checks.whole(name, one, least=least) for one in checks.listed(name, given))
