"""One window's fields for the page: measured channels, packed, coarsened if they are many."""

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor

from r2no.data.window import Fields
from r2no.report.packing import pack

#: Most numbers of one example, at 8/3 bytes of text each: a little over 3 MB.
_MOST = 1_200_000


def example_json(
    kept: dict[str, Tensor], fields: Fields, *, number: int, origin: list[int]
) -> dict[str, Any]:
    """Target and forecasts, (time, *space, channel) over the measured channels, by channel.

    Rows are stored top first, as they are drawn. A 1-D grid gives one row, a 3-D one its middle
    plane. ``stride`` says that only every so many points of each axis are kept.
    """
    images = {name: _planes(values) for name, values in kept.items()}
    size = sum(values.numel() for values in images.values())
    stride = max(1, math.ceil(math.sqrt(size / _MOST)))
    images = {name: values[:, ::stride, ::stride] for name, values in images.items()}
    channels = []
    for place, channel in enumerate(fields.measured):
        unit = fields.units[channel] if channel < len(fields.units) else ""
        packed = {name: pack(values[..., place].flip(1)) for name, values in images.items()}
        channels.append({"name": fields.channels[channel], "unit": unit, "fields": packed})
    spacing = (*fields.spacing, 1.0, 1.0)[:2] if len(fields.grid) == 2 else (1.0, 1.0)
    return {
        "window": number,
        "trajectory": origin[0],
        "start": origin[1],
        "time_step": fields.time_step,
        "time_units": fields.time_units,
        "stride": stride,
        "spacing": list(spacing),
        "channels": channels,
    }


def _planes(
    values: Float[Tensor, "time *space_channel"],  # noqa: F821
) -> Float[Tensor, "time height width channel"]:
    """The fields as pictures."""
    if values.ndim == 3:
        return values[:, None]
    return values if values.ndim == 4 else values[:, values.shape[1] // 2]
