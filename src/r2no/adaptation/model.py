"""AdaptedModel: a frozen source, its repair modules and the ensemble that composes them."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import xarray as xr
from torch import Tensor

from r2no import checks, devices, storage
from r2no._repr import html_table
from r2no._types import Number, Operator, PathLike
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.groups import ColumnGroup, Instant, MeanField, group_forecasts
from r2no.adaptation.histories import (
    History,
    check_range,
    coverages,
    prediction,
    read_history,
    without_gaps,
)
from r2no.adaptation.labelled import read_labelled
from r2no.adaptation.loops import RepairLoops
from r2no.checks import changed
from r2no.data.coordinates import check_alike
from r2no.data.window import Fields, Windows
from r2no.ensemble import (
    BudgetPoint,
    Contribution,
    DepthErrors,
    FittedEnsemble,
    LearningPoint,
    Readouts,
    Verdict,
    best_within,
    contributions,
    cost_curve,
    learning_curve,
)
from r2no.ensemble.bands import Calibration
from r2no.ensemble.columns import last_depths, repair_label
from r2no.ensemble.compose import CellWeights
from r2no.ensemble.familiar import described
from r2no.errors import NonFiniteError, NotFittedError
from r2no.progress import SILENT, Reporter
from r2no.scoring import Metrics, score
from r2no.training import asked

IncludeSource = bool | Literal["auto"]


@dataclass(eq=False)
class AdaptedModel:
    """What :func:`r2no.adapt` returns: predicts, scores itself, and can be shipped as a folder.

    Attributes:
        source: The frozen operator, physical units in and out.
        loops: The repair loops; none with members=0.
        ensemble: The fitted spectral ensemble.
        fit_errors: Errors by depth and band on the fit split.
        fields: Meaning of axes and channels.
        settings: What was decided.
        provenance: Fingerprints of source and data, seeds, versions.
        probe: The history on which the source's fingerprint was taken.
        groups: Forecasts that the cells may use beside source and repairs.
        device: Where it computes; :meth:`to` moves it.
        calibration: What bands and alarm rest on; ``None`` where nothing was held out for them.
    """

    source: Operator
    loops: RepairLoops
    ensemble: FittedEnsemble
    fit_errors: DepthErrors
    fields: Fields
    settings: AdaptSettings
    provenance: dict[str, Any]
    probe: Tensor
    groups: tuple[ColumnGroup, ...] = ()
    device: torch.device = devices.CPU
    calibration: Calibration | None = None

    def to(self, device: str | torch.device) -> "AdaptedModel":
        """Move the networks to a device ("auto", "cuda:1", ...), in place; returns the model.

        Forecasts still come back where the history was.

        Raises:
            DeviceError: if it is not there.
        """
        found = devices.choose(device)
        devices.moved(self.source, found)
        for group in self.groups:
            devices.moved(getattr(group, "operator", None), found)
        self.loops, self.device = self.loops.to(found), found
        return self

    @torch.no_grad()
    def predict(
        self,
        history: Any,
        *,
        mask: Any = None,
        gaps: str = "fill",
        coverage: Number | Sequence[Number] | None = None,
    ) -> Any:
        """Forecast from a physical history, in constant memory over depth and members (M8).

        Args:
            history: (batch, time, *space, channel), with or without the batch axis: a NumPy array
                of any number type, a masked array, a tensor, a list of these, or an xarray
                object, read by the names of its dimensions, variables and units.
            mask: True where a value is valid, with or without the channel axis; default: where it
                is a finite number.
            gaps: "fill" missing values by the rule of :class:`r2no.data.ArrayWindows`, or "refuse".
            coverage: How often bands around the forecast shall hold the measured value, such as
                0.9, or several of these.

        Returns:
            The forecast as the kind of thing that ``history`` is, in its precision (float32 where
            it has a lower one). An xarray object keeps its coordinates and units; time goes on.
            With ``coverage`` a :class:`Prediction`: forecast, bounds, and how familiar it looks.

        Raises:
            ShapeError: if frames, grid or channels are others than in training.
            DataError: for something else, other units than can be converted, another time step.
            GridMismatchError: if an xarray object is spaced otherwise, or an axis runs backwards.
            NonFiniteError: if gaps are refused or cannot be filled, or the forecast is not finite.
            ConfigError: for a coverage that is not between 0 and 1.
            NotFittedError: if the model has no bands.
            EmptySplitError: if its fit held out too few blocks for this coverage.
            DeviceMemoryError: if so many windows do not fit, with how many do.

        Warns:
            RangeWarning: if values are of another size than those of the fit, with the factor
                between units that is suspected.
        """
        if coverage is not None:
            self.half_widths(coverage)  # what cannot be is said before the work
        given = self._read(history, mask, gaps)
        values = given.values
        with devices.memory_named(
            len(values),
            lambda size: self.forecast(values[:size]),
            remedy="predict {fits} at a time (`batch_size` of `write_predictions`)",
        ):
            forecast = self.forecast(values)
        if coverage is None:
            return given.restore(forecast)
        half_widths = self.half_widths(coverage, forecast)
        return prediction(forecast, half_widths, self.familiar(values), given.restore, coverage)

    def _read(self, history: Any, mask: Any, gaps: str) -> History:
        """What was given to :meth:`predict`, with its gaps filled and its range checked."""
        labelled = isinstance(history, (xr.DataArray, xr.Dataset))
        read = read_labelled if labelled else read_history
        found = read(history, mask, self.fields, self.probe.dtype)
        values = without_gaps(found, self.fields, gaps)
        check_range(
            values,
            found.valid,
            fields=self.fields,
            statistics=self.loops.of_history,
            probe=self.probe,
            stacklevel=5,  # who called predict, beyond no_grad
        )
        return replace(found, values=values)

    def half_widths(
        self, coverage: Number | Sequence[Number], forecast: Tensor | None = None
    ) -> Tensor:
        """By coverage, how far bounds lie from the forecast (M14); NaN in unmeasured channels.

        Args:
            coverage: One or several probabilities.
            forecast: Of this model, (batch, time, ..., channel): the second axis of the result is
                its batch then. Without it, for a forecast as steep as usual.

        Raises:
            NotFittedError: if the model has no bands, with the reason.
        """
        bands, fields = self._calibrated.bands, self.fields
        measured = list(fields.measured)
        found = torch.stack([bands.half_width(one) for one in coverages(coverage)])
        if forecast is not None:
            ours = checks.instance("forecast", forecast, Tensor)[..., measured].to(found.device)
            found = found[:, None] * bands.follow(ours).expand_as(ours)
        shape = (*found.shape[:-1], len(fields.channels))
        everywhere = torch.full(shape, torch.nan, dtype=self.probe.dtype)
        everywhere[..., measured] = found.to(self.probe.dtype)
        return everywhere

    def familiar(self, history: Tensor) -> Tensor:
        """p-value of each window: small where no window of the fit looks like it (M15)."""
        seen = described(history[..., list(self.fields.measured)])
        return self._calibrated.familiar.p_values(seen)

    @property
    def _calibrated(self) -> Calibration:
        """The calibration, or an error that says how to get one."""
        if self.calibration is None:
            raise NotFittedError(
                "This model has no bands: it was saved by an earlier version, truncated or merged "
                "with such a one, or fitted with `bands=False` or without held-out blocks. Adapt "
                "again, or leave `coverage` out."
            )
        return self.calibration

    @torch.no_grad()
    def forecast(self, history: Tensor) -> Tensor:
        """As :meth:`predict` for a tensor of the model's kind without gaps, whatever its range.

        Raises:
            NonFiniteError: if the forecast is not finite.
        """
        values = history.to(devices.of_sums(self.device))
        forecast = self.compose(values, self.source_forecast(values)).to(history.device)
        if not bool(torch.isfinite(forecast).all()):
            window = int((~torch.isfinite(forecast)).flatten(1).any(1).nonzero()[0])
            raise NonFiniteError(
                f"The forecast of window {window} is NaN or infinite: a repair loop diverged, or a "
                "further operator's answer is not finite. Check that the data are of the kind and "
                "units the model was adapted to."
            )
        return forecast

    def source_forecast(self, history: Tensor) -> Tensor:
        """h_0: what the source answers, checked, in the precision of ``history``."""
        return asked(self.source, history, self.fields.target_shape)

    @torch.no_grad()
    def compose(
        self, history: Tensor, source: Tensor, weights: CellWeights | None = None
    ) -> Tensor:
        """R(X) of (M8) from a history and the source's forecast; by other weights if given."""
        source, used = source.to(history.dtype), weights or self.ensemble.spread
        composition = Readouts({"": used}).compose(source)
        for label, forecast in self.forecasts(history, source, used.labels):
            composition.put(label, forecast)
        return composition.result()

    def forecasts(
        self, history: Tensor, source: Tensor, wanted: set[str] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """(label, forecast u) of every column, in physical units, one at a time.

        With ``wanted`` labels, groups without one are left out, and loops end at the last one.
        """
        yield from group_forecasts(self.groups, history, source, wanted)
        last = None if wanted is None else last_depths(wanted)
        if not self.loops.modules or last == {}:
            return
        first = self.loops.first(history, source)
        for member, depth, iterate in self.loops(history, first, last):
            yield repair_label(member, depth), iterate

    def __repr__(self) -> str:
        return f"AdaptedModel({'; '.join(text for _, text in self._summary())})"

    def _repr_html_(self) -> str:
        """What it forecasts, from what, and the verdict, as a table."""
        return html_table("AdaptedModel", self._summary())

    def _summary(self) -> list[tuple[str, str]]:
        """What to know about the model, each with its name."""
        loops, columns = self.loops, self.ensemble.columns
        rows = [
            ("forecast", self.fields.describe()),
            ("source", f"source {type(self.source).__name__}"),
            ("repair", f"{len(loops.modules)} repair module(s) of {loops.steps} steps"),
            ("ensemble", f"{columns.number} columns on {self.ensemble.cells!r}"),
        ]
        return rows if self.verdict is None else [*rows, ("verdict", str(self.verdict))]

    @property
    def verdict(self) -> Verdict | None:
        """Deploy, or keep what needs no adaptation, and why; ``None`` for a published fit."""
        return self.ensemble.verdict

    def cost_curve(self) -> list[BudgetPoint]:
        """Held-out error against evaluations of the repair module, from the sums alone."""
        return cost_curve(self.ensemble)

    def contributions(self) -> list[Contribution]:
        """What each group of columns is worth, held out, from the sums alone."""
        return contributions(self.ensemble)

    def learning_curve(self, *, repeats: int = 8) -> list[LearningPoint]:
        """How much fit data the weights need: held-out error against windows, with spread."""
        return learning_curve(self.ensemble, repeats=repeats)

    def truncate(self, evaluations: int) -> "AdaptedModel":
        """The model of lowest held-out error that evaluates the module at most so often."""
        point = best_within(self.cost_curve(), evaluations)
        steps = max(point.depth, 1)  # without members it is of no consequence
        loops = replace(self.loops, modules=self.loops.modules[: point.members], steps=steps)
        squared = self.fit_errors.squared[: point.members, : steps + 1]
        repair = changed(self.settings.repair, steps=steps)
        return replace(
            self,
            loops=loops,
            ensemble=self.ensemble.derive(members=point.members, depth=point.depth or None),
            fit_errors=replace(self.fit_errors, squared=squared),
            settings=changed(self.settings, members=point.members, repair=repair),
            calibration=None,  # of the larger model
        )

    def update(self, windows: Windows, *, reporter: Reporter = SILENT) -> "AdaptedModel":
        """The model with new fit data added: one pass over ``windows``, no training.

        Repair modules stay; the sums of the new windows are pooled with those of the model, and
        penalties, partition and verdict are decided again on the blocks of both. A recording too
        short to part is one block.

        Raises:
            ConfigError: if the model has these windows already.
            GridMismatchError: if frames, grid or channels are others than the model's.
        """
        from r2no.adaptation.adapting import updated

        return updated(self, windows, reporter=reporter)

    def merge(self, other: "AdaptedModel") -> "AdaptedModel":
        """Pool the fit with that of another site: same frozen source, same modules, other data.

        Sums are pooled, no fields; see the documentation for what an artifact reveals.
        """
        from r2no.adaptation.adapting import merged

        return merged(self, checks.instance("other", other, AdaptedModel))

    @property
    def identity(self) -> str:
        """A hash of the source and the repair loops."""
        return storage.fingerprint(self.provenance["source"], self.modules_fingerprint())

    def modules_fingerprint(self) -> str:
        """A hash of the repair loops, and of the columns that were fitted."""
        states = [dict(module.state_dict()) for module in self.loops.modules]
        states += [{"mean": g.field} for g in self.groups if isinstance(g, MeanField)]
        states += [{"instant": g.ensemble.weights} for g in self.groups if isinstance(g, Instant)]
        of = self.loops.of_history, self.loops.of_field
        statistics = [part for one in of for part in (one.shift, one.scale)]
        return storage.fingerprint(states, statistics, self.loops.step_size)

    def evaluate(
        self, windows: Windows, *, batch_size: int | None = None, reporter: Reporter = SILENT
    ) -> dict[str, float]:
        """All metrics over a split, on the measured channels.

        Args:
            windows: The split.
            batch_size: Windows per batch; default as in the settings.
            reporter: Where progress is shown.

        Raises:
            ShapeError: if frames, channels or constants are others than the model's.
            GridMismatchError: for another grid, spacing or direction of an axis.
            DataError: for other units or another time step, where both are known.
        """
        checks.instance("windows", windows, Windows)  # type: ignore[type-abstract]
        check_alike(self.fields, windows.fields)
        metrics = Metrics(self.fields.measured)
        size = self.settings.batch_size if batch_size is None else batch_size
        score(
            lambda numbers, window, watch: [("model", self.forecast(window.history))],
            windows,
            [metrics],
            batch_size=checks.whole("batch_size", size),
            device=self.device,
            reporter=reporter,
        )
        return metrics.compute()["model"]

    def save(self, path: PathLike, *, include_source: IncludeSource = "auto") -> Path:
        """Write the artifact: a folder with ``manifest.json`` and safetensors files.

        Args:
            path: The folder.
            include_source: Whether the source comes along, so that :func:`load` needs no more:
                r2no's own operators, and networks of ``operators.from_python`` or
                ``from_exported``. "auto" includes it where that is possible; otherwise, and with
                False, it is referenced by its fingerprint and given to :func:`load`.
        """
        from r2no.adaptation.artifact import save

        return save(self, checks.path("path", path), include_source)

    def export(
        self,
        path: PathLike,
        *,
        source_input: bool = False,
        coverage: Number | Sequence[Number] | None = None,
    ) -> Path:
        """Write the whole predictor through ``torch.export`` to one file that needs only PyTorch.

        ``torch.export.load(path).module()(history)`` then gives what ``predict(history)`` gives,
        to 1e-5 of the largest value, or, where the weights amplify rounding beyond that, to a few
        roundings of the source; this is checked before the file is written.

        The batch size is free unless the source's code fixes it while it is traced, as some
        networks do; then it is 1, with a warning.

        Args:
            path: A file that ends in ``.pt2``.
            source_input: Leave the source out and take its forecast as second input: for sources
                that cannot be traced, such as stored forecasts.
            coverage: The program then gives (forecast, lower, upper), the bounds as those of
                :meth:`predict`.

        Raises:
            ConfigError: if the suffix is another one, or the source cannot be traced.
        """
        from r2no.adaptation.export import write_program

        return write_program(self, path, source_input=source_input, coverage=coverage)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        include_source: IncludeSource = "auto",
        licence: str = "other",
        data: str | None = None,
        scores: Mapping[str, Mapping[str, float]] | None = None,
        private: bool = True,
        revision: str | None = None,
        message: str = "Upload an r2no artifact",
        api: Any = None,
    ) -> str:
        """Upload the artifact and its card; returns the address of the commit.

        Args:
            repo_id: ``owner/name``; made if it does not exist.
            include_source: As in :meth:`save`.
            licence: Identifier of a licence, for the card.
            data: What it was fitted on, for the card.
            scores: Metrics by name of the method, for the card.
            private: Whether a new repository is private.
            revision: Branch to upload to; default the main one.
            message: Of the commit.
            api: A client with another endpoint or token; default huggingface_hub's own.
        """
        from r2no.adaptation.hub import upload

        return upload(
            self,
            repo_id,
            include_source,
            {"licence": licence, "data": data, "scores": scores},
            private=private,
            revision=revision,
            message=message,
            api=api,
        )

    @classmethod
    def from_pretrained(
        cls,
        name: PathLike,
        *,
        source: Operator | None = None,
        trust_source: bool = False,
        revision: str | None = None,
        device: str | torch.device = "auto",
        **options: Any,
    ) -> "AdaptedModel":
        """Load an artifact from a folder, or from a hub by ``owner/name``.

        Args:
            name: The folder if there is one, else the name on the hub.
            source: As in :func:`r2no.load`.
            trust_source: As in :func:`r2no.load`; consent is never taken from a hub.
            revision: Branch, tag or commit on the hub.
            device: As in :func:`r2no.load`.
            options: Of ``huggingface_hub.snapshot_download``: ``endpoint``, ``cache_dir``, ...

        Raises:
            ConfigError: if there is neither such a folder nor such a repository.
        """
        from r2no.adaptation.artifact import load
        from r2no.adaptation.hub import fetched

        folder = fetched(name, revision, **options)
        return load(folder, source, trust_source=trust_source, device=device)


def versions() -> dict[str, str]:
    """Versions that the numbers may depend on."""
    from r2no import __version__

    return {"r2no": __version__, "torch": torch.__version__, "python": platform.python_version()}
