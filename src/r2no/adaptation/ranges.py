"""Whether values are of the size that a model was adapted to, and which factor is suspected."""

import math
import warnings
from collections.abc import Sequence

from jaxtyping import Bool
from torch import Tensor

from r2no._types import Field
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields
from r2no.errors import RangeWarning

_FACTOR = 8.0  # sizes that differ by less may be another flow
_SPREADS = 6.0  # so far from the mean of the fit the mean of a history may lie
_CLOSE = 0.1  # decimal logarithm: how near a suspected factor must be
_COMMON = (3.6, 60.0, 3600.0, 1852 / 3600, 0.3048, 0.44704, 25.4, 6894.757, 133.322, 101325.0)
_ZERO_CELSIUS = 273.15


def check_range(
    values: Field,
    valid: Bool[Tensor, "batch time *space_channel"],
    *,
    fields: Fields,
    statistics: Normaliser,
    probe: Tensor,
    stacklevel: int = 3,
) -> None:
    """Warn of channels whose values are of another size than those the model was adapted to.

    ``statistics`` are mean and spread of the fit; where they do not describe ``probe``, a history
    of the fit (they can be a user's own), its own mean and spread are taken.
    """
    for number, name in enumerate(fields.channels):
        known = values[..., number][valid[..., number]].double()
        if not len(known) or not bool(known.any()):
            continue  # a channel of zeros is one that was not measured
        mean, spread = _reference(statistics, probe, number)
        if _fits(known, mean, spread):
            continue
        size, usual = _size(known), math.hypot(mean, spread)
        if usual == 0:
            continue  # nothing was measured then
        warnings.warn(
            f"Channel {name!r} of `history` is about {_times(size / usual)} what the model was "
            f"adapted to (typical size {usual:.3g}{_unit(fields, number)}). "
            f"{_suspicion(known, mean, size / usual)}",
            RangeWarning,
            stacklevel=stacklevel,
        )


def _reference(statistics: Normaliser, probe: Tensor, number: int) -> tuple[float, float]:
    mean, spread = float(statistics.shift[number]), float(statistics.scale[number])
    seen = probe[..., number].double().flatten()
    if bool(seen.any()) and not _fits(seen, mean, spread):
        return float(seen.mean()), float(seen.std())
    return mean, spread


def _fits(values: Tensor, mean: float, spread: float) -> bool:
    ratio = _size(values) / max(math.hypot(mean, spread), 1e-300)
    near = abs(float(values.mean()) - mean) <= _SPREADS * spread
    return 1 / _FACTOR <= ratio <= _FACTOR and (near or spread == 0)


def _size(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def _times(ratio: float) -> str:
    rounded = float(f"{ratio if ratio >= 1 else 1 / ratio:.1g}")
    return f"{rounded:g} times {'larger than' if ratio >= 1 else 'smaller than'}"


def _unit(fields: Fields, number: int) -> str:
    return f" {fields.units[number]}" if fields.units and fields.units[number] else ""


def _suspicion(values: Tensor, mean: float, ratio: float) -> str:
    remedy = "Convert the data, or go on if they are meant to be so different."
    moved = float(values.mean()) - mean
    if abs(abs(moved) - _ZERO_CELSIUS) < 0.1 * _ZERO_CELSIUS:
        return f"They are off by about 273.15, as degrees Celsius are from kelvin. {remedy}"
    factor = suspected_factor(ratio)
    if factor is None:
        return remedy
    return f"A factor of {factor:g} between units would explain it. {remedy}"


def suspected_factor(ratio: float) -> float | None:
    """The power of ten, or common factor between units, that a ratio of sizes suggests."""
    large = math.log10(max(ratio, 1 / ratio))
    power = round(large)
    if power >= 1 and abs(large - power) <= 0.3:
        return float(10.0**power)
    candidates: Sequence[float] = [max(factor, 1 / factor) for factor in _COMMON]
    nearest = min(candidates, key=lambda factor: abs(math.log10(factor) - large))
    return nearest if abs(math.log10(nearest) - large) <= _CLOSE else None
