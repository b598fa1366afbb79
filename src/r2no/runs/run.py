"""Adapt your own operator: a run that resumes, scores itself on the test split and says so."""

from dataclasses import replace
from pathlib import Path

from r2no import storage
from r2no.adaptation import adapt
from r2no.adaptation.model import versions
from r2no.locks import sole_writer
from r2no.progress import Reporter
from r2no.report import audit_splits, evaluate, store_evaluation, write_report
from r2no.runs.config import OwnConfig
from r2no.runs.place import (
    ARTIFACT,
    SUMMARY,
    check_begun,
    check_place,
    remember,
    replaces,
)
from r2no.runs.task import open_task
from r2no.training import Persistence

REPORT = "report.html"


def run_own_adaptation(
    config: OwnConfig, *, reporter: Reporter | None = None, command: str = ""
) -> Path:
    """Train on the train split, fit on the fit split, score on the test split.

    Returns the folder of the artifact, which brings its source where that is possible. Beside it
    are ``run.json`` (scores of persistence, source and model, the verdict and the config) and
    ``report.html``, which names ``command`` as its origin. A run that was stopped goes on; a second
    one into the same folder waits for the first.
    """
    reporter = reporter or Reporter(quiet=True)
    check_place(config.out)
    with sole_writer(config.out):
        return _run(config, reporter, command)


def _run(config: OwnConfig, reporter: Reporter, command: str) -> Path:
    check_begun(config)
    if replaced := replaces(config):
        reporter.say(replaced)
    task = open_task(config)
    reporter.say(task.measurements.describe())
    splits = task.splits
    reporter.say(f"Splits: {splits.describe()}.")
    remember(config)
    model = adapt(
        task.source,
        splits.train,
        splits.fit,
        settings=config.adapt,
        folder=config.out / "work",
        reporter=reporter,
    )
    model.provenance["config"] = config.model_dump(mode="json")
    path = model.save(config.out / ARTIFACT)
    fields = splits.test.fields
    persistence = Persistence(fields.horizon_frames, len(fields.channels))
    found = evaluate(model, splits.test, operators={"persistence": persistence}, reporter=reporter)
    audit = audit_splits({"train": splits.train, "fit": splits.fit, "test": splits.test})
    store_evaluation(path, replace(found, audit=audit))
    write_report(path, config.out / REPORT, command=command, reporter=reporter)
    shown = {"persistence": "persistence", "source": "source", "r2no": found.roles["r2no"]}
    summary = {
        "config": config.model_dump(mode="json"),
        "artifact": ARTIFACT,
        "scores": {name: found.scores[readout] for name, readout in shown.items()},
        "verdict": None if model.verdict is None else str(model.verdict),
        "versions": versions(),
    }
    storage.write_json(config.out / SUMMARY, summary)
    if model.verdict is not None:
        reporter.say(f"{model.verdict}.")
    return path
