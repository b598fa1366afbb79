"""Run a study: every pair once, here in one or several processes, or as jobs of a cluster.

Here, what fails is reported at the end. Jobs are a graph: the checkpoint of a source, its forecasts
(h0), every member, the fit with the test pass, and at the end the table; each can be stopped and
goes on. A job does nothing that `bench run` would not do, in the same folders under the same keys,
so both end in the same bits and either goes on with the work of the other.
"""

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from r2no import devices, ranks, storage
from r2no.adaptation.adapting import adapt_ahead
from r2no.adaptation.stored import is_artifact
from r2no.errors import ConfigError, R2NOError
from r2no.locks import sole_run, sole_writer
from r2no.progress import SILENT, Reporter
from r2no.realpdebench.files.tiny import write_tiny
from r2no.realpdebench.study.config import BenchConfig, Pair
from r2no.realpdebench.study.pair import check_sources, obtain_source, released, run_pair
from r2no.realpdebench.study.studies import SourceName
from r2no.realpdebench.study.tables import study_sheet
from r2no.runs.finish import ARTIFACT

Unit = tuple[str, str]
Stage = Literal["source", "h0", "member", "pair", "table"]

#: How processes begin: anew, because PyTorch's threads do not survive a fork.
START_METHOD = "spawn"


@dataclass(frozen=True)
class Outcome:
    """What became of one result: ``done``, ``cached`` or ``failed``."""

    name: str
    state: str
    error: str = ""


def run_bench(
    config: BenchConfig,
    *,
    jobs: int = 1,
    threads: int | None = None,
    reporter: Reporter = SILENT,
) -> list[Outcome]:
    """Run what is missing of a study and return what became of each pair.

    Safe to interrupt: steps are kept by content below ``config.out`` and a second call goes on.

    Args:
        config: The study.
        jobs: Processes; pairs of one system and backbone stay in one.
        threads: Threads of each process; default the cores shared out among them.
        reporter: Where progress is shown.
    """
    if jobs > 1 and ranks.world_size() > 1:
        raise ConfigError(
            f"`jobs` must be 1 under torchrun, whose {ranks.world_size()} processes share each "
            f"pair, but is {jobs}. Leave it out."
        )
    devices.choose(config.device)  # one that is not there is refused before anything is written
    check_sources(config)
    prepare_data(config)
    storage.write_json(config.out / "study.json", config.model_dump(mode="json"))
    outcomes = []
    for unit, found in _work_through(config, jobs, threads, reporter):
        for outcome in found:
            reporter.say(f"{outcome.name}: {outcome.state} {outcome.error}".rstrip())
        outcomes += [(unit, outcome) for outcome in found]
    order = {unit: place for place, unit in enumerate(config.units())}
    return [outcome for unit, outcome in sorted(outcomes, key=lambda item: order[item[0]])]


@ranks.by_main
def prepare_data(config: BenchConfig) -> None:
    """Write the small data sets of the mini preset that are not there yet."""
    if config.data is not None:
        return
    for system in config.systems:
        with sole_writer(config.root / system):
            if not (config.root / system / "tiny.json").is_file():
                write_tiny(config.root, [system], layouts=["arrow"])


def run_unit(config: BenchConfig, unit: Unit, reporter: Reporter = SILENT) -> list[Outcome]:
    """All sources of one system and backbone; an error ends the one source it concerns."""
    outcomes = []
    for pair in _pairs(config, unit):
        note = config.out / "failures" / f"{pair.name}.txt"
        try:
            checkpoint = obtain_source(pair, reporter)
            state = "done" if run_pair(pair, checkpoint, reporter) else "cached"
        except Exception as error:  # one pair must not end the study; it is reported
            if ranks.world_size() > 1:  # but its processes would no longer be at the same place
                raise
            storage.write_text(note, traceback.format_exc())
            text = f"({type(error).__name__}: {error}) see {note}"
            outcomes.append(Outcome(pair.name, "failed", text))
        else:
            if ranks.is_main():
                note.unlink(missing_ok=True)
            outcomes.append(Outcome(pair.name, state))
    return outcomes


def _work_through(
    config: BenchConfig, jobs: int, threads: int | None, reporter: Reporter
) -> Iterator[tuple[Unit, list[Outcome]]]:
    """Run the units one after another, or several at once in processes."""
    if jobs <= 1:
        if threads is not None:
            torch.set_num_threads(threads)
        for number, unit in enumerate(config.units()):
            reporter.say(f"{' / '.join(unit)} ({number + 1} of {len(config.units())})")
            yield unit, run_unit(config, unit, reporter)
        return
    each = threads or max(1, (os.cpu_count() or 1) // jobs)
    work = partial(run_unit, config)
    for unit, future in in_processes(work, config.units(), jobs=jobs, threads=each):
        yield unit, _outcome(config, unit, future)


def in_processes(
    work: Callable[[Unit], list[Outcome]], units: list[Unit], *, jobs: int, threads: int
) -> Iterator[tuple[Unit, "Future[list[Outcome]]"]]:
    """Yield each unit with its finished future, as they come.

    A process that dies takes its whole pool with it, so the units it left are done again, each in
    a pool of its own: then only the one that is to blame fails.
    """
    broken = []
    for unit, future in _in_pool(work, units, jobs, threads):
        if isinstance(future.exception(), BrokenProcessPool) and len(units) > 1:
            broken.append(unit)
        else:
            yield unit, future
    for unit in broken:
        yield from _in_pool(work, [unit], 1, threads)


def _in_pool(
    work: Callable[[Unit], list[Outcome]], units: list[Unit], jobs: int, threads: int
) -> Iterator[tuple[Unit, "Future[list[Outcome]]"]]:
    context = multiprocessing.get_context(START_METHOD)
    with ProcessPoolExecutor(
        jobs, context, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        futures = {pool.submit(work, unit): unit for unit in units}
        try:
            for future in as_completed(futures):
                yield futures[future], future
        except BaseException:  # interrupted: do not start what has not begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _outcome(config: BenchConfig, unit: Unit, future: "Future[list[Outcome]]") -> list[Outcome]:
    """The unit's outcomes; a process that died is a failure of all its sources."""
    error = future.exception()
    if error is None:
        return future.result()
    text = f"({type(error).__name__}: {error})"
    return [Outcome(pair.name, "failed", text) for pair in _pairs(config, unit)]


def _pairs(config: BenchConfig, unit: Unit) -> list[Pair]:
    return [pair for pair in config.pairs() if (pair.system, pair.backbone) == unit]


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
