"""FittedEnsemble: what a fit decided, frozen; in and out of a file (M7).

Everything follows from the Gram sums and the plan: another penalty, fewer columns, coarser cells or
sums of another site give another FittedEnsemble without a new pass over the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from r2no import checks, storage
from r2no._types import Field, Number, PathLike
from r2no.ensemble.columns import Columns
from r2no.ensemble.compose import CellWeights, Composition, Readouts
from r2no.ensemble.gram import FitBatch, GramSums, check_batch
from r2no.ensemble.holdout import Fold, join_folds
from r2no.ensemble.nested import Carried, NestedFit, judging_folds, solve_nested
from r2no.ensemble.plan import FitPlan
from r2no.ensemble.ridge import ridge_path, ridge_scores
from r2no.ensemble.verdict import Verdict
from r2no.errors import ConfigError, EmptySplitError, FileDamagedError, NotFittedError, ShapeError
from r2no.spectral import FourierCells

#: Written into every file.
FORMAT = "r2no.ensemble/1"


@dataclass(frozen=True, eq=False)
class FittedEnsemble:
    """Weights per Fourier cell, and all they follow from.

    Attributes:
        cells: The partition.
        plan: What was asked for.
        columns: Number, order and meaning of the columns.
        weights: (cell, channel, column); with several groups of lead time the channel axis runs
            over channels, then groups.
        sums: The Gram sums, from which everything else follows; ``None`` for given weights or
            where a file left them out.
        scoring_sums: Sums of the same windows by which held-out blocks were scored, if others.
        folds: Pairs (groups to fit on, groups to score on).
        ridge: The penalty used (``None`` for a nested fit, which has one per level).
        ridge_scores: Held-out error of each candidate, when chosen.
        nested: What a nested fit decided.
    """

    cells: FourierCells
    plan: FitPlan
    columns: Columns
    weights: Float[Tensor, "cell channel column"]
    sums: GramSums | None = None
    scoring_sums: GramSums | None = None
    folds: tuple[Fold, ...] = ()
    ridge: float | None = None
    ridge_scores: dict[float, float] = field(default_factory=dict)
    nested: NestedFit | None = None

    # -- making -------------------------------------------------------------------------------

    @classmethod
    def solve(
        cls,
        cells: FourierCells,
        plan: FitPlan,
        columns: Columns,
        sums: GramSums,
        folds: tuple[Fold, ...] = (),
        *,
        scoring_sums: GramSums | None = None,
    ) -> "FittedEnsemble":
        """Choose penalties on the folds (unless one is given) and solve (M7) on all groups.

        ``scoring_sums`` are of the same windows under another weighting, by which held-out blocks
        are scored; default ``sums``.
        """
        judged = None if scoring_sums is sums else scoring_sums
        whole = sums.total()
        if float(whole.windows[0]) == 0:
            raise EmptySplitError(
                "`batches` held no windows, so there is nothing to fit. Give at least one."
            )
        given = (cells, plan, columns)
        if plan.ridge == "nested":
            nested = solve_nested(
                sums,
                folds,
                cells,
                judged=judged,
                leads=plan.lead_groups,
                recordings=plan.recordings,
                columns=columns,
                units=plan.units,
                carried=Carried(plan.variation, plan.spread),
            )
            deployed = nested.deployed(columns.labels)
            return cls(*given, deployed, sums, judged, folds, nested=nested)
        scores: dict[float, float] = {}
        if plan.ridge == "auto":
            scores = ridge_scores(sums, judged or sums, folds, plan.ridge_grid)
            ridge = min(plan.ridge_grid, key=lambda candidate: (scores[candidate], -candidate))
        else:
            ridge = float(plan.ridge)
        weights = ridge_path(whole.moments[0], [ridge])[0]
        return cls(*given, weights, sums, judged, folds, ridge, scores)

    @classmethod
    def from_weights(
        cls,
        weights: Float[Tensor, " column"],
        columns: Columns,
        cells: FourierCells,
        *,
        measured: Sequence[int],
    ) -> "FittedEnsemble":
        """A readout with given weights, the same in every cell: one depth, a mean, the source."""
        plan = FitPlan(
            0.0,
            tuple(measured),
            base_column=columns.base,
            depths=columns.depths,
            centred=columns.centred,
        )
        channels = cells.weight_channels(len(plan.measured))
        everywhere = weights.double().expand(cells.num_cells, channels, -1)
        return cls(cells, plan, columns, everywhere, ridge=0.0)

    def merge(self, other: "FittedEnsemble") -> "FittedEnsemble":
        """Pool with sums fitted elsewhere on the same source and modules, and solve again.

        Groups stay apart, so that held-out choices are made on the blocks of both.
        """
        mine, theirs = self.needed_sums(), other.needed_sums()
        if self.columns != other.columns or not self.plan.agrees(other.plan):
            raise ShapeError(
                "`other` must have the same cells, columns, measured channels and weighting, but "
                f"got {other.plan} against {self.plan}. Fit both alike."
            )
        if not self.cells.agrees(other.cells):
            raise ShapeError("`other` uses another partition. Fit both with the same cells.")
        if (self.scoring_sums is None) != (other.scoring_sums is None):
            raise ShapeError(
                "`other` must judge held-out blocks by the same weighting. Fit both with one "
                "`target`."
            )
        judged = None
        if self.scoring_sums is not None and other.scoring_sums is not None:
            judged = self.scoring_sums.concat(other.scoring_sums)
        return FittedEnsemble.solve(
            self.cells,
            self.plan.joined(other.plan),
            self.columns,
            mine.concat(theirs),
            join_folds(self.folds, other.folds, offset=len(mine.windows)),
            scoring_sums=judged,
        )

    def derive(
        self,
        *,
        members: int | None = None,
        depth: int | None = None,
        cells: FourierCells | None = None,
        ridge: Number | Literal["auto", "nested"] | None = None,
        depths: Sequence[int] | None = None,
        base_column: bool | None = None,
        without: Sequence[str] = (),
        lead_groups: Literal[1] | None = None,
    ) -> "FittedEnsemble":
        """The ensemble of fewer columns, a coarser partition or another ridge, from these sums.

        No new pass over the data: sub-blocks and sums of the Gram matrices are Gram matrices.

        Args:
            members: Keep the first so many members.
            depth: Keep depths up to this one.
            cells: A partition each of whose cells is a union of cells of this one.
            ridge: Another way to penalise.
            depths: Keep these depths only.
            base_column: False drops the base column.
            without: Groups of columns to drop.
            lead_groups: 1 shares the weights over lead time.
        """
        sums = self.needed_sums()
        fewer = self.columns.restricted(
            members, depth, depths=depths, base=base_column, without=without
        )
        leads = self.plan.lead_groups
        plan = replace(self.plan, base_column=fewer.base)
        if ridge is not None:
            plan = replace(plan, ridge=ridge if isinstance(ridge, str) else float(ridge))
        if depth is not None or depths is not None:
            plan = replace(plan, depths=fewer.depths)
        if lead_groups is not None:
            plan = replace(plan, lead_groups=lead_groups)
        coarse = self.cells if cells is None else cells
        parents = None if cells is None else self.cells.parents(coarse)
        if parents is not None:
            coarse = replace(coarse, index=parents[self.cells.index])

        def reduced(sums: GramSums) -> GramSums:
            sums = sums.with_columns(self.columns.positions(fewer))
            if plan.lead_groups < leads:
                sums = sums.shared_over_leads(leads)
            if parents is not None:
                sums = sums.coarsen(parents, coarse.num_cells)
                if coarse.shared_channels and not self.cells.shared_channels:
                    sums = sums.shared_over_channels(plan.lead_groups)
            return sums

        judged = None if self.scoring_sums is None else reduced(self.scoring_sums)
        return FittedEnsemble.solve(
            coarse, plan, fewer, reduced(sums), self.folds, scoring_sums=judged
        )

    def without_sums(self) -> "FittedEnsemble":
        """It predicts the same in less memory, but can no longer be merged or derived from."""
        return replace(self, sums=None, scoring_sums=None)

    # -- reading ------------------------------------------------------------------------------

    def needed_sums(self) -> GramSums:
        """The Gram sums, or an error that says that there are none."""
        if self.sums is None:
            raise NotFittedError(
                "This ensemble has no Gram sums: fit it instead of giving weights."
            )
        return self.sums

    @property
    def measured(self) -> tuple[int, ...]:
        """Channels that the target really holds; the others stay those of the source."""
        return self.plan.measured

    @property
    def verdict(self) -> Verdict | None:
        """Deploy or keep the source, with the evidence; ``None`` for a published fit."""
        return None if self.nested is None else self.nested.verdict

    @property
    def held_out_score(self) -> float:
        """Held-out error of the chosen penalty, for comparing partitions fitted on one split."""
        if self.nested is not None:
            return float((self.nested.before - self.nested.gains).sum())
        if not self.ridge_scores or self.ridge is None:
            raise NotFittedError("An ensemble with a given penalty has no held-out score.")
        return self.ridge_scores[self.ridge]

    @property
    def judging_folds(self) -> tuple[Fold, ...]:
        """Those that verdict, planning and bands rest on: two or three recordings as a whole."""
        if self.nested is None:
            return self.folds
        return judging_folds(self.folds, self.plan.units, self.plan.recordings)

    def held_out_weights(self) -> list[Float[Tensor, "cell channel column"]]:
        """By judging fold, weights of the same kind that rest on its groups to fit on alone (M7).

        Of a nested fit, which knows them until it is stored, and of one that keeps a forecast as it
        is, so that nothing is fitted; of a plain ridge, those of its penalty.
        """
        if self.nested is not None and not self.nested.verdict.deploy:
            return [self.weights] * len(self.judging_folds)
        if self.nested is None:
            sums, ridge = self.needed_sums(), float(self.ridge or 0.0)
            return [ridge_path(sums.total(fit).moments[0], [ridge])[0] for fit, _ in self.folds]
        if len(self.nested.apart) != len(self.judging_folds):
            raise NotFittedError(
                "This ensemble was read from a file, which holds no weights by fold. Fit it."
            )
        return list(self.nested.apart)

    def settled(self) -> "FittedEnsemble":
        """Without the weights by fold, which only a calibration needs."""
        return self if self.nested is None else replace(self, nested=replace(self.nested, apart=()))

    @cached_property
    def spread(self) -> CellWeights:
        """The weights over the half-plane, so that prediction only multiplies."""
        return self.spread_of(self.weights)

    def spread_of(self, weights: Float[Tensor, "cell channel column"]) -> CellWeights:
        """Other weights on these cells and columns, over the half-plane."""
        return CellWeights(
            weights,
            self.columns,
            self.cells,
            measured=self.measured,
            lead_groups=self.plan.lead_groups,
        )

    def compose(self, source: Field) -> Composition:
        """Start a streamed prediction (M8): ``add`` every iterate, then take ``result()``."""
        return Readouts({"": self.spread}).compose(source)

    @torch.no_grad()
    def predict(
        self,
        source: Field,
        iterates: Float[Tensor, "member depth batch *field"],
    ) -> Field:
        """R(X) of (M8) from the source and its iterates (member, depth 1..L, batch, ...).

        Non-finite values are passed on; callers raise or report them.
        """
        self.columns.check_iterates(checks.tensor("iterates", iterates))
        check_batch(FitBatch(source, iterates, source), self.cells, self.measured)
        composition = self.compose(source)
        for member in range(self.columns.members):
            for depth in self.columns.depths:
                composition.add(member, depth, iterates[member, depth - 1])
        return composition.result()

    # -- files --------------------------------------------------------------------------------

    def state(self, *, sums: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able settings from which :meth:`from_state` rebuilds the ensemble.

        Without ``sums`` the file is small and predicts the same, but can no longer be merged,
        derived from or refitted.
        """
        cell_tensors, cell_settings = self.cells.state()
        tensors = {"weights": self.weights, **{f"cells.{k}": v for k, v in cell_tensors.items()}}
        for name, part in (("sums", self.sums), ("judged", self.scoring_sums)):
            if sums and part is not None:
                packed = part.packed(self.cells.occupied)
                tensors |= {f"{name}.{k}": v for k, v in packed.items()}
        if self.nested is not None:
            tensors |= self.nested.tensors()
        settings = {
            "format": FORMAT,
            "cells": cell_settings,
            "columns": self.columns.json(),
            "ensemble": self.plan.json(),
            "ridge_": self.ridge,
            "nested_": None if self.nested is None else self.nested.decisions(),
            "ridge_scores_": [[k, v] for k, v in self.ridge_scores.items()],
            "folds_": [[list(fit), list(score)] for fit, score in self.folds],
        }
        return tensors, settings

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> "FittedEnsemble":
        """Inverse of :meth:`state`.

        Raises:
            FileDamagedError: if the parts do not fit each other.
        """
        try:
            return _unpack(tensors, settings)
        except FileDamagedError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise _unsound(f"{type(error).__name__}: {error}") from error

    def save(self, path: PathLike) -> None:
        """Write it, sums included, as one safetensors file, atomically."""
        storage.save_tensors(path, *self.state())

    @classmethod
    def load(cls, path: PathLike) -> "FittedEnsemble":
        """Read what :meth:`save` wrote."""
        tensors, settings = storage.load_tensors(path)
        if settings.get("format") != FORMAT:
            raise ConfigError(
                f"`{path}` holds {settings.get('format', 'something else')!r}, not an ensemble of "
                f"format {FORMAT!r}. Give a file written by `SpectralEnsemble.save`."
            )
        return cls.from_state(tensors, settings)

    def __repr__(self) -> str:
        """Columns, cells and what was decided, in a line."""
        chosen = f"ridge={self.ridge:g}" if self.ridge is not None else str(self.verdict)
        return f"FittedEnsemble({self.columns.number} columns on {self.cells}; {chosen})"


def _unpack(tensors: dict[str, Tensor], settings: dict[str, Any]) -> FittedEnsemble:
    """Build and check: weights before they are spread over the plane, which takes memory."""
    cells = FourierCells.from_state(
        {k[6:]: v for k, v in tensors.items() if k.startswith("cells.")}, settings["cells"]
    )
    plan = FitPlan.of(settings["ensemble"])
    columns = Columns.of(settings["columns"], centred=plan.centred)
    weights = tensors["weights"]
    channels = cells.weight_channels(len(plan.measured)) * plan.lead_groups
    if tuple(weights.shape) != (cells.num_cells, channels, columns.number):
        raise _unsound(f"`weights` has shape {tuple(weights.shape)}")
    if weights.dtype != torch.float64 or not bool(weights.isfinite().all()):
        raise _unsound("`weights` must be finite numbers in float64")
    folds = tuple((tuple(fit), tuple(score)) for fit, score in settings["folds_"])
    groups = {group for fold in folds for part in fold for group in part}
    sums, judged = (
        _unpacked_sums(name, tensors, cells, weights, groups) for name in ("sums", "judged")
    )
    nested = None
    if settings["nested_"] is not None:
        nested = NestedFit.from_decisions(settings["nested_"], tensors, leads=plan.lead_groups)
        errors = (nested.gains, nested.before, *nested.rivals.values())
        if nested.weights.shape != weights.shape or len({x.shape for x in errors}) > 1:
            raise _unsound("the nested fit has other shapes")
        if not all(bool(x.isfinite().all()) for x in errors):
            raise _unsound("held-out gains are not finite")
    scores = dict(settings["ridge_scores_"])
    ridge = settings["ridge_"]
    return FittedEnsemble(cells, plan, columns, weights, sums, judged, folds, ridge, scores, nested)


def _unpacked_sums(
    name: str,
    tensors: dict[str, Tensor],
    cells: FourierCells,
    weights: Tensor,
    groups: set[int],
) -> GramSums | None:
    """The sums under a name, if the file has them, of the shapes that cells and columns imply."""
    prefix = f"{name}."
    packed = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    if not packed:
        return None
    occupied = packed["occupied"]
    if occupied.shape != (cells.num_cells,) or occupied.dtype != torch.bool:
        raise _unsound(f"`{name}.occupied` is {occupied.dtype} of {tuple(occupied.shape)}")
    sums, size = GramSums.unpacked(packed), weights.shape[-1] + 1
    if tuple(sums.moments.shape[1:]) != (*weights.shape[:2], size, size):
        raise _unsound(f"`{name}` has shape {tuple(sums.moments.shape)}")
    if not groups <= set(range(len(sums.windows))) or not bool(sums.moments.isfinite().all()):
        raise _unsound(f"`{name}` is not finite, or a fold names a group it lacks")
    return sums


def _unsound(reason: str) -> FileDamagedError:
    return FileDamagedError(
        f"This is no sound ensemble: {reason}. Restore the file from a copy, or fit again."
    )
