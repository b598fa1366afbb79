"""SpectralEnsemble: fit one weight vector per Fourier cell, predict, merge, save (M5-M8)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from r2no import checks, storage
from r2no._types import Number, PathLike
from r2no.ensemble.batch import FitBatch, check_batch
from r2no.ensemble.blocks import Fold, StreamBlocks, join_folds
from r2no.ensemble.columns import Columns
from r2no.ensemble.compose import CellWeights, Composition
from r2no.ensemble.gram import ColumnSpectra, GramSums
from r2no.ensemble.nested import NestedFit, solve_nested
from r2no.ensemble.ridge import RIDGE_GRID, ridge_path, ridge_scores
from r2no.errors import ConfigError, EmptySplitError, NotFittedError, ShapeError
from r2no.spectral import FourierCells

#: Written into every file.
FORMAT = "r2no.ensemble/1"


class SpectralEnsemble:
    """Compose a field, cell by cell in the Fourier domain, from a source and its repairs.

    In each cell b the weights minimise Σ ‖y‖^-p ‖P_b(y - h_0) - Σ_j w_{b,j} P_b c_j‖² plus a ridge
    (M7). Zero weights give the source, so every cell may retain it.

    Args:
        cells: The partition.
        ridge: A penalty λ; "auto" to choose one from ``ridge_grid`` on held-out blocks (the
            published way); or "nested" to shrink every cell towards a coarser parent, with
            penalties, refinements and verdict decided on held-out blocks.
        measured: Channels that the target really holds; the others stay those of the source.
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
            nested fit then gives the source a share of 1/(k + 1).

    Attributes:
        weights_: (cell, channel, column), after :meth:`fit`; with several groups of lead time the
            channel axis runs over channels, then groups.
        ridge_: The penalty used (``None`` for a nested fit, which has one per level).
        nested_: What a nested fit decided.
        ridge_scores_: Held-out error of each candidate, when chosen.
        columns_: Number, order and meaning of the columns.
        sums_: The Gram sums, from which everything above follows.
        judged_: Sums of the same windows by which held-out blocks were scored, if others.
    """

    def __init__(
        self,
        cells: FourierCells,
        ridge: Number | Literal["auto", "nested"] = "auto",
        measured: Sequence[int] = (0,),
        *,
        weight_exponent: Number = 1,
        base_column: bool = True,
        depths: Sequence[int] | None = None,
        ridge_grid: Sequence[Number] = RIDGE_GRID,
        lead_groups: int = 1,
        centred: bool | None = None,
        weigh_by: Literal["norm", "deviation"] | None = None,
        recordings: int | None = None,
    ) -> None:
        self.cells = checks.instance("cells", cells, FourierCells)
        self.ridge = ridge if isinstance(ridge, str) else checks.real("ridge", ridge)
        self.measured = tuple(
            checks.whole("measured", channel, least=0)
            for channel in checks.listed("measured", measured)
        )
        self.weight_exponent = checks.real("weight_exponent", weight_exponent)
        self.base_column = base_column
        self.depths = None
        if depths is not None:
            self.depths = tuple(
                checks.whole("depths", one) for one in checks.listed("depths", depths)
            )
        self.ridge_grid = tuple(float(value) for value in ridge_grid)
        self.lead_groups = checks.whole("lead_groups", lead_groups)
        self.centred = isinstance(ridge, str) if centred is None else centred
        self.weigh_by = weigh_by or ("deviation" if self.centred else "norm")
        self.recordings = recordings
        self.weights_: Tensor | None = None
        self.ridge_: float | None = None
        self.nested_: NestedFit | None = None
        self.ridge_scores_: dict[float, float] = {}
        self.columns_: Columns | None = None
        self.sums_: GramSums | None = None
        self.judged_: GramSums | None = None
        self.folds_: tuple[Fold, ...] = ()
        self._spread: CellWeights | None = None

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
                ``group`` numbers of the batches; see ``r2no.data.splits``. Without them the windows
                are taken in order as one recording, and the first part of it is held against the
                last, with a gap between.
        """
        self._validate()
        if isinstance(batches, (str, bytes)) or not isinstance(batches, Iterable):
            raise ShapeError(
                "`batches` must give (source, iterates, target) or `FitBatch` one by one, but is a "
                f"`{type(batches).__name__}`."
            )
        sums, self.folds_ = self._accumulate(batches, tuple(folds))
        return self.solve(sums)

    def begin(
        self,
        source: Float[Tensor, "batch time *space_channel"],
        target: Float[Tensor, "batch time *space_channel"],
        mask: Tensor | None = None,
        *,
        reuse: ColumnSpectra | None = None,
    ) -> ColumnSpectra:
        """Start a batch whose iterates will be added one by one (see :class:`ColumnSpectra`).

        ``reuse`` is an earlier batch that has been summed up; its memory is taken over.
        """
        if self.columns_ is None:
            raise NotFittedError("Call `set_columns(members, steps)` before streaming batches.")
        check_batch(FitBatch(source, source[None, None], target, mask), self.cells, self.measured)
        return ColumnSpectra(
            source,
            target,
            self.columns_,
            self.cells,
            measured=self.measured,
            mask=mask,
            lead_groups=self.lead_groups,
            by_deviation=self.weigh_by == "deviation",
            reuse=reuse,
        )

    def empty_sums(self, groups: int) -> GramSums:
        """Sums of no windows, for :meth:`ColumnSpectra.add_to`; columns must be set."""
        assert self.columns_ is not None
        return GramSums.zeros(
            self.columns_, self.cells, len(self.measured), groups, self.lead_groups
        )

    def set_columns(self, members: int, steps: int) -> Columns:
        """Fix the columns for ``members`` trajectories of ``steps`` iterates."""
        depths = self.depths or tuple(range(1, steps + 1))
        columns = Columns(members, depths, self.base_column, self.centred)
        if columns.depths[-1] > steps:
            raise ConfigError(
                f"`depths` must not exceed the {steps} iterates at hand, but got {columns.depths}."
            )
        if self.columns_ is not None and self.columns_ != columns:
            raise ShapeError(
                f"`iterates` must keep one number of members and depths, {self.columns_}, but a "
                f"later batch implies {columns}."
            )
        self.columns_ = columns
        return columns

    def _accumulate(
        self, batches: Iterable[Any], folds: tuple[Fold, ...]
    ) -> tuple[GramSums, tuple[Fold, ...]]:
        num_groups = 1 + max((max(fit + score) for fit, score in folds), default=0)
        self.columns_, blocks, total = None, StreamBlocks(), None
        spectra: ColumnSpectra | None = None
        grouped: bool | None = None  # whether batches number their groups
        for item in batches:
            batch = item if isinstance(item, FitBatch) else FitBatch.of(item)
            check_batch(batch, self.cells, self.measured)
            columns = self.set_columns(batch.iterates.shape[0], batch.iterates.shape[1])
            spectra = self.begin(batch.source, batch.target, batch.mask, reuse=spectra)
            for member in range(columns.members):
                for depth in columns.depths:
                    spectra.add(member, depth, batch.iterates[member, depth - 1])
            if (batch.group is None and folds) or grouped not in (None, batch.group is not None):
                raise ConfigError(
                    "`group` must be given with every batch or with none, and `folds` only with "
                    "groups, but a batch differs. Number the block of each window."
                )
            grouped = batch.group is not None
            if batch.group is None:
                for block, group in blocks.assign(batch.source.shape[0]):
                    blocks.add(spectra.sums(group, 1, self.weight_exponent), block)
            else:
                if total is None:
                    total = self.empty_sums(num_groups)
                total = total.with_groups(int(batch.group.max()) + 1)
                spectra.add_to(total, batch.group, self.weight_exponent)
        if total is not None:
            return total, folds
        return blocks.finish()

    def solve(self, sums: GramSums, *, judged: GramSums | None = None) -> "SpectralEnsemble":
        """Choose penalties on the folds (unless one is given) and solve (M7) on all groups.

        ``judged`` holds the sums of the same windows under another weighting, by which held-out
        blocks are scored; default ``sums``.
        """
        self.sums_, self.judged_ = sums, None if judged is sums else judged
        whole = sums.total()
        if float(whole.windows[0]) == 0:
            raise EmptySplitError(
                "`batches` held no windows, so there is nothing to fit. Give at least one."
            )
        if self.ridge == "nested":
            self.nested_ = solve_nested(
                sums, self.folds_, self.cells, judged=judged, recordings=self.recordings
            )
            self._set_weights(self.nested_.deployed)
            return self
        if self.ridge == "auto":
            self.ridge_scores_ = ridge_scores(sums, judged or sums, self.folds_, self.ridge_grid)
            scores = self.ridge_scores_
            self.ridge_ = min(self.ridge_grid, key=lambda ridge: (scores[ridge], -ridge))
        else:
            self.ridge_ = float(self.ridge)
        self._set_weights(ridge_path(whole.moments[0], [self.ridge_])[0])
        return self

    def copy(self, *, weight_exponent: Number) -> "SpectralEnsemble":
        """An unsolved ensemble with these settings, columns and folds, but another weighting."""
        other = SpectralEnsemble(
            self.cells, **{**self._settings(), "weight_exponent": float(weight_exponent)}
        )
        other.columns_, other.folds_ = self.columns_, self.folds_
        return other

    def merge(self, other: "SpectralEnsemble") -> "SpectralEnsemble":
        """Pool with sums fitted elsewhere on the same source and modules, and solve again.

        Groups stay apart, so that held-out choices are made on the blocks of both.
        """
        mine, theirs = self._sums(), checks.instance("other", other, SpectralEnsemble)._sums()
        count = self.recordings and other.recordings and self.recordings + other.recordings
        alike = {**other._settings(), "recordings": self.recordings}
        if self.columns_ != other.columns_ or self._settings() != alike:
            raise ShapeError(
                "`other` must have the same cells, columns, measured channels and weighting, but "
                f"got {other._settings()} against {self._settings()}. Fit both alike."
            )
        if not self.cells.agrees(other.cells):
            raise ShapeError("`other` uses another partition. Fit both with the same cells.")
        if (self.judged_ is None) != (other.judged_ is None):
            raise ShapeError(
                "`other` must judge held-out blocks by the same weighting. Fit both with one "
                "`target`."
            )
        self.folds_ = join_folds(self.folds_, other.folds_, offset=len(mine.windows))
        self.recordings = count
        judged = self.judged_ and other.judged_ and self.judged_.beside(other.judged_)
        return self.solve(mine.beside(theirs), judged=judged)

    def derive(
        self,
        *,
        members: int | None = None,
        depth: int | None = None,
        cells: FourierCells | None = None,
        ridge: Number | Literal["auto", "nested"] | None = None,
        depths: Sequence[int] | None = None,
        base_column: bool | None = None,
    ) -> "SpectralEnsemble":
        """The ensemble of fewer columns, a coarser partition or another ridge, from these sums.

        No new pass over the data: sub-blocks and sums of the Gram matrices are Gram matrices.

        Args:
            members: Keep the first so many members.
            depth: Keep depths up to this one.
            cells: A partition each of whose cells is a union of cells of this one.
            ridge: Another way to penalise.
            depths: Keep these depths only.
            base_column: False drops the base column.
        """
        columns, sums = self._columns(), self._sums()
        changes: dict[str, Any] = {} if ridge is None else {"ridge": ridge}
        fewer = columns.restricted(members, depth, depths=depths, base=base_column)
        changes["base_column"] = fewer.base
        if depth is not None or depths is not None:
            changes["depths"] = fewer.depths
        parents = None if cells is None else self.cells.parents(cells)
        if cells is not None and parents is not None:
            cells = replace(cells, index=parents[self.cells.index])
        smaller = SpectralEnsemble(cells or self.cells, **{**self._settings(), **changes})
        smaller.folds_, smaller.columns_ = self.folds_, fewer

        def reduced(sums: GramSums) -> GramSums:
            sums = sums.with_columns(columns.positions(fewer))
            if cells is not None and parents is not None:
                sums = sums.with_index(parents, cells.num_cells)
                if cells.shared_channels and not self.cells.shared_channels:
                    sums = sums.shared_over_channels(self.lead_groups)
            return sums

        judged = None if self.judged_ is None else reduced(self.judged_)
        return smaller.solve(reduced(sums), judged=judged)

    @property
    def held_out_score(self) -> float:
        """Held-out error of the chosen penalty, for comparing partitions fitted on one split."""
        if self.nested_ is not None:
            return float((self.nested_.before - self.nested_.gains).sum())
        if not self.ridge_scores_ or self.ridge_ is None:
            raise NotFittedError("An ensemble with a given penalty has no held-out score.")
        return self.ridge_scores_[self.ridge_]

    # -- prediction ---------------------------------------------------------------------------

    def compose(self, source: Float[Tensor, "batch time *space_channel"]) -> Composition:
        """Start a streamed prediction (M8): ``add`` every iterate, then take ``result()``."""
        self._columns()
        assert self._spread is not None
        return Composition(self._spread, source)

    @torch.no_grad()
    def predict(
        self,
        source: Float[Tensor, "batch time *space_channel"],
        iterates: Float[Tensor, "member depth batch *field"],
    ) -> Float[Tensor, "batch time *space_channel"]:
        """R(X) of (M8) from the source and its iterates (member, depth 1..L, batch, ...).

        Non-finite values are passed on; callers raise or report them.
        """
        columns = self._columns()
        columns.check_iterates(checks.tensor("iterates", iterates))
        check_batch(FitBatch(source, iterates, source), self.cells, self.measured)
        composition = self.compose(source)
        for member in range(columns.members):
            for depth in columns.depths:
                composition.add(member, depth, iterates[member, depth - 1])
        return composition.result()

    @classmethod
    def from_weights(
        cls,
        weights: Float[Tensor, " column"],
        columns: Columns,
        cells: FourierCells,
        *,
        measured: Sequence[int],
    ) -> "SpectralEnsemble":
        """A readout with given weights, the same in every cell: one depth, a mean, the source."""
        ensemble = cls(
            cells,
            0.0,
            measured,
            base_column=columns.base,
            depths=columns.depths,
            centred=columns.centred,
        )
        ensemble.columns_, ensemble.ridge_ = columns, 0.0
        channels = cells.weight_channels(len(ensemble.measured))
        ensemble._set_weights(weights.double().expand(cells.num_cells, channels, -1))
        return ensemble

    # -- files --------------------------------------------------------------------------------

    def state(self, *, sums: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able settings from which :meth:`from_state` rebuilds the ensemble.

        Without ``sums`` the file is small and predicts the same, but can no longer be merged,
        derived from or refitted.
        """
        from r2no.ensemble.state import pack

        self._columns()
        return pack(self, sums=sums)

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> "SpectralEnsemble":
        """Inverse of :meth:`state`."""
        from r2no.ensemble.state import unpack

        return unpack(tensors, settings)

    def save(self, path: PathLike) -> None:
        """Write the fitted ensemble, sums included, as one safetensors file, atomically."""
        storage.save_tensors(path, *self.state())

    @classmethod
    def load(cls, path: PathLike) -> "SpectralEnsemble":
        """Read an ensemble written by :meth:`save`."""
        tensors, settings = storage.load_tensors(path)
        if settings.get("format") != FORMAT:
            raise ConfigError(
                f"`{path}` holds {settings.get('format', 'something else')!r}, not an ensemble of "
                f"format {FORMAT!r}. Give a file written by `SpectralEnsemble.save`."
            )
        return cls.from_state(tensors, settings)

    # -- checks -------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        return {
            "ridge": self.ridge,
            "measured": list(self.measured),
            "weight_exponent": self.weight_exponent,
            "base_column": self.base_column,
            "depths": None if self.depths is None else list(self.depths),
            "ridge_grid": list(self.ridge_grid),
            "lead_groups": self.lead_groups,
            "centred": self.centred,
            "weigh_by": self.weigh_by,
            "recordings": self.recordings,
        }

    def _set_weights(self, weights: Tensor) -> None:
        assert self.columns_ is not None
        self.weights_ = weights
        self._spread = CellWeights(
            weights,
            self.columns_,
            self.cells,
            measured=self.measured,
            lead_groups=self.lead_groups,
        )

    def _columns(self) -> Columns:
        if self.weights_ is None or self.columns_ is None:
            raise NotFittedError("This ensemble is not fitted yet. Call `fit` first.")
        return self.columns_

    def _sums(self) -> GramSums:
        if self.sums_ is None:
            raise NotFittedError(
                "This ensemble has no Gram sums: fit it instead of giving weights."
            )
        return self.sums_

    def _validate(self) -> None:
        named = self.ridge in ("auto", "nested")
        if not named and (isinstance(self.ridge, str) or not self.ridge >= 0):
            raise ConfigError(
                f"`ridge` must be 'auto', 'nested' or a number >= 0, but got {self.ridge!r}."
            )
        if self.recordings is not None and self.recordings < 1:
            raise ConfigError(f"`recordings` must be at least 1 or None, got {self.recordings}.")
        if self.weight_exponent < 0:
            raise ConfigError(f"`weight_exponent` must be >= 0, got {self.weight_exponent}.")
