"""What a report shows, apart from how it is drawn: two plain dataclasses of strict JSON.

Arrays are packed as base64 text, non-finite numbers are null.
"""

import base64
import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from r2no._repr import brief_repr
from r2no._types import PathLike
from r2no.adaptation import store_beside
from r2no.adaptation.stored import verified_manifest
from r2no.errors import FileDamagedError
from r2no.storage import read_json

EVALUATION = "evaluation.json"
_FORMAT = "r2no.evaluation/1"
#: Largest code of a 16-bit array; code 0 stands for a missing value.
_CODES = 65535

#: A JSON object.
Json = dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """What one pass over a scored split found.

    Attributes:
        split: Name of the split.
        windows: Number of its windows.
        trajectories: Number of its trajectories.
        fingerprint: Hash of its data.
        gaps: Share of the measured channels' target values that are missing.
        scores: Metrics by readout.
        roles: Which readouts are the ``source``, the best common depth (``irno``; not without
            members) and ``r2no``.
        depth_change: Change of the regional fRMSE in percent (M10), [depth][band]; empty without
            members.
        spectra: ``radius`` and, by role and for the ``target``, the root mean square by ring.
        lead: RMSE by role and forecast frame.
        regions: RMSE near the edges and inside, by channel and role; ``width`` of the edge.
        example: One window: fields by channel and frame, packed.
        audit: One row per data split.
        bands: Scores of bands and alarm, see :class:`r2no.report.sureness.BandWatch`; empty for a
            model without them.
    """

    split: str
    windows: int
    trajectories: int
    fingerprint: str
    gaps: float
    scores: dict[str, dict[str, float | None]]
    roles: dict[str, str]
    depth_change: list[list[float | None]]
    spectra: Json
    lead: dict[str, list[float | None]]
    regions: Json
    example: Json
    audit: list[Json] = field(default_factory=list)
    bands: Json = field(default_factory=dict)

    __repr__ = brief_repr

    def to_json(self) -> Json:
        """Strict JSON: no NaN."""
        result: Json = clean({"format": _FORMAT, **asdict(self)})
        return result

    @classmethod
    def from_json(cls, content: Json) -> "Evaluation":
        """Inverse of :meth:`to_json`."""
        names = {"format", *(part.name for part in fields(cls))}
        if (
            not isinstance(content, dict)
            or content.get("format") != _FORMAT
            or names - set(content) - {"bands"}  # which earlier versions did not know
        ):
            found = content.get("format") if isinstance(content, dict) else content
            raise FileDamagedError(
                f"`content` must be of format {_FORMAT!r} with {sorted(names)}, but is "
                f"{found!r:.80}. "
                "Score the model again with this version."
            )
        content = {"bands": {}, **content}
        found = cls(**{part.name: content[part.name] for part in fields(cls)})
        return found._with_source_named()._with_points_listed()

    def _with_source_named(self) -> "Evaluation":
        """The source's row was called after how the demo's source was made, once."""
        old = self.roles.get("source")
        if old != "finetuned":
            return self
        scores = {"source" if name == old else name: row for name, row in self.scores.items()}
        return replace(self, scores=scores, roles={**self.roles, "source": "source"})

    def _with_points_listed(self) -> "Evaluation":
        """Bands were shown over time at one point, of one channel, once."""
        if "point" not in self.bands:
            return self
        bands = dict(self.bands)
        place, series = bands.pop("point"), bands.pop("series")
        listed = {name: [values] for name, values in series.items()}
        point = {"name": "at the middle of the grid", "place": place, "series": listed}
        return replace(self, bands={**bands, "points": [point]})


@dataclass(frozen=True)
class ReportData:
    """Everything on the page; all but ``evaluation`` follows from an artifact alone.

    Attributes:
        title: Of the page.
        verdict: Decision, gain, interval and blocks, or ``None`` for a published fit.
        fit: Windows, blocks, members, steps, cells and chains of the fit.
        fields: Grid, frames, channels and units.
        retention: Cells, weights and what they do, see :func:`r2no.report.cells.cells_json`.
        depth_change: As in :class:`Evaluation`, but on the fit split.
        budget: Held-out error against evaluations of the repair module.
        learning: Held-out error against windows.
        contributions: What each group of columns is worth, the most useful first.
        audit: One row per data split.
        provenance: Hashes, seeds, versions, settings, command.
        evaluation: Scores and fields on data that were not fitted, if any were given.
    """

    title: str
    verdict: Json | None
    fit: Json
    fields: Json
    retention: Json
    depth_change: list[list[float | None]]
    budget: list[Json]
    learning: list[Json]
    contributions: list[Json]
    audit: list[Json]
    provenance: Json
    evaluation: Evaluation | None = None

    __repr__ = brief_repr

    def to_json(self) -> Json:
        """Strict JSON: no NaN."""
        evaluation = None if self.evaluation is None else self.evaluation.to_json()
        return {**clean(asdict(self)), "evaluation": evaluation}


def store_evaluation(artifact: PathLike, evaluation: Evaluation) -> None:
    """Keep an evaluation inside an artifact, so that its report needs neither source nor data."""
    store_beside(artifact, EVALUATION, evaluation.to_json())


def stored_evaluation(artifact: PathLike) -> Evaluation | None:
    """The evaluation kept in an artifact, or ``None``; one left by an earlier save is ignored."""
    folder = Path(artifact)
    if EVALUATION not in verified_manifest(folder)["files"]:
        return None
    return Evaluation.from_json(read_json(folder / EVALUATION))


def pack(values: Tensor) -> dict[str, Any]:
    """An array in 16 bits a value: low + (code - 1) · (high - low) / 65534, code 0 missing (NaN).

    Example:
        >>> import torch
        >>> packed = pack(torch.tensor([0.0, 1.0, float("nan")]))
        >>> packed["low"], packed["high"], unpack(packed).tolist()
        (0.0, 1.0, [0.0, 1.0, nan])
    """
    array = values.detach().cpu().double().numpy()
    finite = np.isfinite(array)
    low = float(array[finite].min()) if finite.any() else 0.0
    high = float(array[finite].max()) if finite.any() else 0.0
    step = (high - low) / (_CODES - 1) or 1.0
    codes = np.where(finite, np.round((np.where(finite, array, low) - low) / step) + 1, 0)
    return {"shape": list(array.shape), "low": low, "high": high, "data": _text(codes, "<u2")}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """Inverse of :func:`pack`, to half a step."""
    codes = np.frombuffer(base64.b64decode(packed["data"]), "<u2").astype(float)
    step = (packed["high"] - packed["low"]) / (_CODES - 1)
    values = np.where(codes > 0, packed["low"] + (codes - 1) * step, math.nan)
    return values.reshape(packed["shape"])


def pack_floats(values: Tensor) -> dict[str, Any]:
    """An array in single precision, for numbers of very different size such as weights."""
    array = values.detach().cpu().numpy()
    return {"shape": list(array.shape), "data": _text(array, "<f4")}


def pack_numbers(values: Tensor) -> dict[str, Any]:
    """An array of whole numbers below 65536."""
    array = values.detach().cpu().numpy()
    return {"shape": list(array.shape), "data": _text(array, "<u2")}


def unpack_numbers(packed: dict[str, Any]) -> np.ndarray:
    """Inverse of :func:`pack_numbers`."""
    return np.frombuffer(base64.b64decode(packed["data"]), "<u2").reshape(packed["shape"])


def _text(array: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array.astype(kind)).tobytes()).decode("ascii")


def clean(content: Any) -> Any:
    """``content`` with None for every NaN and infinity, and lists for tuples: strict JSON."""
    if isinstance(content, dict):
        return {str(key): clean(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [clean(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def rounded(values: Tensor, digits: int = 5) -> Any:
    """Nested lists with so many significant digits, None where not finite."""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(item) for item in value]
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None

    return short(values.detach().cpu().double().tolist())


def minus(text: str) -> str:
    """A number's text with a real minus sign."""
    return text.replace("-", "\u2212")
