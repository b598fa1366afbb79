"""Adapt your own operator: a run that resumes, scores itself on the test split and says so."""

from dataclasses import replace
from pathlib import Path

from r2no import devices
from r2no.adaptation import AdaptedModel, adapt
from r2no.locks import sole_run
from r2no.progress import SILENT, Reporter
from r2no.runs.config import OwnConfig
from r2no.runs.finish import ARTIFACT, finish, summarise
from r2no.runs.place import check_begun, check_place, remember, replaces
from r2no.runs.task import open_task


def run_own_adaptation(
    config: OwnConfig, *, reporter: Reporter = SILENT, command: str = ""
) -> Path:
    """Train on the train split, fit on the fit split, score on the test split.

    Returns the folder of the artifact, which brings its source where that is possible. Beside it
    are ``run.json`` (scores of persistence, source and model, the verdict and the config) and
    ``report.html``, which names ``command`` as its origin. A run that was stopped goes on; a second
    one into the same folder waits for the first.
    """
    devices.choose(config.adapt.device)  # one that is not there is refused before any work
    check_place(config.out)
    with sole_run(config.out):
        return _run(config, reporter, command)


def _run(config: OwnConfig, reporter: Reporter, command: str) -> Path:
    """Open, adapt, save, score and report, in a folder that nobody else writes."""
    check_begun(config)
    if replaced := replaces(config):
        reporter.say(replaced)
    task = open_task(config)
    reporter.say(task.measurements.describe())
    splits = task.splits
    reporter.say(f"Splits: {splits.describe()}.")
    remember(config)
    dumped = config.model_dump(mode="json")

    def named(model: AdaptedModel) -> AdaptedModel:
        return replace(model, provenance={**model.provenance, "config": dumped})

    model = adapt(
        task.source,
        splits.train,
        splits.fit,
        also=task.also,
        settings=config.settings,
        folder=config.out / "work",
        improved=lambda better: named(better).save(config.out / ARTIFACT),
        reporter=reporter,
    )
    model = named(model)
    parts = {"train": splits.train, "fit": splits.fit, "test": splits.test}
    found = finish(model, parts, config.out / ARTIFACT, command=command, reporter=reporter)
    summarise(dumped, model, found)
    return found.artifact
