"""A model as a program: source, repair loops and composition in one file, without r2no."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from r2no import checks, devices, storage
from r2no._types import Number, PathLike
from r2no.adaptation.model import AdaptedModel
from r2no.errors import ConfigError

_TOLERANCE = 1e-5  # of the program against the model, relative to the largest value


Coverage = Number | Sequence[Number] | None


class _Predictor(nn.Module):
    """R(X) of (M8) as a module, so that it can be traced; with bounds if a coverage is given."""

    def __init__(self, model: AdaptedModel, coverage: Coverage) -> None:
        super().__init__()
        self._model, self._coverage = model, coverage
        if coverage is not None:
            model.half_widths(coverage)  # computes the factors, which are constants of the program

    def forward(
        self, history: Tensor, forecast: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        source = self._model.source(history.clone()) if forecast is None else forecast
        composed = self._model.compose(history, source)
        if self._coverage is None:
            return composed
        found = self._model.half_widths(self._coverage, composed)
        half_widths = found[0] if np.ndim(self._coverage) == 0 else found
        return composed, composed - half_widths, composed + half_widths


def write_program(
    model: AdaptedModel, path: PathLike, *, source_input: bool, coverage: Coverage = None
) -> Path:
    """Do what :meth:`AdaptedModel.export` says."""
    path = checks.path("path", path)
    if path.suffix != ".pt2":
        raise ConfigError(f"`path` must end in .pt2, as exported programs do, but got `{path}`.")
    device = model.device
    try:  # a program is of the device it is traced on
        predictor = _Predictor(model.to(devices.CPU), coverage).eval()
        storage.write_bytes(path, _content(model, predictor, source_input))
    finally:
        model.to(device)
    return path


@torch.no_grad()
def _content(model: AdaptedModel, predictor: _Predictor, source_input: bool) -> bytes:
    """The program's bytes, compared with the model; for one window where the batch is fixed."""
    inputs = _examples(model, source_input)
    try:
        program = _traced(predictor, inputs, free=True)
    except _NotTraceable as first:
        inputs = tuple(values[:1] for values in inputs)
        try:
            program = _traced(predictor, inputs, free=False)
        except _NotTraceable as second:
            raise ConfigError(
                f"The source cannot be traced by `torch.export`: {second}. Pass "
                "`source_input=True` to export the repair alone, which then takes the source's "
                "forecast as second input."
            ) from second
        warnings.warn(
            "The exported program takes one window at a time, since the source's code fixes the "
            f"batch size: {first}",
            stacklevel=5,  # whoever called `model.export`
        )
    stream = io.BytesIO()
    with warnings.catch_warnings():  # on channels-last weights; what is read back is compared
        warnings.filterwarnings("ignore", message="No complete tensor found in the group")
        torch.export.save(program, stream)
    stream.seek(0)
    _compare(torch.export.load(stream), predictor, model, inputs)
    return stream.getvalue()


def _examples(model: AdaptedModel, source_input: bool) -> tuple[Tensor, ...]:
    """Two different windows, since a batch of one would be taken for a constant."""
    given = (model.probe, model.source(model.probe.clone())) if source_input else (model.probe,)
    return tuple(torch.cat([values, values.roll(1, -2)]) for values in given)


class _NotTraceable(Exception):
    """What ``torch.export`` said, in one line."""


def _traced(predictor: _Predictor, inputs: tuple[Tensor, ...], *, free: bool) -> ExportedProgram:
    batch = {0: torch.export.Dim("batch")} if free else None
    try:
        predictor(*inputs)  # fills what is kept between calls with real tensors
        return torch.export.export(predictor, inputs, dynamic_shapes=tuple(batch for _ in inputs))
    except Exception as error:  # tracing runs the source's own code, which can raise anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise _NotTraceable(" ".join(lines[:2]) or type(error).__name__) from error


def _compare(
    program: ExportedProgram,
    predictor: _Predictor,
    model: AdaptedModel,
    inputs: tuple[Tensor, ...],
) -> None:
    answers = predictor(*inputs), program.module()(*inputs)
    expected, found = (one if isinstance(one, Tensor) else one[0] for one in answers)
    scale = expected.abs().max().clamp_min(1e-30)
    apart = float((found - expected).abs().max() / scale)
    if not apart <= max(_TOLERANCE, 4 * _rounding(model, inputs, expected)):
        raise ConfigError(
            f"The exported program differs from the model by {apart:.1e} of the largest value, so "
            "tracing froze something that depends on the input. Pass `source_input=True` to leave "
            "the source out."
        )


def _rounding(model: AdaptedModel, inputs: tuple[Tensor, ...], expected: Tensor) -> float:
    """How far the model's answer moves when its source is rounded in another way.

    Weights of near-collinear columns are large and of opposite sign, so they amplify it.
    """
    source = inputs[1] if len(inputs) > 1 else model.source(inputs[0].clone())
    generator = torch.Generator().manual_seed(0)
    up = torch.rand(source.shape, generator=generator) < 0.5
    moved = model.compose(inputs[0], source * torch.where(up, 1 + 2**-22, 1 - 2**-22))
    return float((moved - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
