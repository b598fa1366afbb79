"""ScoringWatch: what the report needs of a scored split, gathered during the one scoring pass."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from r2no._types import Field, Operator
from r2no.adaptation import AdaptedModel, further_forecasts, readouts, score_readouts
from r2no.data.window import Fields, Window, Windows, trajectories
from r2no.ensemble import DepthErrors
from r2no.errors import ConfigError
from r2no.progress import SILENT, Reporter
from r2no.report.data import Evaluation, clean, pack, rounded
from r2no.report.sureness import BandWatch
from r2no.scoring import Observer, Sample
from r2no.spectral import FourierCells, cell_energy, count_coefficients

#: Most numbers of one example, at 8/3 bytes of text each: a little over 3 MB.
_MOST = 1_200_000


class ScoringWatch(Observer):
    """What of a scoring pass the report shows; :meth:`finish` gives the evaluation.

    Keeps sums by ring, frame and region, and the middle window's fields, so memory does not grow.

    Args:
        model: The model that is scored.
        windows: The split that is scored.
    """

    sums = ("_energy", "_squared", "_sample", "_band_sums")

    def __init__(self, model: AdaptedModel, windows: Windows) -> None:
        fields = model.fields
        self._fields, self._windows = fields, windows
        self._number = len(windows) // 2
        members = len(model.loops.modules)
        irno = {"irno": "irno_selected"} if members and model.loops.start is None else {}
        self.roles = {"source": "source", **irno, "r2no": f"r2no_m{members}"}
        self._rings = FourierCells.bands(
            fields.grid, num_bands=min(24, max(4, min(fields.grid) // 2))
        )
        self._edge = edge_width(fields)
        near = border(fields, self._edge)
        self._regions_of = (near.nonzero().squeeze(1), (~near).nonzero().squeeze(1))
        named = [*self.roles, "target"]
        channels = len(fields.measured)
        self._energy = {
            name: torch.zeros(self._rings.num_cells, dtype=torch.float64) for name in named
        }
        shape = (fields.horizon_frames, 2, channels)
        self._squared = {
            name: torch.zeros(shape, dtype=torch.float64) for name in (*self.roles, "points")
        }
        self._sample = Sample(self.roles.values(), self._number)
        self._missing: set[str] = set()
        known = model.calibration
        self._bands = None if known is None else BandWatch(model, known.bands)
        self._band_sums = {} if self._bands is None else self._bands.empty()

    def __repr__(self) -> str:
        return f"ScoringWatch({', '.join(self.roles)} on {len(self._windows)} windows)"

    def begin(self, numbers: range, window: Window) -> None:
        """Add the targets of a batch."""
        super().begin(numbers, window)
        self._sample.begin(numbers, window)
        measured = list(self._fields.measured)
        self._target = window.target[..., measured]
        self._mask = torch.ones_like(self._target, dtype=torch.bool)
        if window.mask is not None:
            self._mask = window.mask[..., measured]
        self._missing = set(self.roles.values())
        known = torch.where(self._mask, self._target, self._target.new_zeros(()))
        _add(self._energy, "target", self._by_ring(known))
        _add(self._squared, "points", self._by_region(self._mask.double()))

    def forecast(self, name: str, forecast: Tensor) -> None:
        """Add a forecast that the report shows."""
        self._sample.forecast(name, forecast)
        self._missing.discard(name)
        if self._bands is not None and name == self.roles["r2no"]:
            self._bands.add(self._band_sums, self.window, forecast)
        for role in (role for role, readout in self.roles.items() if readout == name):
            error = forecast[..., list(self._fields.measured)] - self._target
            error = torch.where(self._mask, error, error.new_zeros(()))
            _add(self._energy, role, self._by_ring(error))
            _add(self._squared, role, self._by_region(error.double() ** 2))

    def end(self) -> None:
        """Raise if a readout that the report shows was not scored."""
        if self._missing:
            raise ConfigError(
                f"The report needs the forecasts {sorted(self._missing)}, which were not made. "
                "Score at least the readouts of `r2no.adaptation.readouts(model)`."
            )

    @property
    def fields(self) -> dict[str, Tensor]:
        """Of the kept window: the roles and the ``target``, over the measured channels."""
        measured, kept = list(self._fields.measured), self._sample.fields
        named = {**self.roles, "target": "target"}
        return {role: kept[name][..., measured] for role, name in named.items()}

    def _by_ring(self, field: Field) -> Tensor:
        return cell_energy(field, self._rings).sum((0, 2))

    def _by_region(self, values: Field) -> Float[Tensor, "time region channel"]:
        """Sums over windows and the points of the edge (0) and of the interior (1)."""
        flat = values.sum(0).flatten(1, -2)
        parts = (flat.index_select(1, one.to(flat.device)).sum(1) for one in self._regions_of)
        return torch.stack(list(parts), 1)

    def finish(
        self,
        scores: Mapping[str, Mapping[str, float]],
        errors: DepthErrors,
        *,
        split: str = "test",
        audit: list[dict[str, Any]] | None = None,
    ) -> Evaluation:
        """The evaluation of all batches seen.

        Args:
            scores: By readout, as :func:`r2no.adaptation.score_readouts` returns them.
            errors: By depth and band, from the same pass.
            split: Name of the split.
            audit: Rows of :func:`r2no.data.audit_splits`, if made.
        """
        for sums in (self._energy, self._squared):
            sums.update({name: value.cpu() for name, value in sums.items()})
        total = self._windows_points()
        return Evaluation(
            split=split,
            windows=len(self._windows),
            trajectories=trajectories(self._windows),
            fingerprint=self._windows.fingerprint,
            gaps=1 - float(self._squared["points"].sum()) / total,
            scores=clean({name: dict(values) for name, values in scores.items()}),
            roles=self.roles,
            depth_change=rounded(errors.change()[:1].flatten(0, 1)),
            spectra=self._spectra(),
            lead={name: rounded(self._rmse(name, (1, 2))) for name in self.roles},
            regions=self._regions(),
            example=example_json(
                self.fields,
                self._fields,
                number=self._number,
                origin=self._windows.origins[self._number].tolist(),
            ),
            audit=audit or [],
            bands={}
            if self._bands is None
            else clean(self._bands.json(self._band_sums, self.fields)),
        )

    def _windows_points(self) -> int:
        fields = self._fields
        values = math.prod(fields.grid) * fields.horizon_frames * len(fields.measured)
        return len(self._windows) * values

    def _rmse(self, role: str, over: tuple[int, ...]) -> Tensor:
        return (self._squared[role].sum(over) / self._squared["points"].sum(over)).sqrt()

    def _spectra(self) -> dict[str, Any]:
        fields, rings = self._fields, self._rings
        channels = len(fields.measured)
        counts = count_coefficients(rings, frames=fields.horizon_frames, channels=channels)
        centre = (torch.arange(rings.num_cells) + 0.5) * math.sqrt(len(fields.grid))
        return {
            "radius": rounded(centre / rings.num_cells),
            **{
                name: rounded((energy / (counts * len(self._windows))).sqrt())
                for name, energy in self._energy.items()
            },
        }

    def _regions(self) -> dict[str, Any]:
        """RMSE at the edge of the grid and inside it, by channel and role."""
        names = [self._fields.channels[channel] for channel in self._fields.measured]
        rows: list[dict[str, Any]] = []
        for label, channel in (("all", None), *((name, n) for n, name in enumerate(names))):
            if channel is None and len(names) == 1:
                continue
            kept = slice(None) if channel is None else slice(channel, channel + 1)
            for region, place in (("edge", 0), ("interior", 1)):
                points = self._squared["points"][:, place, kept].sum()
                values = {
                    role: rounded((self._squared[role][:, place, kept].sum() / points).sqrt())
                    for role in self.roles
                }
                rows.append({"channel": label, "region": region, **values})
        return {"width": self._edge, "rows": rows}


def _add(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    """Add to a sum where the value is; all come back at the end."""
    sums[name] = sums[name].to(value.device) + value


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


def edge_width(fields: Fields) -> int:
    """Points from the border that count as edge: a twelfth of the shortest side, at least one."""
    return max(1, min(fields.grid) // 12)


def border(fields: Fields, width: int) -> Bool[Tensor, " point"]:
    """True at the points of the grid, in one row, within ``width`` of its border."""
    near = torch.zeros(fields.grid, dtype=torch.bool)
    for axis, size in enumerate(fields.grid):
        place = torch.arange(size)
        close = (place < width) | (place >= size - width)
        near |= close.reshape([-1 if other == axis else 1 for other in range(near.ndim)])
    return near.reshape(-1)


def evaluate(
    model: AdaptedModel,
    windows: Windows,
    *,
    operators: Mapping[str, Operator] | None = None,
    split: str = "test",
    reporter: Reporter = SILENT,
) -> Evaluation:
    """Score a model and its baselines on a split for the report, in one streamed pass."""
    watch = ScoringWatch(model, windows)
    chosen = {**further_forecasts(model), **readouts(model)}
    scores, errors = score_readouts(
        model, windows, chosen, operators=operators, observers=[watch], reporter=reporter
    )
    return watch.finish(scores, errors, split=split)
