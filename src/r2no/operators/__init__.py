"""Other people's operators as sources: networks in any layout, exported programs, forecasts.

A source is anything that maps a physical history (batch, time, *space, channel) to a physical
forecast of the same axes. :func:`wrap` brings a network into that form; :func:`from_python` and
:func:`from_exported` open one; :class:`Forecasts` stands in where there is no network at all.
"""

from r2no.operators.forecasts import Forecasts
from r2no.operators.opening import check_finite, from_exported, from_python, read_weights
from r2no.operators.wrapped import Layout, WrappedOperator, fitting_layouts, wrap

__all__ = [
    "Forecasts",
    "Layout",
    "WrappedOperator",
    "check_finite",
    "fitting_layouts",
    "from_exported",
    "from_python",
    "read_weights",
    "wrap",
]
