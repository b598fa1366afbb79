"""SpectralEnsemble: fit one weight vector per Fourier cell, predict; a thin estimator (M5-M8)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from r2no import checks, devices
from r2no._types import Field, Number, PathLike
from r2no.ensemble.accumulate import GramAccumulator
from r2no.ensemble.columns import Columns
from r2no.ensemble.compose import Composition
from r2no.ensemble.fitted import FittedEnsemble
from r2no.ensemble.gram import FitBatch, GramSums, check_batch
from r2no.ensemble.holdout import Fold
from r2no.ensemble.nested import NestedFit
from r2no.ensemble.plan import FitPlan
from r2no.ensemble.ridge import RIDGE_GRID
from r2no.errors import EmptySplitError, NotFittedError, ShapeError
from r2no.spectral import FourierCells


class SpectralEnsemble:
    """Compose a field, cell by cell in the Fourier domain, from a source and its repairs.

    In each cell b the weights minimise Σ ‖y‖^-p ‖P_b(y - h_0) - Σ_j w_{b,j} P_b c_j‖² plus a ridge
    (M7). Zero weights give the source, so every cell may retain it.

    Arguments are kept as given and checked in :meth:`fit`; everything that is learned is in
    ``fitted_`` and, under names that end in an underscore, in the attributes below.

    Args:
        cells: The partition.
        ridge: A penalty λ; "auto" to choose one from ``ridge_grid`` on held-out blocks (the
            published way); or "nested" to shrink every cell towards a coarser parent, with
            penalties, refinements and verdict decided on held-out blocks.
        measured: Channels that the target really holds; the others stay those of the source.
            Default: all.
        weight_exponent: p of the window weight ‖y‖^-p; 0, 1 (default) or 2.
        base_column: Whether cells may also shrink the source (column -h_0).
        depths: Retained depths S; default all.
        ridge_grid: Candidates for "auto".
        lead_groups: Groups of lead time with weights of their own; 1 shares them over the horizon.
        centred: Whether a constant that is added to a channel changes nothing: the base column then
            leaves the mean of h_0 over space alone. Default: yes where penalties are chosen
            ("auto", "nested"); a given number makes the published fit.
        weigh_by: What p refers to: the "norm" of y (published), or that of its "deviation" from
            the mean of window and channel, which is the default of a centred fit.
        recordings: Number k of recordings the windows come from, if the model is to be used on
            others. Time blocks of fewer than four do not show what carries over to others, so a
            nested fit then keeps k/(k + v) of the weights.
        units: Recording of each group of windows: the verdict's interval is over recordings where
            there are several, and says so where there is one.
        variation: How much recordings differ, v: of the weights k/(k + v) is kept (``recordings``).
        spread: Standard deviation over recordings of the share of the source's squared error which
            is removed, as seen elsewhere; widens the verdict's interval below four recordings.

    Attributes:
        fitted_: The :class:`FittedEnsemble`, after :meth:`fit`.
        weights_: (cell, channel, column); with several groups of lead time the channel axis runs
            over channels, then groups.
        ridge_: The penalty used (``None`` for a nested fit, which has one per level).
        nested_: What a nested fit decided.
        ridge_scores_: Held-out error of each candidate, when chosen.
        columns_: Number, order and meaning of the columns.
        sums_: The Gram sums, from which everything above follows.
    """

    def __init__(
        self,
        cells: FourierCells,
        ridge: Number | Literal["auto", "nested"] = "auto",
        measured: Sequence[int] | None = None,
        *,
        weight_exponent: Number = 1,
        base_column: bool = True,
        depths: Sequence[int] | None = None,
        ridge_grid: Sequence[Number] = RIDGE_GRID,
        lead_groups: int = 1,
        centred: bool | None = None,
        weigh_by: Literal["norm", "deviation"] | None = None,
        recordings: int | None = None,
        units: Sequence[int] = (),
        variation: Number = 1.0,
        spread: Number = 0.0,
    ) -> None:
        self.cells = cells
        self.ridge = ridge
        self.measured = measured
        self.weight_exponent = weight_exponent
        self.base_column = base_column
        self.depths = depths
        self.ridge_grid = ridge_grid
        self.lead_groups = lead_groups
        self.centred = centred
        self.weigh_by = weigh_by
        self.recordings = recordings
        self.units = units
        self.variation = variation
        self.spread = spread
        self._fitted: FittedEnsemble | None = None

    @classmethod
    def of(cls, fitted: FittedEnsemble) -> "SpectralEnsemble":
        """The estimator of something fitted elsewhere."""
        plan = {**fitted.plan.json(), "measured": fitted.measured}
        ensemble = cls(fitted.cells, plan.pop("ridge"), plan.pop("measured"), **plan)
        ensemble._fitted = fitted
        return ensemble

    def get_params(self) -> dict[str, Any]:
        """The constructor's arguments; ``SpectralEnsemble(**params)`` is an unfitted copy."""
        return {name: getattr(self, name) for name in signature(SpectralEnsemble).parameters}

    def __repr__(self) -> str:
        """Cells and ridge, and once fitted what came out."""
        state = "not fitted" if self._fitted is None else repr(self._fitted)
        return f"SpectralEnsemble({self.cells!r}, ridge={self.ridge!r}; {state})"

    # -- fitting ------------------------------------------------------------------------------

    @torch.no_grad()
    def fit(
        self,
        batches: Iterable[FitBatch | tuple[Tensor, Tensor, Tensor]],
        *,
        folds: Sequence[Fold] = (),
    ) -> "SpectralEnsemble":
        """Fit the weights in one pass over ``batches``; memory does not grow with their number.

        Args:
            batches: (source, iterates, target) or :class:`FitBatch`; iterates are
                (member, depth 1..L, batch, time, *space, channel), all in physical units.
            folds: Pairs (groups to fit on, groups to score on) for ``ridge="auto"``, over the
                ``group`` numbers of the batches; see ``r2no.ensemble.holdout``. Without them the
                windows are taken in order as one recording, and the first part of it is held
                against the last, with a gap between.
        """
        plan = self._plan()
        if isinstance(batches, (str, bytes)) or not isinstance(batches, Iterable):
            raise ShapeError(
                "`batches` must give (source, iterates, target) or `FitBatch` one by one, but is a "
                f"`{type(batches).__name__}`."
            )
        sums: GramAccumulator | None = None
        for item in batches:
            batch = item if isinstance(item, FitBatch) else FitBatch.of(item)
            check_batch(batch, self.cells, plan.measured)
            if self.measured is None:
                plan = replace(plan, measured=tuple(range(batch.target.shape[-1])))
            batch = batch.to(devices.of_sums(batch.source.device))
            columns = plan.columns(*batch.iterates.shape[:2])
            if sums is None:
                sums = self._accumulator(plan, columns, batch, folds)
            if sums.columns != columns:
                raise ShapeError(
                    f"`iterates` must keep one number of members and depths, {sums.columns}, but "
                    f"a later batch implies {columns}."
                )
            spectra = sums.begin(batch.source, batch.target, batch.mask)
            for member in range(columns.members):
                for depth in columns.depths:
                    spectra.add(member, depth, batch.iterates[member, depth - 1])
            sums.add(batch.group)
        if sums is None:
            raise EmptySplitError(
                "`batches` held no windows, so there is nothing to fit. Give at least one."
            )
        total, plan_folds = (
            (sums.collected()[plan.weight_exponent], tuple(folds))
            if sums.groups
            else sums.streamed(plan.weight_exponent)
        )
        self._fitted = FittedEnsemble.solve(self.cells, plan, sums.columns, total, plan_folds)
        return self

    def _plan(self) -> FitPlan:
        """The arguments, checked, with what was left open but the channels, which data show."""
        checks.instance("cells", self.cells, FourierCells)
        measured = (0,) if self.measured is None else self.measured
        centred = isinstance(self.ridge, str) if self.centred is None else self.centred
        weigh_by = self.weigh_by or ("deviation" if centred else "norm")
        known = {"measured": measured, "centred": centred, "weigh_by": weigh_by}
        return FitPlan.of({**self.get_params(), **known})

    def _accumulator(
        self, plan: FitPlan, columns: Columns, first: FitBatch, folds: Sequence[Fold]
    ) -> GramAccumulator:
        """By block if batches number them, as the first one shows, else as a stream."""
        numbered = first.group is not None or folds
        groups = 1 + max((max(fit + score) for fit, score in folds), default=0)
        return GramAccumulator(
            columns,
            self.cells,
            measured=plan.measured,
            exponents=(plan.weight_exponent,),
            groups=groups if numbered else 0,
            lead_groups=plan.lead_groups,
            weigh_by=plan.weigh_by,
        )

    def merge(self, other: "SpectralEnsemble") -> "SpectralEnsemble":
        """Pool with sums fitted elsewhere on the same source and modules, and solve again.

        Groups stay apart, so that held-out choices are made on the blocks of both.
        """
        other = checks.instance("other", other, SpectralEnsemble)
        self._fitted = self.fitted_.merge(other.fitted_)
        return self

    def derive(self, **changes: Any) -> "SpectralEnsemble":
        """With fewer columns, coarser cells or another ridge: see :meth:`FittedEnsemble.derive`."""
        return SpectralEnsemble.of(self.fitted_.derive(**changes))

    # -- what was learned ---------------------------------------------------------------------

    @property
    def fitted_(self) -> FittedEnsemble:
        """What :meth:`fit` decided."""
        if self._fitted is None:
            raise NotFittedError("This ensemble is not fitted yet. Call `fit` first.")
        return self._fitted

    @property
    def weights_(self) -> Float[Tensor, "cell channel column"]:
        """The fitted weights, (cell, channel, column)."""
        return self.fitted_.weights

    @property
    def ridge_(self) -> float | None:
        """The penalty that the weights were solved with."""
        return self.fitted_.ridge

    @property
    def ridge_scores_(self) -> dict[float, float]:
        """Held-out error of each candidate."""
        return self.fitted_.ridge_scores

    @property
    def nested_(self) -> NestedFit | None:
        """What a nested fit decided."""
        return self.fitted_.nested

    @property
    def columns_(self) -> Columns:
        """Number, order and meaning of the columns."""
        return self.fitted_.columns

    @property
    def sums_(self) -> GramSums | None:
        """The Gram sums of the fit, if they were kept."""
        return self.fitted_.sums

    @property
    def folds_(self) -> tuple[Fold, ...]:
        """Which groups judged which."""
        return self.fitted_.folds

    @property
    def held_out_score(self) -> float:
        """Held-out error of the chosen penalty, for comparing partitions fitted on one split."""
        return self.fitted_.held_out_score

    # -- prediction ---------------------------------------------------------------------------

    def compose(self, source: Field) -> Composition:
        """Start a streamed prediction (M8): ``add`` every iterate, then take ``result()``."""
        return self.fitted_.compose(source)

    def predict(
        self,
        source: Field,
        iterates: Float[Tensor, "member depth batch *field"],
    ) -> Field:
        """R(X) of (M8) from the source and its iterates (member, depth 1..L, batch, ...)."""
        return self.fitted_.predict(source, iterates)

    # -- files --------------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write the fitted ensemble, sums included, as one safetensors file, atomically."""
        self.fitted_.save(path)

    @classmethod
    def load(cls, path: PathLike) -> "SpectralEnsemble":
        """Read an ensemble written by :meth:`save`."""
        return cls.of(FittedEnsemble.load(path))
