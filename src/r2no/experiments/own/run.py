"""Adapt your own operator: a run that resumes, scores itself on the test split and says so."""

from pathlib import Path

from r2no import storage
from r2no.adaptation import adapt
from r2no.adaptation.model import versions
from r2no.experiments.own.config import OwnConfig
from r2no.experiments.own.evaluate import score_split
from r2no.experiments.own.task import open_task
from r2no.training import Reporter

ARTIFACT = "model.r2no"
SUMMARY = "run.json"


def run_own_adaptation(config: OwnConfig, *, reporter: Reporter | None = None) -> Path:
    """Train on the train split, fit on the fit split, score on the test split.

    Returns the folder of the artifact, which brings its source where that is possible. Scores of
    persistence, source and model, the verdict and the config are in ``run.json`` beside it. A run
    that was stopped goes on.
    """
    reporter = reporter or Reporter(quiet=True)
    task = open_task(config)
    reporter.say(task.measurements.describe())
    splits = task.splits
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
    summary = {
        "config": config.model_dump(mode="json"),
        "artifact": ARTIFACT,
        "scores": score_split(model, splits.test, reporter=reporter),
        "verdict": None if model.verdict is None else str(model.verdict),
        "versions": versions(),
    }
    storage.write_json(config.out / SUMMARY, summary)
    if model.verdict is not None:
        reporter.say(f"{model.verdict}.")
    return path
