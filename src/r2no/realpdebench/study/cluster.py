"""Hand the jobs of a study to Slurm, or run them here, through submitit; and say how they do.

Slurm keeps the order (``afterok``). A job that runs out of time, or is preempted, is queued again
by submitit and goes on; one that fails takes those after it out of the queue, and the next submit
hands in what is missing.
"""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import Field

from r2no import ranks, storage
from r2no.checks import Settings, choice
from r2no.errors import ConfigError, ProcessError
from r2no.progress import SILENT, Reporter
from r2no.realpdebench.study.config import BenchConfig
from r2no.realpdebench.study.pair import check_sources
from r2no.realpdebench.study.run import Job, Stage, jobs_of, noted, run_job

EXECUTORS = ("slurm", "local")
_SUBMITTED = "submitted.json"
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")


class Resources(Settings, frozen=True):
    """What a job asks for."""

    partition: str | None = Field(default=None, description="Default: the cluster's own.")
    account: str | None = Field(default=None, description="Whom the time is charged to.")
    gpus: int = Field(default=1, ge=0, description="GPUs of a job.")
    processes: int = Field(default=1, ge=1, description="Processes of a job, a GPU each.")
    cpus: int = Field(default=4, ge=1, description="Cores of each process.")
    memory: float = Field(default=32.0, gt=0, description="GB of a job.")
    minutes: int = Field(default=24 * 60, ge=1, description="Then it is queued again.")
    requeues: int = Field(default=20, ge=0, description="How often, after a time-out.")
    more: dict[str, str] = Field(default={}, description="Further options of sbatch.")


class ClusterConfig(Resources, frozen=True):
    """Resources of all jobs, and of single stages where they differ.

    Stages are source, h0, member, pair and table; the table needs no GPU.
    """

    stages: dict[Stage, dict[str, Any]] = Field(
        default={"table": {"gpus": 0, "processes": 1, "memory": 4, "minutes": 30}},
        description="By stage, any of the keys above.",
    )

    def of(self, stage: Stage) -> Resources:
        """What jobs of a stage ask for."""
        common = self.model_dump(exclude={"stages"})
        return Resources(**{**common, **self.stages.get(stage, {})})


@dataclass(frozen=True)
class Work:
    """A job as submitit carries it to another machine, and queues it again."""

    config: dict[str, Any]
    name: str
    processes: int

    def __call__(self) -> None:
        """Run the job, with its other processes if it has some."""
        config = BenchConfig.of(**self.config)
        (job,) = (job for job in jobs_of(config) if job.name == self.name)
        if self.processes > 1:
            _submitit().helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        with ranks.group():
            run_job(config, job, Reporter())

    def checkpoint(self) -> Any:
        """The same job: it goes on where it was."""
        return _submitit().helpers.DelayedSubmission(self)


def _submitit() -> Any:
    try:
        import submitit
        import submitit.helpers
    except ImportError as error:
        raise ConfigError(
            "Jobs are handed over by submitit, which is not installed. Run `pip install "
            "'r2no[cluster]'`."
        ) from error
    return submitit


def submit_study(
    config: BenchConfig,
    cluster: ClusterConfig,
    *,
    executor: str = "slurm",
    reporter: Reporter = SILENT,
) -> list[str]:
    """Hand in every job that is not done and not queued; returns their names.

    With "local" they run here, one after another, and this returns when they have ended.

    Raises:
        ConfigError: if submitit or Slurm is not there.
        ProcessError: if a local job failed; those that need it were not begun.
    """
    choice("executor", executor, EXECUTORS)
    check_sources(config)
    dumped = _absolute(config).model_dump(mode="json")
    storage.write_json(config.out / "jobs" / f"study-{config.norm}.json", dumped)
    missing = [job for job in jobs_of(config) if noted(config, job).get("state") != "done"]
    if executor == "local":
        return _run_here(config, cluster, missing, reporter)
    if shutil.which("sbatch") is None:
        raise ConfigError("There is no `sbatch` here. Use `--executor local`, or a login node.")
    return _to_slurm(config, cluster, missing, reporter)


def _run_here(
    config: BenchConfig, cluster: ClusterConfig, missing: Sequence[Job], reporter: Reporter
) -> list[str]:
    """Run jobs in their order; what needs a failed one is left out."""
    failed: dict[str, str] = {}
    for job in missing:
        if lost := [name for name in job.after if name in failed]:
            failed[job.name] = f"needs {lost[0]}"
            continue
        reporter.say(job.name)
        handed = _executor(config, cluster, job).submit(_work(config, cluster, job))
        error = handed.exception()
        if error is not None:
            failed[job.name] = (
                noted(config, job).get("error") or f"{error}; see {handed.paths.stderr}"
            )
    if failed:
        name, text = next(iter(failed.items()))
        raise ProcessError(f"{len(failed)} of {len(missing)} jobs failed, first {name}: {text}")
    return [job.name for job in missing]


def _to_slurm(
    config: BenchConfig, cluster: ClusterConfig, missing: Sequence[Job], reporter: Reporter
) -> list[str]:
    """Queue jobs with their order; members of a pair are an array."""
    numbers, queued, found = _submitted(config.out), _queue(), []
    numbers = {name: number for name, number in numbers.items() if number in queued}
    for (_, after), jobs in groupby(missing, key=lambda job: (job.stage, job.after)):
        new = [job for job in jobs if job.name not in numbers]
        if not new:
            continue
        needed = sorted({numbers[name].split("_")[0] for name in after if name in numbers})
        executor = _executor(config, cluster, new[0], needed)
        with executor.batch() if len(new) > 1 else contextlib.nullcontext():
            handed = [executor.submit(_work(config, cluster, job)) for job in new]
        numbers |= {job.name: one.job_id for job, one in zip(new, handed, strict=True)}
        found += [job.name for job in new]
        storage.write_json(config.out / "jobs" / _SUBMITTED, numbers)
        reporter.say(f"Queued {', '.join(job.name for job in new)}.")
    return found


def _work(config: BenchConfig, cluster: ClusterConfig, job: Job) -> Work:
    dumped = _absolute(config).model_dump(mode="json")
    return Work(dumped, job.name, cluster.of(job.stage).processes)


def _absolute(config: BenchConfig) -> BenchConfig:
    """The config for another working folder."""
    places = {name: getattr(config, name) for name in ("data", "out", "checkpoints", "dpot")}
    known = {name: path.absolute() for name, path in places.items() if path is not None}
    return config.model_copy(update=known)


def stored_configs(out: Path) -> list[BenchConfig]:
    """The studies that were handed in from a folder, which may have moved since.

    Raises:
        ConfigError: if there is none.
    """
    found = [storage.read_json(path) for path in sorted((out / "jobs").glob("study-*.json"))]
    if not found:
        raise ConfigError(f"No study was submitted from `{out}`. Check the path.")
    return [BenchConfig.of(**{**content, "out": out}) for content in found]


def _executor(
    config: BenchConfig, cluster: ClusterConfig, job: Job, needed: Sequence[str] | None = None
) -> Any:
    """What submits a job: to Slurm, after the numbers that are ``needed``, or to this machine."""
    asked = cluster.of(job.stage)
    executor = _submitit().AutoExecutor(
        config.out.absolute() / "jobs" / "logs" / "%j",
        cluster="local" if needed is None else "slurm",
        **({} if needed is None else {"slurm_max_num_timeout": asked.requeues}),
    )
    executor.update_parameters(
        name=job.name,
        timeout_min=asked.minutes,
        tasks_per_node=asked.processes,
        cpus_per_task=asked.cpus,
        mem_gb=asked.memory,
        **({"gpus_per_node": asked.gpus} if asked.gpus else {}),
    )
    if needed is not None:
        more = {"requeue": True, **asked.more}
        if needed:
            more |= {"dependency": f"afterok:{':'.join(needed)}", "kill-on-invalid-dep": "yes"}
        named = {"partition": asked.partition, "account": asked.account}
        given = {f"slurm_{name}": value for name, value in named.items() if value is not None}
        executor.update_parameters(slurm_additional_parameters=more, **given)
    return executor


def _submitted(out: Path) -> dict[str, str]:
    """The number that Slurm gave to each job."""
    path = out / "jobs" / _SUBMITTED
    found: dict[str, str] = storage.read_json(path) if path.is_file() else {}
    return found


def _queue() -> dict[str, str]:
    """State of the user's jobs that Slurm has not forgotten, by number."""
    if shutil.which("squeue") is None:
        return {}
    asked = ["squeue", "--me", "--noheader", "--array", "--format=%i %T"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode:
        raise ProcessError(f"Slurm does not answer: {found.stderr.strip()}. Try again later.")
    lines = [line.split() for line in found.stdout.splitlines()]
    return {number: state for number, state in lines if state not in _ENDED}


@dataclass(frozen=True)
class Status:
    """Of a job: done, running, waiting, failed, stopped, lost or not begun; and where, and why."""

    job: Job
    state: str
    where: str = ""
    minutes: float = 0.0
    note: str = ""


def statuses(config: BenchConfig) -> list[Status]:
    """How every job of a study does, by the word it left and by Slurm's queue."""
    numbers = _submitted(config.out)
    queued = _queue() if numbers else {}
    return [_status(config, job, queued.get(numbers.get(job.name, ""))) for job in jobs_of(config)]


def _status(config: BenchConfig, job: Job, queued: str | None) -> Status:
    note = noted(config, job)
    state = note.get("state", "not begun")
    if queued is not None and state != "done":
        state = "waiting" if queued in _WAITING else "running"
    elif state == "running" and note["slurm"] is not None:
        state = "lost"  # it said that it began, and Slurm does not know it any more
    where = f"{note['host']} {note['slurm'] or note['process']}" if note else ""
    minutes = (time.time() - note["time"]) / 60 if note else 0.0
    reasons = (note.get("error") or "").strip().splitlines()
    return Status(job, state, where, minutes, reasons[-1] if reasons else "")
