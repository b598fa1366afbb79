"""The end of every run, of own data, the demo and the benchmark: save, score, report, sum up."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from r2no import devices, ranks, storage
from r2no.adaptation import AdaptedModel, further_forecasts, readouts, score_readouts
from r2no.adaptation.model import versions
from r2no.data.audit import audit_splits
from r2no.data.window import Windows
from r2no.ensemble import DepthErrors, FittedEnsemble
from r2no.progress import Reporter
from r2no.report import Evaluation, ScoringWatch, collect, render, store_evaluation
from r2no.training import Persistence

ARTIFACT = "model.r2no"
SUMMARY = "run.json"
REPORT = "report.html"


@dataclass(frozen=True, eq=False)
class Finished:
    """What the end of a run leaves: the artifact's folder, and what one scoring pass found.

    ``contributions`` are what each group of columns is worth, as plain values.
    """

    artifact: Path
    scores: dict[str, dict[str, float]]
    errors: DepthErrors
    watch: ScoringWatch
    evaluation: Evaluation
    contributions: list[dict[str, Any]]


def computed_on(device: torch.device) -> dict[str, Any]:
    """Where and with what numbers were computed, as every result keeps it beside them."""
    return {"device": devices.describe(device), "versions": versions()}


def finish(
    model: AdaptedModel,
    splits: Mapping[str, Windows],
    artifact: Path,
    *,
    more_readouts: Mapping[str, FittedEnsemble] | None = None,
    title: str = "",
    command: str = "",
    reporter: Reporter,
) -> Finished:
    """Save a model, score it on ``splits["test"]`` in one pass, and write its page beside it.

    The artifact brings its source where that is possible, and keeps the evaluation. Scored are what
    needs no adaptation (persistence, mean field, further operators, the source) and all readouts.

    Args:
        model: The adapted model.
        splits: By name, all that take part in the audit; ``test`` is scored.
        artifact: Folder to save in; ``report.html`` goes beside it.
        more_readouts: Scored as well, by name.
        title: Of the page.
        command: What the page names as its origin.
        reporter: Where progress is shown.
    """
    path, test = model.save(artifact), splits["test"]
    watch = ScoringWatch(model, test)
    scores, errors = score_readouts(
        model,
        test,
        {**further_forecasts(model), **readouts(model), **(more_readouts or {})},
        operators={"persistence": Persistence.of(model.fields)},
        observers=[watch],
        reporter=reporter,
    )
    audit = ranks.agreed(audit_splits(splits) if ranks.is_main() else [])
    evaluation = watch.finish(scores, errors, audit=audit)
    store_evaluation(path, evaluation)
    page = path.parent / REPORT
    shown = collect(path, title=title, command=command, reporter=reporter)
    storage.write_text(page, render(shown))
    if model.verdict is not None:
        reporter.say(f"{model.verdict}.")
    return Finished(path, scores, errors, watch, evaluation, shown.contributions)


def summarise(config: Mapping[str, Any], model: AdaptedModel, found: Finished) -> None:
    """Write ``run.json`` beside the artifact: scores, verdict, config and versions."""
    rows = {"persistence": "persistence", **{n: found.watch.roles[n] for n in ("source", "r2no")}}
    summary = {
        "config": config,
        "artifact": found.artifact.name,
        "scores": {name: found.evaluation.scores[row] for name, row in rows.items()},
        "verdict": None if model.verdict is None else str(model.verdict),
        "contributions": found.contributions,
        **computed_on(model.device),
    }
    storage.write_json(found.artifact.parent / SUMMARY, summary)
