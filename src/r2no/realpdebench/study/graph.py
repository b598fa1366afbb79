"""A study as a graph of jobs, each of which can be stopped and goes on: the work of a cluster.

The checkpoint of a source, its forecasts (h0), every member, the fit with the test pass, and at the
end the table. A job does nothing that `bench run` would not do, in the same folders under the same
keys, so both end in the same bits and either goes on with the work of the other.
"""

import os
import socket
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from r2no import ranks, storage
from r2no.adaptation.adapting import adapt_ahead
from r2no.adaptation.stored import is_artifact
from r2no.errors import R2NOError
from r2no.locks import sole_run
from r2no.progress import SILENT, Reporter
from r2no.realpdebench.study.config import BenchConfig, Pair
from r2no.realpdebench.study.pair import check_sources, obtain_source, released, run_pair
from r2no.realpdebench.study.run import prepare_data
from r2no.realpdebench.study.studies import SourceName
from r2no.realpdebench.study.tables import study_sheet
from r2no.runs.finish import ARTIFACT

Stage = Literal["source", "h0", "member", "pair", "table"]


@dataclass(frozen=True)
class Job:
    """A piece of a study; ``after`` are the names of the jobs it needs."""

    name: str
    stage: Stage
    pair: Pair | None = None
    member: int | None = None
    after: tuple[str, ...] = ()


def jobs_of(config: BenchConfig) -> list[Job]:
    """All jobs of a study, each after those it needs."""
    found = [job for unit in config.units() for job in _of_unit(config, *unit)]
    pairs = tuple(job.name for job in found if job.stage == "pair")
    return [*found, Job(f"table{_norm(config)}", "table", after=pairs)]


def _norm(config: BenchConfig) -> str:
    return "" if config.norm == "ortho" else f"-{config.norm}"


def _of_unit(config: BenchConfig, system: str, backbone: str) -> Iterator[Job]:
    """Checkpoints that must be trained, then the pairs that start from them."""
    wanted = config.sources_of(backbone)
    chain: tuple[SourceName, ...] = ("pretrained", "finetune")
    first = Pair(config, system, backbone, "pretrained")
    if "finetune" not in wanted or released(first.starting_from("finetune")):
        chain = tuple(source for source in chain if source in wanted)
    made: list[str] = []
    for pair in map(first.starting_from, chain):
        if released(pair) is None:
            name = f"{pair.name}.source"
            yield Job(name, "source", pair, after=tuple(made))
            made.append(name)
    for pair in map(first.starting_from, wanted):
        checkpoint = f"{pair.name}.source"
        yield from _of_pair(pair, (checkpoint,) if checkpoint in made else ())


def _of_pair(pair: Pair, after: tuple[str, ...]) -> Iterator[Job]:
    name = pair.name + _norm(pair.config)
    h0 = Job(f"{name}.h0", "h0", pair, after=after)
    members = [
        Job(f"{name}.member-{number}", "member", pair, number, (h0.name,))
        for number in range(pair.config.members)
    ]
    yield h0
    yield from members
    yield Job(f"{name}.pair", "pair", pair, after=tuple(job.name for job in members))


def run_job(config: BenchConfig, job: Job, reporter: Reporter = SILENT) -> None:
    """Do what is missing of a job, and leave word of how it went; a second one waits for it."""
    with sole_run(note_path(config, job)):
        _note(config, job, "running")
        try:
            _work(config, job, reporter)
        except BaseException as error:
            known = isinstance(error, R2NOError)
            text = f"{type(error).__name__}: {error}" if known else traceback.format_exc()
            _note(config, job, "failed" if isinstance(error, Exception) else "stopped", text)
            raise
        _note(config, job, "done")


def _work(config: BenchConfig, job: Job, reporter: Reporter) -> None:
    prepare_data(config)
    if job.pair is None:
        table = study_sheet("main", config.out, norm=config.norm).render("md")
        storage.write_text(config.out / f"{job.name}.md", table)
        return
    check_sources(config)
    checkpoint = obtain_source(job.pair, reporter)
    if job.stage == "pair":
        run_pair(job.pair, checkpoint, reporter)
    elif job.stage != "source":
        _prepare_pair(job.pair, checkpoint, job.member, reporter)


def _prepare_pair(pair: Pair, checkpoint: Path, member: int | None, reporter: Reporter) -> None:
    """The forecasts of a pair's source, or one of its members, where `run_pair` looks for them."""
    windows = pair.config.windows(pair.system)
    folder = pair.folder(pair.key(checkpoint, windows))
    if ranks.agreed(is_artifact(folder / ARTIFACT)):
        return
    source = pair.open(checkpoint, reporter)
    adapt_ahead(
        source.operator,
        windows["train"],
        windows["val"],
        member,
        settings=pair.config.adapt(),
        normalisers=source.normalisers,
        folder=folder / "work",
        reporter=reporter,
    )


def note_path(config: BenchConfig, job: Job) -> Path:
    """Where a job leaves word."""
    return config.out / "jobs" / f"{job.name}.json"


def job_key(config: BenchConfig, job: Job) -> str:
    """What a finished job depends on, wherever its folders are."""
    settings = config.model_dump(mode="json", exclude={"data", "out", "checkpoints", "dpot"})
    return storage.fingerprint(job.name, settings)


def _note(config: BenchConfig, job: Job, state: str, error: str = "") -> None:
    content: dict[str, Any] = {
        "state": state,
        "key": job_key(config, job),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "slurm": os.environ.get("SLURM_JOB_ID"),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        "time": time.time(),
        "error": error,
    }
    storage.write_json(note_path(config, job), content)


def noted(config: BenchConfig, job: Job) -> dict[str, Any]:
    """The word a job left, of this study; empty if there is none."""
    path = note_path(config, job)
    found: dict[str, Any] = storage.read_json(path) if path.is_file() else {}
    return found if found.get("key") == job_key(config, job) else {}
