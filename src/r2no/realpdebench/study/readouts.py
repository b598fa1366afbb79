"""Every readout of every study, from the sums of one pass; none evaluates the module again."""

import math
from dataclasses import dataclass

from r2no.adaptation import AdaptedModel, readouts
from r2no.ensemble import FittedEnsemble
from r2no.spectral import FourierCells

#: Eight orders of magnitude.
RIDGE_SWEEP = tuple(10.0**power for power in range(-8, 1))
#: Retained depths per member; twelve steps give 4, 7, 10, 13, 19, 25 and 37 columns for M = 3.
RETAINED = (1, 2, 3, 4, 6, 8, 12)


@dataclass(frozen=True)
class StudyReadouts:
    """Fitted readouts by name, and other names for some of them."""

    ensembles: dict[str, FittedEnsemble]
    aliases: dict[str, str]

    def ridges(self) -> dict[str, float | None]:
        """The penalty of each fitted readout."""
        return {name: e.ridge for name, e in self.ensembles.items()}


def study_readouts(model: AdaptedModel) -> StudyReadouts:
    """The readouts of all studies.

    ``r2no`` combines all members in the full partition; ``no_*`` drop an axis or the base column,
    each with its own choice of ridge; ``columns_J`` retain fewer depths; ``ridge_x`` fix λ = x.
    """
    members = len(model.loops.modules)
    found = readouts(model)
    found["r2no"] = found.pop(f"r2no_m{members}") if members > 1 else model.ensemble
    found |= {name: _light(e) for name, e in _partitions(model.ensemble).items()}
    found["no_base"] = _light(model.ensemble.derive(base_column=False))
    aliases: dict[str, str] = {}
    _add_columns(model.ensemble, found, aliases)
    _add_ridges(model.ensemble, found, aliases)
    return StudyReadouts(found, aliases)


def _light(ensemble: FittedEnsemble) -> FittedEnsemble:
    """Without its copy of the sums; it predicts the same."""
    return ensemble.without_sums()


def _partitions(full: FittedEnsemble) -> dict[str, FittedEnsemble]:
    """The ensemble with one axis of the partition dropped at a time."""
    cells = full.cells

    def without(*, radial: int, angular: int, shared: bool = False) -> FittedEnsemble:
        coarse = FourierCells.polar(
            cells.grid,
            radial=radial,
            angular=angular,
            extent=cells.extent,
            shared_channels=shared,
        )
        return full.derive(cells=coarse)

    return {
        "no_radial": without(radial=1, angular=cells.angular),
        "no_angular": without(radial=cells.radial, angular=1),
        "no_channel": without(radial=cells.radial, angular=cells.angular, shared=True),
    }


def retained_depths(steps: int, number: int) -> tuple[int, ...]:
    """``number`` depths of 1..L, evenly spaced, the last always L: the budget stays the same."""
    return tuple(math.ceil(place * steps / number) for place in range(1, number + 1))


def _add_columns(
    full: FittedEnsemble, found: dict[str, FittedEnsemble], aliases: dict[str, str]
) -> None:
    steps = full.columns.depths[-1]
    for number in sorted({*(n for n in RETAINED if n < steps), steps}):
        columns = full.columns.restricted(depths=retained_depths(steps, number))
        name = f"columns_{columns.number:03d}"
        if number == steps:
            aliases[name] = "r2no"
        else:
            found[name] = _light(full.derive(depths=columns.depths))


def _add_ridges(
    full: FittedEnsemble, found: dict[str, FittedEnsemble], aliases: dict[str, str]
) -> None:
    for ridge in RIDGE_SWEEP:
        name = f"ridge_{ridge:.0e}"
        if ridge == full.ridge:
            aliases[name] = "r2no"
        else:
            found[name] = _light(full.derive(ridge=ridge))
