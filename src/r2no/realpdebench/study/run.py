"""Run a study: every pair once, in one or several processes; what fails is reported at the end."""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial

import torch

from r2no import devices, ranks, storage
from r2no.errors import ConfigError
from r2no.locks import sole_writer
from r2no.progress import SILENT, Reporter
from r2no.realpdebench.files.tiny import write_tiny
from r2no.realpdebench.study.config import BenchConfig, Pair
from r2no.realpdebench.study.pair import check_sources, obtain_source, run_pair

Unit = tuple[str, str]

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
